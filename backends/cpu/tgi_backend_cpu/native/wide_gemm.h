// GEMMs of bfloat16 and more than a few rows, where the processor has no instructions for bfloat16.
//
// Weights and rows are widened to floats once, instead of before each multiplication. Rows are widened once per thread and GEMM. A panel is
// widened a part at a time: it stays in the first cache while all rows pass by, and sums wait in memory meanwhile. An element is the same
// chain of additions as in gemm.h, so its bits are equal for any number of rows.
#pragma once

#include "gemm.h"

namespace tgi {

// Rows that are multiplied at a time with one block, or with all blocks of a panel where there are registers for it.
template <int BLOCKS>
constexpr int kWideRows = kRegisters == 32 ? 24 / BLOCKS : 6;
template <int BLOCKS>
constexpr int kWideBlocks = kRegisters == 32 ? BLOCKS : 1;
constexpr int kWideSteps = 128;  // of a part; a multiple of every layout's kSteps
constexpr size_t kWideFrom = kRegisters == 32 ? 16 : 8;  // rows from which it pays

template <class Op>
constexpr bool kWidens = Op::per_unit == 2 && Op::passes == 2 && !kTiles;

// Whether this is the faster way to multiply `rows` rows by a weight, if the Op widens.
inline bool widens(const Linear& w, size_t rows) { return rows >= kWideFrom && (w.layout == Layout::dense || w.layout == Layout::bf12); }

// Rows first…last-1 of x in floats, [part of steps][row][elements], padded with zeros. Kept for the other tasks of a phase.
inline const float* wide_rows(const Gemm& p, size_t first, size_t last, Scratch& scratch, uint64_t phase) {
  const size_t rows = last - first, steps = p.w.steps;
  float* wide = scratch.wide_rows.at_least(rounded_up(rows * steps * 2, 16));
  if (scratch.has_wide_rows.is_there(phase, first)) return wide;
  float* to = wide;
  for (size_t from = 0; from < steps; from += kWideSteps) {
    const size_t some = std::min<size_t>(kWideSteps, steps - from);
    for (size_t row = first; row < last; row++, to += 2 * some) {
      const bf16* x = (const bf16*)(p.x + row * steps + from);
      for (size_t i = 0; i < 2 * some; i += 16) store_first(to + i, load_first(x + i, (int)(2 * some - i)), (int)(2 * some - i));
    }
  }
  return wide;
}

// A panel times rows first…last-1 of x, which are in `wide`.
template <class Op, int BLOCKS, class Lines>
class WidePanel {
  static constexpr int kAtOnce = kWideBlocks<BLOCKS>, kPasses = BLOCKS / kAtOnce;
  static constexpr size_t kWidth = 16 * kAtOnce, kPartElements = 2 * kWideSteps * kWidth;

 public:
  WidePanel(const Gemm& p, int panel, size_t first, size_t last, const float* wide)
      : p_(p), panel_(panel), first_(first), rows_(last - first), wide_(wide), groups_((rows_ + kWideRows<BLOCKS> - 1) / kWideRows<BLOCKS>) {}

  void run(Lines lines, Scratch& scratch) {
    float* part = scratch.wide_part.at_least(kPasses * kPartElements + kPasses * rows_ * kWidth);
    sums_ = part + kPasses * kPartElements;
    const float* x = wide_;
    for (int from = 0; from < p_.w.steps; from += kWideSteps) {
      const int steps = std::min(kWideSteps, p_.w.steps - from);
      widen(lines, steps, part);
      // The next part is read from memory while this one is multiplied: widening it would otherwise wait for every line.
      const size_t ahead = Lines::kLineBytes * BLOCKS * steps / (groups_ * kPasses);
      const char* next = lines.next_line();
      for (size_t g = 0; g < groups_; g++) {
        const size_t begin = rows_ * g / groups_, end = rows_ * (g + 1) / groups_;
        for (int pass = 0; pass < kPasses; pass++, next += ahead)
          add_rows<kWideRows<BLOCKS>>((int)(end - begin), sums_of(pass, begin), x + begin * 2 * steps, part + pass * kPartElements, 2 * steps,
                                      from == 0, {next, ahead / (2 * steps)});
      }
      x += rows_ * 2 * steps;
    }
    finish();
  }

