// GEMMs over packed weights: y = x · Wᵀ, with an epilogue that runs while the result is in registers.
//
// A packed weight is an array of panels, each of kPlainBlocks blocks of 16 outputs (two for pairs, such as gate and up, side by side):
// [panel][step][block][16] units, so that a GEMM reads it front to back. One copy serves any number of rows. How a panel stores its
// elements is its layout (see layouts.h).
#pragma once

#include <type_traits>

#include "layouts.h"
#include "tiles.h"

namespace tgi {

// Blocks per panel, and rows of x that are multiplied with a panel at a time: as many as fit into the registers. With the tile unit, two
// blocks and two tiles of rows fill its registers.
constexpr int kPlainBlocks = kTiles ? 2 : kRegisters == 32 ? 3 : 1;
constexpr int kPlainRows = kRegisters == 32 ? (kTiles ? 12 : 8) : (kTiles ? 2 : 4);
constexpr int kLowBlocks = 1;
constexpr int kRegisterRows = 2;  // up to which codes are widened in registers
constexpr int kPairBlocks = 2;
constexpr int kPairRows = kRegisters == 32 ? 12 : 2;

enum class Epilogue : int32_t {
  cast = 0,  // to the weights' dtype
  floats = 1,
  add = 2,   // to the floats in y
  gated = 3,  // silu(gate) · up in the weights' dtype; panels hold 16 gates and their 16 ups
  rope = 4,  // rotate heads, in the weights' dtype; panels hold 16 elements of a head's first half and 16 of its second
  low = 5  // floats; panels of one block, for results of few columns (LoRA's A)
};

constexpr bool in_pairs(Epilogue epilogue) { return epilogue == Epilogue::gated || epilogue == Epilogue::rope; }
constexpr int blocks_of(Epilogue epilogue) { return in_pairs(epilogue) ? kPairBlocks : epilogue == Epilogue::low ? kLowBlocks : kPlainBlocks; }
constexpr int rows_of(Epilogue epilogue) { return in_pairs(epilogue) ? kPairRows : kPlainRows; }

// How the blocks of a weight are arranged in panels. Mirrored in interface.py.
enum class Panels : int32_t { plain = 0, pairs = 1, low = 2 };
constexpr int blocks_of(Panels panels) { return panels == Panels::pairs ? kPairBlocks : panels == Panels::low ? kLowBlocks : kPlainBlocks; }

// A packed weight: `columns` counts both members of a pair, `steps` is its depth in units. Mirrored in interface.py.
struct Linear {
  const void* data;
  const float* bias;  // one per column, or null; for pairs in the order of the panels
  Layout layout;
  int32_t columns, steps, unused;
};

// The header of a weight of codes; null for other layouts.
inline const Codes* codes_of(const Linear& w) {
  const bool found = w.layout == Layout::codes4 || w.layout == Layout::codes8 || w.layout == Layout::e4m3 ||
                     w.layout == Layout::levels;
  return found ? (const Codes*)w.data : nullptr;
}

// RoPE over heads of 2 · half elements, with cosines and sines [rows][2][half]. Heads from `heads` on are not rotated.
struct Rope {
  const float* angles;
  int half, heads;
};

// A GEMM: x [rows][steps] units, y [rows][columns] with a stride in elements of y.
struct Gemm {
  Epilogue epilogue;
  Linear w;
  const unit* x;
  void* y;
  size_t y_stride, rows;
  float scale = 1.0f;
  Rope rope = {};
  const float* added = nullptr;  // [rows][added_stride], added before the epilogue; second members of pairs come after all first ones
  size_t added_stride = 0;
  const float* sums = nullptr;  // of x by group, [rows][groups], for weights with offsets (see group_sums)
  size_t groups = 0;

