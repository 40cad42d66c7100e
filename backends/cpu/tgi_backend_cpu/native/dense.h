// The dense layout: a panel's lines, one after the other.
#pragma once

#include "pool.h"
#include "simd.h"

namespace tgi {

// Prefetches `ahead` bytes further on.
struct DenseLines {
  static constexpr int kSteps = 1;
  static constexpr bool kGrouped = false;
  static constexpr size_t kLineBytes = kLine;  // of memory per line
  const unit* at;
  size_t ahead;

  DenseLines(const unit* lines, size_t ahead) : at(lines), ahead(ahead) {}
  // Lines that another layout decoded before.
  DenseLines(const void*, size_t, const unit* decoded) : at(decoded), ahead(0) {}

  // Where the next line is.
  const char* next_line() const { return (const char*)at; }

  template <int BLOCKS>
  TGI_INLINED const unit* next() {
    const unit* step = at;
    TGI_UNROLL for (int r = 0; r < BLOCKS; r++) prefetch((const char*)(step + r * 16) + ahead);
    at += BLOCKS * 16;
    return step;
  }
};

}  // namespace tgi
