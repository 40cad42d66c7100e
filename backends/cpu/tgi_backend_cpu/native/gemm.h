// Matrix products over packed weights: y = x · Wᵀ, with what follows it applied while the result is still in the cache.
//
// A packed weight is a row of panels, each of kColumns (or, for gate and up side by side, two) blocks of 16 outputs:
// [panel][step][block][16] units, so that a product reads it front to back. One copy serves any number of rows. Panels of bfloat16 may be
// narrow (see narrow.h): then they are widened right before they are read.
#pragma once

#include <unistd.h>

#include "narrow.h"

namespace tgi {

// Blocks per panel, and the rows of x that are multiplied with a panel at a time: what fits into the registers.
constexpr int kPlainBlocks = kRegisters == 32 ? 3 : 1;
constexpr int kPlainRows = kRegisters == 32 ? 8 : 4;
constexpr int kGateBlocks = 2;
constexpr int kGateRows = kRegisters == 32 ? 12 : 2;

enum class Finish : int32_t {
  numbers = 0,  // in the weights' dtype
  floats = 1,
  add = 2,   // to floats that are there
  gated = 3  // silu(gate) · up in the weights' dtype; panels hold 16 gates and their 16 ups
};

inline int blocks_of(Finish finish) { return finish == Finish::gated ? kGateBlocks : kPlainBlocks; }
inline int rows_of(Finish finish) { return finish == Finish::gated ? kGateRows : kPlainRows; }

// A packed weight: `columns` counts gates and ups together, `steps` are the units of its depth. Mirrored in tables.py.
struct Linear {
  const unit* weight;  // or null, and then
  const Narrow* narrow;
  const float* bias;  // one per column, or null; for gates and ups as they lie in the panels
  int32_t columns, steps;
};

// A product as the kernels see it: x [rows][steps] units, y [rows][columns] with a stride in its own elements.
struct Product {
  Finish finish;
  Linear w;
  const unit* x;
  void* y;
  size_t y_stride, rows;
  float scale = 1.0f;

  int columns() const { return finish == Finish::gated ? w.columns / 2 : w.columns; }
  int panels() const {
    const int width = finish == Finish::gated ? 16 : 16 * kPlainBlocks;
    return (columns() + width - 1) / width;
  }
};

// Lays `rows` rows of a weight [rows][depth] out as blocks first, first + stride, … of a packed one. Pads with zeros.
template <class Op>
void pack_rows(unit* packed, int blocks, const typename Op::number* weight, int rows, int depth, int first, int stride) {
  const int steps = (depth + Op::per_unit - 1) / Op::per_unit;
  for (int block = 0; block * 16 < rows; block++) {
    const int at = first + block * stride;
    unit* to = packed + ((size_t)(at / blocks) * steps * blocks + at % blocks) * 16;
    for (int lane = 0; lane < 16; lane++) {
      const int row = block * 16 + lane;
      if (row >= rows) {
        for (int k = 0; k < steps; k++) to[(size_t)k * blocks * 16 + lane] = 0;
        continue;
      }
      const typename Op::number* from = weight + (size_t)row * depth;
      const int whole = depth / Op::per_unit;
      for (int k = 0; k < whole; k++) memcpy(&to[(size_t)k * blocks * 16 + lane], from + (size_t)k * Op::per_unit, 4);
      if (whole < steps) {
        unit last = 0;
        memcpy(&last, from + (size_t)whole * Op::per_unit, sizeof(typename Op::number));
        to[(size_t)whole * blocks * 16 + lane] = last;
      }
    }
  }
}

// Lines of a panel as they lie; what is `ahead` bytes further is fetched.
struct PlainLines {
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

// Lines of a narrow panel, widened a few steps before they are multiplied: one is done while the other waits. They stay in `to` where other
// rows are going to need them.
struct NarrowLines {
  static constexpr int kSteps = kGroupLines;
  Widening panel;
  unit* to;
  bool stay;