  int columns() const { return epilogue == Epilogue::gated ? w.columns / 2 : w.columns; }
  int panels() const {
    const int width = 16 * blocks_of(epilogue);
    return (w.columns + width - 1) / width;
  }
  // The first column of y that a panel computes, and the distance in columns from one of its blocks to the next.
  size_t first_column(int panel) const {
    if (epilogue != Epilogue::rope) return (size_t)panel * 16 * (epilogue == Epilogue::gated ? 1 : blocks_of(epilogue));
    return (size_t)panel * 16 / rope.half * 2 * rope.half + (size_t)panel * 16 % rope.half;
  }
  size_t next_block() const { return epilogue == Epilogue::rope ? (size_t)rope.half : epilogue == Epilogue::gated ? (size_t)columns() : 16; }
};

// Packs `rows` rows of a weight [rows][depth] as blocks first, first + stride, … of a packed one. Pads with zeros.
template <class Op>
void pack_rows(unit* packed, int blocks, const typename Op::element* weight, int rows, int depth, int first, int stride) {
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
      const typename Op::element* from = weight + (size_t)row * depth;
      const int whole = depth / Op::per_unit;
      for (int k = 0; k < whole; k++) memcpy(&to[(size_t)k * blocks * 16 + lane], from + (size_t)k * Op::per_unit, 4);
      if (whole < steps) {
        unit last = 0;
        memcpy(&last, from + (size_t)whole * Op::per_unit, sizeof(typename Op::element));
        to[(size_t)whole * blocks * 16 + lane] = last;
      }
    }
  }
}

// Applies the epilogue to a panel's columns of the result while they are in registers.
template <class Op, Epilogue EPILOGUE>
class PanelEpilogue {
  static constexpr bool kFloats = EPILOGUE == Epilogue::floats || EPILOGUE == Epilogue::add || EPILOGUE == Epilogue::low;
  static constexpr int kBlocks = blocks_of(EPILOGUE);
  static constexpr int kWidth = EPILOGUE == Epilogue::gated ? 16 : 16 * kBlocks;  // columns of the result
  using T = std::conditional_t<kFloats, float, typename Op::element>;

 public:
  PanelEpilogue(const Gemm& p, int panel, size_t row)
      : to_((T*)p.y + row * p.y_stride + p.first_column(panel)), stride_(p.y_stride), width_(std::min(kWidth, p.columns() - panel * kWidth)),
        scale_(splat(p.scale)), p_(p), row_(row), panel_(panel) {
    const int first = panel * kBlocks * 16, there = in_pairs(EPILOGUE) ? kBlocks * 16 : width_;
    TGI_UNROLL for (int r = 0; r < kBlocks; r++)
        bias_[r] = p.w.bias && there > r * 16 ? load_first(p.w.bias + first + r * 16, there - r * 16) : zero();
    if constexpr (EPILOGUE == Epilogue::rope) {
      const int head = panel * 16 / p.rope.half, within = panel * 16 % p.rope.half;
      half_ = p.rope.half;
      if (head < p.rope.heads) angles_ = p.rope.angles + row * 2 * half_ + within;
    }
  }

  template <int ROWS>
  TGI_INLINED void rows(const f32x16 (&c)[ROWS][kBlocks]) const {
    if (width_ == kWidth && !p_.added) {
      TGI_UNROLL for (int m = 0; m < ROWS; m++) row(m, c[m], to_ + m * stride_);
      return;
    }
    f32x16 copy[ROWS][kBlocks];  // so that only this path keeps them in memory
    TGI_UNROLL for (int m = 0; m < ROWS; m++) TGI_UNROLL for (int r = 0; r < kBlocks; r++) copy[m][r] = c[m][r];
    rows_apart(ROWS, copy);
  }

 private:
  TGI_INLINED void row(int m, const f32x16* c, T* to) const {
    f32x16 v[kBlocks];
    TGI_UNROLL for (int r = 0; r < kBlocks; r++) v[r] = add(c[r], bias_[r]);
    if constexpr (EPILOGUE == Epilogue::gated)
      store(to, mul(Op::silu(v[0]), v[1]));
    else if constexpr (EPILOGUE == Epilogue::rope)
      rotated(angles_ ? angles_ + (size_t)m * 2 * half_ : nullptr, v[0], v[1], to);
    else if constexpr (EPILOGUE == Epilogue::add)
      TGI_UNROLL for (int r = 0; r < kBlocks; r++) store(to + r * 16, fma(v[r], scale_, load(to + r * 16)));
    else
      TGI_UNROLL for (int r = 0; r < kBlocks; r++) store(to + r * 16, mul(v[r], scale_));
  }

