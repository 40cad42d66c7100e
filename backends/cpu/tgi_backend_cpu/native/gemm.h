// Matrix products over packed weights: y = x · Wᵀ, with what follows it applied while the result is still in the cache.
//
// A packed weight is a row of panels, each of kColumns (or, for gate and up side by side, two) blocks of 16 outputs:
// [panel][step][block][16] units, so that a product reads it front to back. One copy serves any number of rows.
#pragma once

#include "pool.h"
#include "simd.h"

namespace tgi {

// Blocks per panel, and the rows of x that are multiplied with a panel at a time: what fits into the registers.
constexpr int kPlainBlocks = kRegisters == 32 ? 3 : 1;
constexpr int kPlainRows = kRegisters == 32 ? 8 : 4;
constexpr int kGateBlocks = 2;
constexpr int kGateRows = kRegisters == 32 ? 12 : 2;

// How many bytes ahead of the product a weight is fetched, where it comes from memory: 8 rows gain a quarter by it on Zen 5.
constexpr size_t kAhead = 8192;

enum class Finish : int32_t {
  numbers = 0,  // in the weights' dtype
  floats = 1,
  add = 2,   // to floats that are there
  gated = 3  // silu(gate) · up in the weights' dtype; panels hold 16 gates and their 16 ups
};

inline int blocks_of(Finish finish) { return finish == Finish::gated ? kGateBlocks : kPlainBlocks; }
inline int rows_of(Finish finish) { return finish == Finish::gated ? kGateRows : kPlainRows; }

// A product as the kernels see it. Strides are in elements of what they stride over, `steps` in units.
struct Product {
  Finish finish;
  const unit* weight;
  const float* bias;  // one per column of W, or null; for `gated` gates and ups as they lie in the panels
  int columns;        // of the result
  int steps;
  float scale;
  const unit* x;
  size_t x_stride;
  void* y;
  size_t y_stride;
  size_t rows;

