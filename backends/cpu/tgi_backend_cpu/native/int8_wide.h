// GEMMs of weights of four bits and more than a few rows of eight, where the processor has AVX512-VNNI.
//
// Codes are decoded once for all rows, to signed bytes less their zero points. VPDPBUSD multiplies unsigned by signed bytes, so rows have 128
// added to their integers, and sums start from -128 times the sum of a group's codes. A panel is decoded a part at a time: it stays in
// the first cache while all rows pass by, and totals wait in memory meanwhile. The bits are those of int8_gemm.h for any number of rows.
#pragma once

#include "int8.h"

namespace tgi {

#if defined(__AVX512VNNI__)
constexpr bool kHasWideInt8 = true;
#else
constexpr bool kHasWideInt8 = false;
#endif
constexpr size_t kWideInt8Rows = 8;   // rows from which decoding pays
constexpr size_t kWideInt8Part = 96;  // quads of a part of a panel, or a single row group if that is longer
constexpr int kWideInt8Sums = 12;     // of products, and as many of the row group, that fit into the registers

// Rows that are multiplied at a time with a panel of some blocks. 0 if decoding does not pay: never for weights of eight bits.
constexpr size_t wide_int8_rows(int bits, size_t blocks, size_t rows) {
  if (bits == 8 || !kHasWideInt8 || kTiles || rows < kWideInt8Rows) return 0;
  const size_t most = kWideInt8Sums / blocks, parts = (rows + most - 1) / most;
  return (rows + parts - 1) / parts;
}

template <class Op, int BLOCKS>
class WideInt8Panel;

#if defined(__AVX512VNNI__)

// Rows first…last-1 of x times one panel of BLOCKS blocks.
template <class Op, int BLOCKS>
class WideInt8Panel {
  static constexpr size_t kWidth = 16 * BLOCKS;
  static constexpr int kAtOnce = kWideInt8Sums / BLOCKS;  // rows
  static constexpr int kFinished = 4;                     // rows
  static constexpr size_t kByteSum = 8;                   // quads: 8 · 15 fits into a byte

 public:
  WideInt8Panel(const Gemm& p, const TileSteps& depth, int panel, size_t first, size_t last, const Int8Rows& x)
      : p_(p), depth_(depth), w_(*(const Int8*)p.w.data), panel_(panel), first_(first), rows_(last - first), x_(x),
        group_units_((depth.group + (w_.has_offsets ? 3 : 2)) * kWidth) {}

  void run(Scratch& scratch) const {
    const size_t some = std::max<size_t>(1, kWideInt8Part / (w_.row_group * depth_.group));
    float* totals = scratch.floats.at_least(rows_ * kWidth);
    unit* room = scratch.units.at_least(some * w_.row_group * group_units_);
    memset(totals, 0, rows_ * kWidth * sizeof(float));
    for (size_t from = 0; from < x_.row_groups; from += some) {
      const size_t first = from * w_.row_group, end = std::min<size_t>(depth_.groups, (from + some) * w_.row_group);
      decode(first, end, room);
      const size_t last_group = depth_.end_of(end - 1) - (end - 1) * depth_.group;
      const unit* bytes = x_.bytes + first * depth_.group * x_.together;
      const Part part = {x_, bytes, room, from, end - first, w_.row_group, depth_.group, w_.quads, last_group, w_.has_offsets != 0};
      for (size_t row = 0; row < rows_; row += x_.together)
        add_rows<kAtOnce>(std::min(x_.together, rows_ - row), part, row, totals + row * kWidth);
    }
    size_t row = 0;
    for (; row + kFinished <= rows_; row += kFinished) finish_int8<Op, kFinished, BLOCKS>(p_, w_, panel_, first_ + row, totals + row * kWidth);
    for (; row < rows_; row++) finish_int8<Op, 1, BLOCKS>(p_, w_, panel_, first_ + row, totals + row * kWidth);
  }

 private:
  // Whole row groups of a panel, decoded: from row group `first` on, `groups` groups, all but the last of `group` quads.
  struct Part {
    const Int8Rows& x;
    const unit *bytes, *room;  // of x, its first rows'
    size_t first, groups, row_group, group, quads, last_group;
    bool offsets;
  };

  // Of each group: what sums start from, scales as floats, maybe offsets, and bytes [quad][block][16][4].
  void decode(size_t from, size_t to, unit* room) const {
    for (size_t g = from; g < to; g++, room += group_units_) {
      const Int8Group<BLOCKS> group(w_, panel_, g);
      const size_t quads = depth_.end_of(g) - g * depth_.group;
      const unit* w = w_.panel(panel_) + g * depth_.group * kWidth / 2;
      unit* bytes = room + (w_.has_offsets ? 3 : 2) * kWidth;
      TGI_UNROLL for (int b = 0; b < BLOCKS; b++) {
        decode_block(w + b * 16, quads, mul_units(group.zero(4, b), splat_unit(0x01010101)), room + b * 16, bytes + b * 16);
        store((float*)room + kWidth + b * 16, group.scale(b));
        if (w_.has_offsets) store((float*)room + 2 * kWidth + b * 16, group.offset(b));
      }
    }
  }