 private:
  float* sums_of(int pass, size_t row) const { return sums_ + (pass * rows_ + row) * kWidth; }

  // Widens the next `steps` steps to [pass][element][block][16].
  void widen(Lines& lines, int steps, float* part) const {
    for (int k = 0; k < steps; k += Lines::kSteps) {
      const unit* line = lines.template next<BLOCKS>();
      for (int s = 0; s < std::min(steps - k, Lines::kSteps); s++)
        TGI_UNROLL for (int r = 0; r < BLOCKS; r++) {
          const u32x16 both = load_units(line + (s * BLOCKS + r) * 16);
          float* to = part + r / kAtOnce * kPartElements + (size_t)(k + s) * 2 * kWidth + r % kAtOnce * 16;
          store(to, even_half(both));
          store(to + kWidth, odd_half(both));
        }
    }
  }

  // What to prefetch during a multiplication: `bytes` with each element of a row.
  struct Ahead {
    const char* from;
    size_t bytes;
  };

  template <int ROWS>
  static void add_rows(int rows, float* sums, const float* x, const float* weight, int depth, bool is_first, Ahead ahead) {
    if constexpr (ROWS > 1) {
      if (rows < ROWS) return add_rows<ROWS - 1>(rows, sums, x, weight, depth, is_first, ahead);
    }
    f32x16 c[ROWS][kAtOnce];
    TGI_UNROLL for (int m = 0; m < ROWS; m++)
        TGI_UNROLL for (int r = 0; r < kAtOnce; r++) c[m][r] = is_first ? zero() : load(sums + m * kWidth + r * 16);
    for (int k = 0; k < depth; k++, weight += kWidth) {
      prefetch(ahead.from + (size_t)k * ahead.bytes);
      f32x16 b[kAtOnce];
      TGI_UNROLL for (int r = 0; r < kAtOnce; r++) b[r] = load(weight + r * 16);
      TGI_UNROLL for (int m = 0; m < ROWS; m++) {
        const f32x16 a = splat(x[(size_t)m * depth + k]);
        TGI_UNROLL for (int r = 0; r < kAtOnce; r++) c[m][r] = Op::madd(c[m][r], a, b[r]);
      }
    }
    TGI_UNROLL for (int m = 0; m < ROWS; m++) TGI_UNROLL for (int r = 0; r < kAtOnce; r++) store(sums + m * kWidth + r * 16, c[m][r]);
  }

  void finish() const {
    for (size_t row = 0; row < rows_; row++) {
      f32x16 c[1][BLOCKS];
      TGI_UNROLL for (int r = 0; r < BLOCKS; r++) c[0][r] = load(sums_of(r / kAtOnce, row) + r % kAtOnce * 16);
      apply_any_epilogue<Op>(p_, panel_, first_ + row, c);
    }
  }

  const Gemm& p_;
  const int panel_;
  const size_t first_, rows_;
  const float* wide_;
  const size_t groups_;
  float* sums_ = nullptr;
};

// Panels from…to-1 times rows first…last-1.
template <class Op, int BLOCKS>
void multiply_wide_panels(const Gemm& p, int from, int to, size_t first, size_t last, const float* wide, Scratch& scratch) {
  unit* room = scratch.units.at_least(Bf12Lines::kRoom * 16);
  for (int panel = from; panel < to; panel++) {
    if (p.w.layout == Layout::bf12)
      WidePanel<Op, BLOCKS, Bf12Lines>(p, panel, first, last, wide).run(Bf12Lines(p.w.data, panel, room, false, 0), scratch);
    else
      WidePanel<Op, BLOCKS, DenseLines>(p, panel, first, last, wide)
          .run(DenseLines((const unit*)p.w.data + (size_t)panel * p.w.steps * BLOCKS * 16, 0), scratch);
  }
}

template <class Op>
void multiply_wide(const Gemm& p, int from, int to, size_t first, size_t last, Scratch& scratch, uint64_t phase) {
  const float* wide = wide_rows(p, first, last, scratch, phase);
  if (in_pairs(p.epilogue)) return multiply_wide_panels<Op, kPairBlocks>(p, from, to, first, last, wide, scratch);
  multiply_wide_panels<Op, kPlainBlocks>(p, from, to, first, last, wide, scratch);
}

}  // namespace tgi
