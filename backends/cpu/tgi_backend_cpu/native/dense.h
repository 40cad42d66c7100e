// The dense layout: a panel's lines, one after the other.
#pragma once

#include "pool.h"
#include "simd.h"

namespace tgi {

// Prefetches `ahead` bytes further on.
struct DenseLines {
  static constexpr int kSteps = 1;
  const unit* at;
  size_t ahead;

  template <int BLOCKS>
  TGI_INLINED const unit* next() {
    const unit* step = at;
    TGI_UNROLL for (int r = 0; r < BLOCKS; r++) prefetch((const char*)(step + r * 16) + ahead);
    at += BLOCKS * 16;
    return step;
  }
};

}  // namespace tgi