  template <int BLOCKS>
  TGI_INLINED const unit* next() {
    unit* steps = to;
    panel.next(BLOCKS, steps);
    if (stay) to += BLOCKS * kGroupLines * 16;
    return steps;
  }
};

// ROWS rows of x times one panel → tile [ROWS][BLOCKS · 16].
template <class Op, int ROWS, int BLOCKS, class Lines>
void multiply(const unit* x, int steps, Lines lines, float* tile) {
  f32x16 c[ROWS][BLOCKS];
  TGI_UNROLL for (int m = 0; m < ROWS; m++) TGI_UNROLL for (int r = 0; r < BLOCKS; r++) c[m][r] = zero();
  for (int k = 0; k < steps; k += Lines::kSteps) {
    const unit* line = lines.template next<BLOCKS>();
    const int some = Lines::kSteps == 1 ? 1 : std::min(steps - k, Lines::kSteps);
    for (int s = 0; s < some; s++) {
      TGI_UNROLL for (int pass = 0; pass < Op::passes; pass++) {
        decltype(Op::part(u32x16(), 0)) b[BLOCKS];
        TGI_UNROLL for (int r = 0; r < BLOCKS; r++) b[r] = Op::part(load_units(line + (s * BLOCKS + r) * 16), pass);
        TGI_UNROLL for (int m = 0; m < ROWS; m++) {
          const auto a = Op::part(splat_unit(x[(size_t)m * steps + k + s]), pass);
          TGI_UNROLL for (int r = 0; r < BLOCKS; r++) c[m][r] = Op::madd(c[m][r], a, b[r]);
        }
      }
    }
  }
  TGI_UNROLL for (int m = 0; m < ROWS; m++) TGI_UNROLL for (int r = 0; r < BLOCKS; r++)
      store(tile + (m * BLOCKS + r) * 16, c[m][r]);
}

template <class Op, int ROWS, int BLOCKS, class Lines>
void multiply_rows(int rows, const unit* x, int steps, Lines lines, float* tile) {
  if constexpr (ROWS > 1) {
    if (rows < ROWS) return multiply_rows<Op, ROWS - 1, BLOCKS>(rows, x, steps, lines, tile);
  }
  multiply<Op, ROWS, BLOCKS>(x, steps, lines, tile);
}

// One block of 16 columns of `rows` rows of a tile, whose rows are `stride` floats apart, to `to`.
template <class T, class Value>
TGI_INLINE void finish_block(const float* tile, size_t stride, size_t rows, T* to, size_t to_stride, int width, const Value& value) {
  if (width >= 16) {
    for (size_t row = 0; row < rows; row++) store(to + row * to_stride, value(tile + row * stride, to + row * to_stride));
    return;
  }
  for (size_t row = 0; row < rows; row++) {
    T there[16] = {};
    memcpy(there, to + row * to_stride, (size_t)width * sizeof(T));
    store(there, value(tile + row * stride, there));
    memcpy(to + row * to_stride, there, (size_t)width * sizeof(T));
  }
}

// A tile of rows from `row` on becomes the result's part of a panel.
template <class Op>
void finish_tile(const Product& p, int panel, const float* tile, size_t row, size_t rows) {
  using T = typename Op::number;
  const f32x16 scale = splat(p.scale);
  const int blocks = p.finish == Finish::gated ? 1 : kPlainBlocks, columns = p.columns();
  for (int r = 0; r < blocks; r++) {
    const int column = (panel * blocks + r) * 16, width = std::min(16, columns - column);
    if (width <= 0) return;
    const size_t at = row * p.y_stride + column, stride = (size_t)blocks_of(p.finish) * 16;
    if (p.finish == Finish::gated) {
      const float* biases = p.w.bias ? p.w.bias + panel * 32 : nullptr;
      const f32x16 gate_bias = biases ? load(biases) : zero(), up_bias = biases ? load(biases + 16) : zero();
      finish_block(tile, stride, rows, (T*)p.y + at, p.y_stride, width, [&](const float* from, const T*) {
        return mul(Op::silu(add(load(from), gate_bias)), add(load(from + 16), up_bias));
      });
      continue;
    }
    const f32x16 bias = p.w.bias ? load_first(p.w.bias + column, width) : zero();
    const float* from = tile + r * 16;
    if (p.finish == Finish::numbers)
      finish_block(from, stride, rows, (T*)p.y + at, p.y_stride, width,
                   [&](const float* v, const T*) { return mul(add(load(v), bias), scale); });
    else if (p.finish == Finish::floats)
      finish_block(from, stride, rows, (float*)p.y + at, p.y_stride, width,
                   [&](const float* v, const float*) { return mul(add(load(v), bias), scale); });
    else
      finish_block(from, stride, rows, (float*)p.y + at, p.y_stride, width,
                   [&](const float* v, const float* there) { return fma(add(load(v), bias), scale, load(there)); });
  }
}

// Rows first…last-1 of the result, of one panel.
template <class Op>
class PanelProduct {
 public:
  PanelProduct(const Product& p, int panel, size_t first, size_t last)
      : p_(p), panel_(panel), first_(first), rows_(last - first), blocks_(blocks_of(p.finish)),
        parts_((rows_ + rows_of(p.finish) - 1) / rows_of(p.finish)) {}