  TGI_INLINED void rotated(const float* angles, f32x16 first, f32x16 second, T* to) const {
    if (angles) {
      const f32x16 cosine = load(angles), sine = load(angles + half_), before = first;
      first = sub(mul(before, cosine), mul(second, sine));
      second = add(mul(second, cosine), mul(before, sine));
    }
    store(to, first);
    store(to + half_, second);
  }

  // Row by row: if the panel is not full, or something is added.
  __attribute__((noinline)) void rows_apart(int rows, f32x16 (*c)[kBlocks]) const {
    for (int m = 0; m < rows; m++) {
      if (p_.added) {
        const float* from = p_.added + (row_ + m) * p_.added_stride + p_.first_column(panel_);
        TGI_UNROLL for (int r = 0; r < kBlocks; r++) c[m][r] = add(c[m][r], load(from + r * p_.next_block()));
      }
      if (width_ == kWidth) {
        row(m, c[m], to_ + m * stride_);
        continue;
      }
      T whole[kWidth] = {};
      memcpy(whole, to_ + m * stride_, (size_t)width_ * sizeof(T));
      row(m, c[m], whole);
      memcpy(to_ + m * stride_, whole, (size_t)width_ * sizeof(T));
    }
  }

  T* to_;
  const size_t stride_;
  const int width_;
  const f32x16 scale_;
  f32x16 bias_[kBlocks];
  int half_ = 0;
  const float* angles_ = nullptr;
  const Gemm& p_;
  const size_t row_;
  const int panel_;
};

// Applies the epilogue if it is this one; whether it was.
template <class Op, Epilogue EPILOGUE, int ROWS, int BLOCKS>
TGI_INLINED bool apply_epilogue(const Gemm& p, int panel, size_t row, const f32x16 (&c)[ROWS][BLOCKS]) {
  if constexpr (blocks_of(EPILOGUE) == BLOCKS) {
    if (p.epilogue != EPILOGUE) return false;
    PanelEpilogue<Op, EPILOGUE>(p, panel, row).rows(c);
    return true;
  }
  return false;
}

// Applies the epilogue of a GEMM, whichever it is.
template <class Op, int ROWS, int BLOCKS>
TGI_INLINED void apply_any_epilogue(const Gemm& p, int panel, size_t row, const f32x16 (&c)[ROWS][BLOCKS]) {
  apply_epilogue<Op, Epilogue::gated>(p, panel, row, c) || apply_epilogue<Op, Epilogue::rope>(p, panel, row, c) ||
      apply_epilogue<Op, Epilogue::add>(p, panel, row, c) || apply_epilogue<Op, Epilogue::floats>(p, panel, row, c) ||
      apply_epilogue<Op, Epilogue::low>(p, panel, row, c) || apply_epilogue<Op, Epilogue::cast>(p, panel, row, c);
}

// Adds to c the products of x [ROWS][steps] and the next lines, over steps from…to-1.
template <class Op, int ROWS, int BLOCKS, class Lines>
TGI_INLINED void add_products(f32x16 (&c)[ROWS][BLOCKS], const unit* x, int steps, int from, int to, Lines& lines) {
  for (int k = from; k < to; k += Lines::kSteps) {
    const unit* line = lines.template next<BLOCKS>();
    const int some = Lines::kSteps == 1 ? 1 : std::min(to - k, Lines::kSteps);
    for (int s = 0; s < some; s++) {
      TGI_UNROLL for (int pass = 0; pass < Op::passes; pass++) {
        // Sixteen registers hold the sums and one pass: a compiler that mixes both passes keeps sums in memory, at a third of the speed.
        if (kRegisters == 16 && pass) asm volatile("" ::: "memory");
        decltype(Op::part(u32x16(), 0)) b[BLOCKS];
        TGI_UNROLL for (int r = 0; r < BLOCKS; r++) b[r] = Op::part(load_units(line + (s * BLOCKS + r) * 16), pass);
        TGI_UNROLL for (int m = 0; m < ROWS; m++) {
          const auto a = Op::part(splat_unit(x[(size_t)m * steps + k + s]), pass);
          TGI_UNROLL for (int r = 0; r < BLOCKS; r++) c[m][r] = Op::madd(c[m][r], a, b[r]);
        }
      }
    }
  }
}

