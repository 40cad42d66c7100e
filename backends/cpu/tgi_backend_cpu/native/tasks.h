// How a GEMM is divided into tasks for the threads.
#pragma once

#include <unistd.h>

#include "int8_gemm.h"
#include "tile_gemm.h"
#include "wide_gemm.h"

namespace tgi {

// How much of a core's own cache a block of rows may take.
inline size_t cache_for_rows() {
#ifdef _SC_LEVEL2_CACHE_SIZE
  static const long known = sysconf(_SC_LEVEL2_CACHE_SIZE);
#else
  constexpr long known = 0;
#endif
  return (size_t)(known > 0 ? known : 512 << 10) / 4 * (kTiles ? 2 : 3);  // beside tiles, a panel and sums need room
}

// How a GEMM is divided into tasks: blocks of rows that stay in a core's cache, and runs of panels long enough to be worth claiming. Blocks
// are few and large, since each decodes the panels again, but enough for all threads.
struct Tiling {
  size_t row_blocks, panel_runs;
  int run;
  size_t block;

  Tiling(const Gemm& p, size_t threads) {
    const size_t row_bytes = (size_t)p.w.steps * 4, panel_bytes = row_bytes * 16 * blocks_of(p.epilogue), panels = p.panels();
    const size_t fitting = std::max<size_t>(1, cache_for_rows() / std::max<size_t>(1, row_bytes) / kBlockRows) * kBlockRows;
    row_blocks = std::max((p.rows + fitting - 1) / fitting, std::min(p.rows / kManyRows, 4 * threads / std::max<size_t>(1, panels)));
    block = row_blocks > 1 ? rounded_up((p.rows + row_blocks - 1) / row_blocks, kBlockRows) : std::max<size_t>(1, p.rows);
    row_blocks = (p.rows + block - 1) / block;
    const size_t worth = (96u << 10) / (panel_bytes * (1 + block / 32)), even = panels * row_blocks / (threads * 4);
    run = (int)std::max<size_t>(1, std::min(worth, even));
    panel_runs = (panels + run - 1) / run;
  }
  size_t tasks() const { return row_blocks * panel_runs; }

 private:
  // Blocks are multiples of this, and otherwise equal, since each thread gets its share of them.
  static constexpr size_t kBlockRows = kTiles ? kPassRows : 8;
  static constexpr size_t kManyRows = 96;  // a smaller block is not worth decoding a panel for
};

// Sums of x by group for a weight with offsets, [rows][groups]; those of rows first…last-1 are computed, and kept for the other tasks of a
// phase. A sum is that of 16 lanes, so its bits depend on its row alone.
inline const float* group_sums(const Gemm& p, const Codes& weight, size_t first, size_t last, Scratch& scratch, uint64_t phase) {
  float* sums = scratch.sums.at_least(p.rows * weight.groups);
  if (scratch.has_sums.is_there(phase, first)) return sums;
  const size_t inputs = 2 * (size_t)p.w.steps, size = 2 * weight.group_steps;
  for (size_t row = first; row < last; row++)
    for (size_t g = 0; g < weight.groups; g++) {
      const bf16* x = (const bf16*)(p.x + row * p.w.steps);
      f32x16 total = zero();
      for (size_t i = g * size, end = std::min(inputs, i + size); i < end; i += 16) total = add(total, load_first(x + i, (int)(end - i)));
      sums[row * weight.groups + g] = sum(total);
    }
  return sums;
}

// Panels from…to-1 times rows first…last-1.
template <class Op>
void run_panels(const Gemm& p, int from, int to, size_t first, size_t last, Scratch& scratch, uint64_t phase) {
  if constexpr (kTiles && Op::per_unit == 2) {
    const TileSteps depth(p.w);
    const unit* x = row_tiles(p, depth, first, last, scratch, phase);
    for (int panel = from; panel < to; panel++) TilePanel<Op>(p, depth, panel, first, last, x).run(scratch);
    return;
  }
  if constexpr (kWidens<Op>)
    if (widens(p.w, last - first)) return multiply_wide<Op>(p, from, to, first, last, scratch, phase);
  for (int panel = from; panel < to; panel++) PanelGemm<Op>(p, panel, first, last).run(scratch);
}

template <class Op>
void run_task(const Gemm& p, const Tiling& tiling, uint32_t task, Scratch& scratch, uint64_t phase) {
  const size_t first = task / tiling.panel_runs * tiling.block;
  const size_t last = first + tiling.block < p.rows ? first + tiling.block : p.rows;
  const int from = (int)(task % tiling.panel_runs) * tiling.run, to = from + tiling.run < p.panels() ? from + tiling.run : p.panels();
  if constexpr (Op::per_unit == 2) {
    if (p.w.layout == Layout::int8) return multiply_int8<Op, 8>(p, from, to, first, last, scratch, phase);
    if (p.w.layout == Layout::int4) return multiply_int8<Op, 4>(p, from, to, first, last, scratch, phase);
    if (const Codes* codes = codes_of(p.w); codes && codes->has_offsets && !(kTiles && codes->groups > 1)) {
      Gemm own = p;
      own.sums = group_sums(p, *codes, first, last, scratch, phase), own.groups = codes->groups;
      return run_panels<Op>(own, from, to, first, last, scratch, phase);
    }
  }
  run_panels<Op>(p, from, to, first, last, scratch, phase);
}

}  // namespace tgi