  static TGI_INLINED void decode_block(const unit* w, size_t quads, u32x16 zero, unit* start, unit* bytes) {
    const u32x16 weight = splat_unit(0x80808080);
    u32x16 sum = splat_unit(0);
    for (size_t q = 0; q < quads;) {
      u32x16 some = splat_unit(0);
      for (const size_t end = std::min(quads, q + kByteSum); q < end; q += 2, w += kWidth, bytes += 2 * kWidth) {
        const u32x16 both = load_units(w), first = sub_bytes(low_nibbles(both), zero), second = sub_bytes(high_nibbles(both), zero);
        prefetch((const char*)w + kAhead);
        store_units(bytes, first), some = add_bytes(some, first);
        if (q + 1 < quads) store_units(bytes + kWidth, second), some = add_bytes(some, second);
      }
      sum = add_byte_products(sum, weight, some);
    }
    store_units(start, sub_units(splat_unit(0), sum));
  }

  template <int ROWS>
  static void add_rows(size_t rows, const Part& part, size_t row, float* totals) {
    if constexpr (ROWS > 1) {
      if (rows < ROWS) return add_rows<ROWS - 1>(rows, part, row, totals);
    }
    part.offsets ? add_part<ROWS, true>(part, row, totals) : add_part<ROWS, false>(part, row, totals);
  }

  // Not inlined, and with copies of what it needs: a compiler that sees more keeps sums in memory.
  template <int ROWS, bool OFFSETS>
  __attribute__((noinline)) static void add_part(const Part& part, size_t row, float* totals) {
    const size_t together = part.x.together, scale_stride = part.x.row_groups, group = part.group, row_group = part.row_group;
    const unit *x = part.bytes + row * part.quads, *room = part.room;
    const float* scale = part.x.scales + row * scale_stride + part.first;
    const int32_t* sum = part.x.sums + row * part.x.groups + part.first * row_group;
    for (size_t left = part.groups; left > 0; scale++) {
      f32x16 sums[ROWS][BLOCKS];
      TGI_UNROLL for (int r = 0; r < ROWS; r++) TGI_UNROLL for (int b = 0; b < BLOCKS; b++) sums[r][b] = zero();
      for (size_t last = left > row_group ? left - row_group : 0; left > last; left--, sum++) {
        u32x16 c[ROWS][BLOCKS];
        TGI_UNROLL for (int r = 0; r < ROWS; r++) TGI_UNROLL for (int b = 0; b < BLOCKS; b++) c[r][b] = load_units(room + b * 16);
        const unit *w = room + (OFFSETS ? 3 : 2) * kWidth, *end = w + (left > 1 ? group : part.last_group) * kWidth;
        for (; w < end; w += kWidth, x += together) {
          u32x16 v[BLOCKS];
          TGI_UNROLL for (int b = 0; b < BLOCKS; b++) v[b] = load_units(w + b * 16);
          TGI_UNROLL for (int r = 0; r < ROWS; r++) {
            const u32x16 integers = splat_unit(x[r]);
            TGI_UNROLL for (int b = 0; b < BLOCKS; b++) add_byte_products_here(c[r][b], integers, v[b]);
          }
        }
        const float* scales = (const float*)room + kWidth;
        TGI_UNROLL for (int r = 0; r < ROWS; r++) TGI_UNROLL for (int b = 0; b < BLOCKS; b++) {
          sums[r][b] = fma(float_integers(c[r][b]), load(scales + b * 16), sums[r][b]);
          if (OFFSETS) sums[r][b] = fma(splat((float)sum[r * part.x.groups]), load(scales + kWidth + b * 16), sums[r][b]);
        }
        room = w;
      }
      TGI_UNROLL for (int r = 0; r < ROWS; r++) TGI_UNROLL for (int b = 0; b < BLOCKS; b++) {
        float* total = totals + r * kWidth + b * 16;
        store(total, fma(sums[r][b], splat(scale[r * scale_stride]), load(total)));
      }
    }
  }

  const Gemm& p_;
  const TileSteps& depth_;
  const Int8& w_;
  const int panel_;
  const size_t first_, rows_;
  const Int8Rows& x_;
  const size_t group_units_;
};

#endif

}  // namespace tgi