  int panels() const {
    const int width = finish == Finish::gated ? 16 : 16 * kPlainBlocks;
    return (columns + width - 1) / width;
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

// ROWS rows of x times one panel → tile [ROWS][BLOCKS · 16]. Fetches `ahead` into the cache, as many bytes as it reads (or none).
template <class Op, int ROWS, int BLOCKS>
void multiply(const unit* x, size_t x_stride, const unit* panel, int steps, const char* ahead, bool fetch, float* tile) {
  const size_t by = fetch ? BLOCKS * 64 : 0;
  f32x16 c[ROWS][BLOCKS];
  TGI_UNROLL for (int m = 0; m < ROWS; m++) TGI_UNROLL for (int r = 0; r < BLOCKS; r++) c[m][r] = zero();
  for (int k = 0; k < steps; k++) {
    TGI_UNROLL for (int pass = 0; pass < Op::passes; pass++) {
      decltype(Op::part(u32x16(), 0)) b[BLOCKS];
      TGI_UNROLL for (int r = 0; r < BLOCKS; r++) b[r] = Op::part(load_units(panel + ((size_t)k * BLOCKS + r) * 16), pass);
      TGI_UNROLL for (int m = 0; m < ROWS; m++) {
        const auto a = Op::part(splat_unit(x[m * x_stride + k]), pass);
        TGI_UNROLL for (int r = 0; r < BLOCKS; r++) c[m][r] = Op::madd(c[m][r], a, b[r]);
      }
    }
    TGI_UNROLL for (int r = 0; r < BLOCKS; r++) prefetch(ahead + r * 64);
    ahead += by;
  }
  TGI_UNROLL for (int m = 0; m < ROWS; m++) TGI_UNROLL for (int r = 0; r < BLOCKS; r++)
      store(tile + (m * BLOCKS + r) * 16, c[m][r]);
}

template <class Op, int ROWS, int BLOCKS>
void multiply_rows(int rows, const unit* x, size_t x_stride, const unit* panel, int steps, const char* ahead, bool fetch, float* tile) {
  if constexpr (ROWS > 1) {
    if (rows < ROWS) return multiply_rows<Op, ROWS - 1, BLOCKS>(rows, x, x_stride, panel, steps, ahead, fetch, tile);
  }
  multiply<Op, ROWS, BLOCKS>(x, x_stride, panel, steps, ahead, fetch, tile);
}

template <class T>
void finish_row(const Product& p, int panel, const float* tile, size_t row) {
  const f32x16 scale = splat(p.scale);
  if (p.finish == Finish::gated) {
    const int column = panel * 16, width = p.columns - column < 16 ? p.columns - column : 16;
    f32x16 gate = load(tile), up = load(tile + 16);
    if (p.bias) {
      gate = add(gate, load(p.bias + panel * 32));
      up = add(up, load(p.bias + panel * 32 + 16));
    }
    store_first((T*)p.y + row * p.y_stride + column, mul(silu(gate), up), width);
    return;
  }
  for (int r = 0; r < kPlainBlocks; r++) {
    const int column = (panel * kPlainBlocks + r) * 16, width = p.columns - column < 16 ? p.columns - column : 16;
    if (width <= 0) return;
    f32x16 value = load(tile + r * 16);
    if (p.bias) value = add(value, load_first(p.bias + column, width));
    float* floats = (float*)p.y + row * p.y_stride + column;
    if (p.finish == Finish::numbers)
      store_first((T*)p.y + row * p.y_stride + column, mul(value, scale), width);
    else if (p.finish == Finish::floats)
      store_first(floats, mul(value, scale), width);
    else
      store_first(floats, fma(value, scale, load_first(floats, width)), width);
  }
}

// Rows first…last-1 of the result, of one panel.
template <class Op>
void panel_product(const Product& p, int panel, size_t first, size_t last) {
  const int blocks = blocks_of(p.finish), most = rows_of(p.finish);
  const size_t size = (size_t)p.steps * blocks * 16;
  const unit* weight = p.weight + panel * size;
  const size_t parts = (last - first + most - 1) / most;
  // A panel comes from memory once. With one part it is fetched shortly before it is read, with several the first part fetches the next.
  const char* ahead = (const char*)weight + (parts == 1 ? kAhead : size * 4);
  alignas(64) float tile[kPlainRows * kPlainBlocks * 16 > kGateRows * 32 ? kPlainRows * kPlainBlocks * 16 : kGateRows * 32];
  for (size_t part = 0; part < parts; part++) {
    const size_t from = first + (last - first) * part / parts, to = first + (last - first) * (part + 1) / parts;
    const unit* x = p.x + from * p.x_stride;
    if (p.finish == Finish::gated)
      multiply_rows<Op, kGateRows, kGateBlocks>((int)(to - from), x, p.x_stride, weight, p.steps, ahead, part == 0, tile);
    else
      multiply_rows<Op, kPlainRows, kPlainBlocks>((int)(to - from), x, p.x_stride, weight, p.steps, ahead, part == 0, tile);
    for (size_t row = from; row < to; row++) finish_row<typename Op::number>(p, panel, tile + (row - from) * blocks * 16, row);
  }
}

// How a product is cut into tasks: blocks of rows that stay in a core's cache, and runs of panels that are worth a claim.
struct Cut {
  size_t row_blocks, panel_runs;
  int run;
  size_t block;

  Cut(const Product& p, size_t threads) {
    const size_t row_bytes = (size_t)p.steps * 4, panel_bytes = row_bytes * 16 * blocks_of(p.finish);
    block = (384u << 10) / (row_bytes ? row_bytes : 1) / 24 * 24;
    if (block < 24) block = 24;
    row_blocks = (p.rows + block - 1) / block;
    // Whole register blocks of either kind, except in the last one.
    block = row_blocks > 1 ? ((p.rows + row_blocks - 1) / row_blocks + 23) / 24 * 24 : (p.rows ? p.rows : 1);
    row_blocks = (p.rows + block - 1) / block;
    run = (int)((96u << 10) / (panel_bytes * (1 + block / 32)));
    const int even = (int)(p.panels() * row_blocks / (threads * 4));
    if (run > even) run = even;
    if (run < 1) run = 1;
    panel_runs = (p.panels() + run - 1) / run;
  }
  size_t tasks() const { return row_blocks * panel_runs; }
};

template <class Op>
void run_task(const Product& p, const Cut& cut, uint32_t task) {
  const size_t first = task / cut.panel_runs * cut.block;
  const size_t last = first + cut.block < p.rows ? first + cut.block : p.rows;
  const int from = (int)(task % cut.panel_runs) * cut.run, to = from + cut.run < p.panels() ? from + cut.run : p.panels();
  for (int panel = from; panel < to; panel++) panel_product<Op>(p, panel, first, last);
}

}  // namespace tgi