// The same for lines that are decoded in registers.
template <class Op, int ROWS, int BLOCKS, class Lines>
TGI_INLINED void add_number_products(f32x16 (&c)[ROWS][BLOCKS], const unit* x, int steps, int from, int to, Lines& lines) {
  for (int k = from; k < to; k += Lines::kSteps)
    lines.template next<BLOCKS>([&](int s, int pass, const f32x16 (&b)[BLOCKS]) {
      if (k + s >= to) return;
      TGI_UNROLL for (int m = 0; m < ROWS; m++) {
        const auto a = Op::part(splat_unit(x[(size_t)m * steps + k + s]), pass);
        TGI_UNROLL for (int r = 0; r < BLOCKS; r++) c[m][r] = Op::madd(c[m][r], a, b[r]);
      }
    });
}

// The same over all steps, where each group of them has scales; `sums`: of ROWS rows by group, null without offsets.
template <class Op, int ROWS, int BLOCKS, class Lines>
TGI_INLINED void add_groups(f32x16 (&c)[ROWS][BLOCKS], const unit* x, int steps, Lines& lines, const float* sums, size_t groups) {
  for (int from = 0; from < steps; from += lines.scales.steps()) {
    f32x16 group[ROWS][BLOCKS];
    TGI_UNROLL for (int m = 0; m < ROWS; m++) TGI_UNROLL for (int r = 0; r < BLOCKS; r++) group[m][r] = zero();
    const int to = std::min(steps, from + lines.scales.steps());
    if constexpr (Lines::kInRegisters)
      add_number_products<Op>(group, x, steps, from, to, lines);
    else
      add_products<Op>(group, x, steps, from, to, lines);
    const Scales scales = lines.scales.template next<BLOCKS>();
    TGI_UNROLL for (int r = 0; r < BLOCKS; r++) {
      const f32x16 scale = scales.scale(r);
      TGI_UNROLL for (int m = 0; m < ROWS; m++) c[m][r] = fma(group[m][r], scale, c[m][r]);
    }
    if (!sums) continue;
    TGI_UNROLL for (int r = 0; r < BLOCKS; r++) {
      const f32x16 offset = scales.offset(r);
      TGI_UNROLL for (int m = 0; m < ROWS; m++) c[m][r] = fma(splat(sums[m * groups]), offset, c[m][r]);
    }
    sums++;
  }
}

// Rows row…row+ROWS-1 of x times one panel.
template <class Op, int ROWS, int BLOCKS, class Lines>
void multiply(const Gemm& p, int panel, size_t row, Lines lines) {
  f32x16 c[ROWS][BLOCKS];
  TGI_UNROLL for (int m = 0; m < ROWS; m++) TGI_UNROLL for (int r = 0; r < BLOCKS; r++) c[m][r] = zero();
  const unit* x = p.x + row * p.w.steps;
  if constexpr (Lines::kGrouped)
    add_groups<Op>(c, x, p.w.steps, lines, p.sums ? p.sums + row * p.groups : nullptr, p.groups);
  else
    add_products<Op>(c, x, p.w.steps, 0, p.w.steps, lines);
  apply_any_epilogue<Op>(p, panel, row, c);
}