  // A panel comes from memory once, for the first part of the rows.
  void run(Scratch& scratch) {
    const size_t lines = p_.w.steps * blocks_;
    if (p_.w.narrow) return run_narrow(scratch, parts_ > 1 ? lines : 0);
    const unit* panel = p_.w.weight + panel_ * lines * 16;
    for (size_t part = 0; part < parts_; part++) multiply_part(part, PlainLines{panel, part ? 0 : kAhead});
  }

 private:
  // `lines` are those to be kept for other parts.
  void run_narrow(Scratch& scratch, size_t lines) {
    if constexpr (Op::per_unit == 2) {
      unit* wide = scratch.units.at_least((lines + kGroupLines * kGroupLines) * 16);
      multiply_part(0, NarrowLines{Widening(*p_.w.narrow, panel_), wide, lines > 0});
      for (size_t part = 1; part < parts_; part++) multiply_part(part, PlainLines{wide, 0});
    }
  }

  template <class Lines>
  void multiply_part(size_t part, Lines lines) {
    const size_t from = first_ + rows_ * part / parts_, to = first_ + rows_ * (part + 1) / parts_;
    const unit* x = p_.x + from * p_.w.steps;
    const float* there = (const float*)p_.y + panel_ * kPlainBlocks * 16;
    if (p_.finish == Finish::add && parts_ > 1)
      for (size_t row = from; row < to; row++) fetch(there + row * p_.y_stride, kPlainBlocks * kLine);
    if (p_.finish == Finish::gated)
      multiply_rows<Op, kGateRows, kGateBlocks>((int)(to - from), x, p_.w.steps, lines, tile_);
    else
      multiply_rows<Op, kPlainRows, kPlainBlocks>((int)(to - from), x, p_.w.steps, lines, tile_);
    finish_tile<Op>(p_, panel_, tile_, from, to - from);
  }

  const Product& p_;
  const int panel_;
  const size_t first_, rows_, blocks_, parts_;
  alignas(64) float tile_[std::max(kPlainRows * kPlainBlocks * 16, kGateRows * kGateBlocks * 16)];
};

// What of a core's own cache blocks of rows may take up.
inline size_t cache_for_rows() {
#ifdef _SC_LEVEL2_CACHE_SIZE
  static const long known = sysconf(_SC_LEVEL2_CACHE_SIZE);
#else
  constexpr long known = 0;
#endif
  return (size_t)(known > 0 ? known : 512 << 10) / 4 * 3;
}

// How a product is cut into tasks: blocks of rows that stay in a core's cache, and runs of panels that are worth a claim. Few and large
// blocks, since each widens the panels for itself, but enough for all threads.
struct Cut {
  size_t row_blocks, panel_runs;
  int run;
  size_t block;

  Cut(const Product& p, size_t threads) {
    const size_t row_bytes = (size_t)p.w.steps * 4, panel_bytes = row_bytes * 16 * blocks_of(p.finish), panels = p.panels();
    const size_t fitting = std::max<size_t>(1, cache_for_rows() / std::max<size_t>(1, row_bytes) / kBlockRows) * kBlockRows;
    row_blocks = std::max((p.rows + fitting - 1) / fitting, std::min(p.rows / kManyRows, 4 * threads / std::max<size_t>(1, panels)));
    // Whole register blocks of either kind, except in the last one.
    block = row_blocks > 1 ? rounded_up((p.rows + row_blocks - 1) / row_blocks, kBlockRows) : std::max<size_t>(1, p.rows);
    row_blocks = (p.rows + block - 1) / block;
    const size_t worth = (96u << 10) / (panel_bytes * (1 + block / 32)), even = panels * row_blocks / (threads * 4);
    run = (int)std::max<size_t>(1, std::min(worth, even));
    panel_runs = (panels + run - 1) / run;
  }
  size_t tasks() const { return row_blocks * panel_runs; }

 private:
  static constexpr size_t kBlockRows = 24;  // a multiple of all that are multiplied at a time
  static constexpr size_t kManyRows = 96;   // a block of fewer is not worth widening a panel for
};

template <class Op>
void run_task(const Product& p, const Cut& cut, uint32_t task, Scratch& scratch) {
  const size_t first = task / cut.panel_runs * cut.block;
  const size_t last = first + cut.block < p.rows ? first + cut.block : p.rows;
  const int from = (int)(task % cut.panel_runs) * cut.run, to = from + cut.run < p.panels() ? from + cut.run : p.panels();
  for (int panel = from; panel < to; panel++) PanelProduct<Op>(p, panel, first, last).run(scratch);
}

}  // namespace tgi