template <class Op, int ROWS, int BLOCKS, class Lines>
void multiply_rows(int rows, const Gemm& p, int panel, size_t row, Lines lines) {
  if constexpr (ROWS > 1) {
    if (rows < ROWS) return multiply_rows<Op, ROWS - 1, BLOCKS>(rows, p, panel, row, lines);
  }
  multiply<Op, ROWS, BLOCKS>(p, panel, row, lines);
}

// Rows first…last-1 of the result, of one panel.
template <class Op>
class PanelGemm {
 public:
  PanelGemm(const Gemm& p, int panel, size_t first, size_t last)
      : p_(p), panel_(panel), first_(first), rows_(last - first), blocks_(blocks_of(p.epilogue)),
        parts_((rows_ + rows_of(p.epilogue) - 1) / rows_of(p.epilogue)) {}

  // The first rows read the panel from memory, the others from the cache.
  void run(Scratch& scratch) {
    switch (p_.w.layout) {
      case Layout::dense:
        return run_dense();
      case Layout::bf12:
        return run_decoded<Bf12Lines>(scratch);
      case Layout::codes4:
        return run_decoded<CodeLines<Code::int4>>(scratch);
      case Layout::codes8:
        return run_decoded<CodeLines<Code::int8>>(scratch);
      case Layout::e4m3:
        return run_decoded<CodeLines<Code::e4m3>>(scratch);
      case Layout::levels:
        return run_decoded<CodeLines<Code::level>>(scratch);
      case Layout::int4:  // see int8.h
      case Layout::int8:
        return;
    }
  }

 private:
  void run_dense() {
    const size_t lines = p_.w.steps * blocks_;
    const unit* panel = (const unit*)p_.w.data + panel_ * lines * 16;
    for (size_t part = 0; part < parts_; part++) multiply_part(part, DenseLines(panel, part ? 0 : kAhead));
  }

  // Weights decoded for the first rows are reused for the others.
  template <class Lines>
  void run_decoded(Scratch& scratch) {
    if constexpr (Op::per_unit == 2) {
      if constexpr (Lines::kGrouped && Op::passes == 2)
        if (rows_ <= kRegisterRows) return multiply_few(typename Lines::InRegisters(p_.w.data, panel_));
      const size_t lines = parts_ > 1 ? p_.w.steps * blocks_ : 0;
      unit* wide = scratch.units.at_least((lines + Lines::kRoom) * 16);
      multiply_part(0, Lines(p_.w.data, panel_, wide, lines > 0));
      for (size_t part = 1; part < parts_; part++) multiply_part(part, typename Lines::Again(p_.w.data, panel_, wide));
    }
  }

  template <class Lines>
  void multiply_few(Lines lines) {
    if (in_pairs(p_.epilogue)) return multiply_rows<Op, kRegisterRows, kPairBlocks>((int)rows_, p_, panel_, first_, lines);
    multiply_rows<Op, kRegisterRows, kPlainBlocks>((int)rows_, p_, panel_, first_, lines);
  }

  template <class Lines>
  void multiply_part(size_t part, Lines lines) {
    const size_t from = first_ + rows_ * part / parts_, to = first_ + rows_ * (part + 1) / parts_;
    const float* there = (const float*)p_.y + panel_ * kPlainBlocks * 16;
    if (p_.epilogue == Epilogue::add && parts_ > 1)
      for (size_t row = from; row < to; row++) fetch(there + row * p_.y_stride, kPlainBlocks * kLine);
    if (in_pairs(p_.epilogue)) return multiply_rows<Op, kPairRows, kPairBlocks>((int)(to - from), p_, panel_, from, lines);
    if constexpr (Op::per_unit == 1 && kLowBlocks != kPlainBlocks)
      if (p_.epilogue == Epilogue::low) return multiply_rows<Op, kPlainRows, kLowBlocks>((int)(to - from), p_, panel_, from, lines);
    multiply_rows<Op, kPlainRows, kPlainBlocks>((int)(to - from), p_, panel_, from, lines);
  }

  const Gemm& p_;
  const int panel_;
  const size_t first_, rows_, blocks_, parts_;
};

}  // namespace tgi
