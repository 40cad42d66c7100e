// GEMMs in which both sides are integers, of rows and weights in the form of int8.h: by vectors or by the tile unit.
#pragma once

#include "int8_wide.h"

namespace tgi {

constexpr size_t tiles_pay(int bits) { return bits == 4 ? 11 : 5; }  // rows from which tiles are faster; measured on Sapphire Rapids
constexpr size_t kWordQuads = 64;  // of a row, whose sum fits into 16 bits: 4 · 64 · 127

// Rows of x times one panel of BLOCKS blocks of codes of BITS bits.
template <class Op, int BLOCKS, int BITS>
class Int8Panel {
  static constexpr size_t kWidth = 16 * BLOCKS;
  static constexpr size_t kQuads = BITS == 4 ? kNibbleProducts : 1;  // that are multiplied between two checks for the end
  static constexpr int kAtOnce = kRegisters == 16 ? 4 / BLOCKS : 8;  // rows whose sums fit into the registers

 public:
  Int8Panel(const Gemm& p, const TileSteps& depth, int panel, size_t first, size_t last, const Int8Rows& x)
      : p_(p), depth_(depth), w_(*(const Int8*)p.w.data), panel_(panel), first_(first), rows_(last - first), x_(x) {}

  void run(Scratch& scratch) const {
    if constexpr (kTiles && BLOCKS == kTileBlocks)
      if (rows_ >= tiles_pay(BITS)) return run_tiles(scratch);
    run_rows<kAtOnce>(0);
  }

 private:
  template <int ROWS>
  void run_rows(size_t row) const {
    for (; row + ROWS <= rows_; row += ROWS) some_rows<ROWS>(row);
    if constexpr (ROWS > 1)
      if (row < rows_) run_rows<ROWS / 2>(row);
  }

  const unit* lines(size_t g) const { return w_.panel(panel_) + g * depth_.group * kWidth / (8 / BITS); }
  const unit* tile(size_t g, size_t row) const {
    return x_.bytes + (row / kTileRows * depth_.tiles() + g * depth_.group_tiles) * kTileUnits;
  }

  template <int ROWS>
  TGI_INLINED static void set_zero(f32x16 (&c)[ROWS][BLOCKS]) {
    TGI_UNROLL for (int r = 0; r < ROWS; r++) TGI_UNROLL for (int b = 0; b < BLOCKS; b++) c[r][b] = zero();
  }

  template <int ROWS>
  void some_rows(size_t row) const {
    f32x16 totals[ROWS][BLOCKS];
    set_zero(totals);
    w_.scale_last() ? add_unscaled_groups(row, totals) : add_row_groups(row, totals);
    scale_last(w_, panel_, totals);
    apply_any_epilogue<Op>(p_, panel_, first_ + row, totals);
  }

  template <int ROWS>
  TGI_INLINED void add_row_groups(size_t row, f32x16 (&totals)[ROWS][BLOCKS]) const {
    for (size_t part = 0; part < x_.row_groups; part++) {
      f32x16 sums[ROWS][BLOCKS];
      set_zero(sums);
      for (size_t g = part * w_.row_group; g < std::min<size_t>(depth_.groups, (part + 1) * w_.row_group); g++) {
        u32x16 products[ROWS][BLOCKS];
        add_up(g, row, products);
        add_group(g, row, products, sums);
      }
      TGI_UNROLL for (int r = 0; r < ROWS; r++) TGI_UNROLL for (int b = 0; b < BLOCKS; b++)
          totals[r][b] = fma(sums[r][b], splat(x_.scale(row + r, part)), totals[r][b]);
    }
  }

  template <int ROWS>
  TGI_INLINED void add_unscaled_groups(size_t row, f32x16 (&totals)[ROWS][BLOCKS]) const {
    for (size_t g = 0; g < depth_.groups; g++) {
      u32x16 products[ROWS][BLOCKS];
      add_up(g, row, products);
      TGI_UNROLL for (int b = 0; b < BLOCKS; b++) {
        const u32x16 zero = Int8Group<BLOCKS>(w_, panel_, g).zero(BITS, b);
        TGI_UNROLL for (int r = 0; r < ROWS; r++)
            totals[r][b] = fma(float_integers(less_zeros(products[r][b], zero, x_.sum(row + r, g))), splat(x_.scale(row + r, g)), totals[r][b]);
      }
    }
  }

  // Integer sums of a group. The first rows read the panel from memory, the others from the cache.
  template <int ROWS>
  TGI_INLINED void add_up(size_t g, size_t row, u32x16 (&c)[ROWS][BLOCKS]) const {
    const unit* w = lines(g);
    const unit* x[ROWS];
    TGI_UNROLL for (int r = 0; r < ROWS; r++) {
      x[r] = tile(g, row + r) + (row + r) % kTileRows * kTileSteps;
      TGI_UNROLL for (int b = 0; b < BLOCKS; b++) c[r][b] = splat_unit(0);
    }
    const size_t quads = depth_.end_of(g) - g * depth_.group, ahead = row ? 0 : kAhead;
    for (size_t q = 0; q < quads; q += kQuads) {
      const size_t at = q / kTileSteps * kTileUnits + q % kTileSteps, some = std::min(quads - q, kQuads);
      if constexpr (BITS == 4)
        add_nibbles(c, w, x, at, some, ahead), w += kQuads / 2 * kWidth;
      else
        add_bytes(c, w, x, at, ahead), w += kWidth;
    }
  }

  // Adds the products of the quads of x from `at` on.
  template <int ROWS>
  TGI_INLINED void add_bytes(u32x16 (&c)[ROWS][BLOCKS], const unit* w, const unit* const (&x)[ROWS], size_t at, size_t ahead) const {
    u32x16 v[BLOCKS];
    TGI_UNROLL for (int b = 0; b < BLOCKS; b++) v[b] = load_units(w + b * 16), prefetch((const char*)(w + b * 16) + ahead);
    TGI_UNROLL for (int r = 0; r < ROWS; r++) TGI_UNROLL for (int b = 0; b < BLOCKS; b++)
        c[r][b] = add_byte_products(c[r][b], v[b], splat_unit(x[r][at]));
  }

  // Beyond the last quad x is zero.
  template <int ROWS>
  TGI_INLINED void add_nibbles(u32x16 (&c)[ROWS][BLOCKS], const unit* w, const unit* const (&x)[ROWS], size_t at, size_t quads,
                               size_t ahead) const {
    u32x16 words[ROWS][BLOCKS];
    TGI_UNROLL for (int r = 0; r < ROWS; r++) TGI_UNROLL for (int b = 0; b < BLOCKS; b++) words[r][b] = kWordsAreUnits ? c[r][b] : splat_unit(0);
    for (size_t q = 0; q < quads; q += 2, at += 2, w += kWidth)
      TGI_UNROLL for (int b = 0; b < BLOCKS; b++) {
        const u32x16 both = load_units(w + b * 16), first = low_nibbles(both), second = high_nibbles(both);
        prefetch((const char*)(w + b * 16) + ahead);
        TGI_UNROLL for (int r = 0; r < ROWS; r++) {
          words[r][b] = add_nibble_products(words[r][b], first, splat_unit(x[r][at]));
          words[r][b] = add_nibble_products(words[r][b], second, splat_unit(x[r][at + 1]));
        }
      }
    TGI_UNROLL for (int r = 0; r < ROWS; r++) TGI_UNROLL for (int b = 0; b < BLOCKS; b++)
        c[r][b] = kWordsAreUnits ? words[r][b] : add_words(c[r][b], words[r][b]);
  }

  // All rows, up to 32 at a time; sums of the row group and totals wait in memory from one group to the next.
  void run_tiles(Scratch& scratch) const {
    const size_t padded = rounded_up(rows_, kPassRows);
    float *totals = scratch.floats.at_least(2 * padded * kWidth), *sums = totals + padded * kWidth;
    unit* products = scratch.units.at_least(kPassRows * kWidth + depth_.group_tiles * kTileUnits * BLOCKS);
    use_gemm_tiles(rows_);
    memset(totals, 0, 2 * padded * kWidth * sizeof(float));
    for (size_t g = 0; g < depth_.groups; g++) {
      const unit* w = whole_tiles(g, products + kPassRows * kWidth);
      const bool ends = g + 1 == depth_.groups || (g + 1) % w_.row_group == 0;
      for (size_t row = 0; row < rows_; row += kPassRows) {
        tile_sums(g, row, w, products);
        for (size_t r = row; r < std::min(rows_, row + kPassRows); r++)
          add_tile_sums(g, r, products + (r - row) * kWidth, sums + r * kWidth, ends ? totals + r * kWidth : nullptr);
      }
    }
    for (size_t row = 0; row < rows_; row++) finish_int8<Op, 1, BLOCKS>(p_, w_, panel_, first_ + row, totals + row * kWidth);
  }

  // Adds a row's integer sums of a group to its sums, and these to its totals if the row group ends.
  TGI_INLINED void add_tile_sums(size_t g, size_t row, const unit* products, float* sums, float* totals) const {
    u32x16 c[1][BLOCKS];
    f32x16 own[1][BLOCKS];
    TGI_UNROLL for (int b = 0; b < BLOCKS; b++) c[0][b] = load_units(products + b * 16), own[0][b] = load(sums + b * 16);
    add_group(g, row, c, own);
    TGI_UNROLL for (int b = 0; b < BLOCKS; b++) store(sums + b * 16, totals ? zero() : own[0][b]);
    if (!totals) return;
    const f32x16 scale = splat(x_.scale(row, g / w_.row_group));
    TGI_UNROLL for (int b = 0; b < BLOCKS; b++) store(totals + b * 16, fma(own[0][b], scale, load(totals + b * 16)));
  }

  // Integer sums [32][BLOCKS · 16] of a group, by the tile unit; `w` are its tiles.
  void tile_sums(size_t g, size_t row, const unit* w, unit* sums) const {
    constexpr size_t kStride = kWidth * sizeof(unit), kLineStride = BLOCKS * kLine;
    const bool second = rows_ > row + kTileRows;
    const unit *x = tile(g, row), *x2 = x + depth_.tiles() * kTileUnits;
    tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
    for (size_t t = 0; t < depth_.tiles_of(g); t++, x += kTileUnits, x2 += kTileUnits, w += kTileSteps * kWidth) {
      tile_load<6>(w, kLineStride), tile_load<7>(w + 16, kLineStride);
      tile_stream<4>(x, kTileBytes);
      tile_bytes<0, 4, 6>(), tile_bytes<1, 4, 7>();
      if (!second) continue;
      tile_stream<5>(x2, kTileBytes);
      tile_bytes<2, 5, 6>(), tile_bytes<3, 5, 7>();
    }
    tile_store<0>(sums, kStride), tile_store<1>(sums + 16, kStride);
    if (second) tile_store<2>(sums + kTileRows * kWidth, kStride), tile_store<3>(sums + kTileRows * kWidth + 16, kStride);
  }

  // The bytes of a group's quads as whole tiles: in `room` if the last one is not, or if they are nibbles.
  const unit* whole_tiles(size_t g, unit* room) const {
    const unit* w = lines(g);
    const size_t quads = depth_.end_of(g) - g * depth_.group, whole = depth_.tiles_of(g) * kTileSteps;
    for (size_t at = 0; at < quads * kWidth * sizeof(unit) / (8 / BITS); at += kLine) prefetch((const char*)w + kTileAhead + at);
    if (BITS == 8 && quads == whole) return w;
    if (BITS == 8) {
      memcpy(room, w, quads * kWidth * sizeof(unit));
    } else {
      for (size_t q = 0; q < quads; q += 2, w += kWidth)
        TGI_UNROLL for (size_t b = 0; b < kWidth; b += 16) {
          const u32x16 both = load_units(w + b);
          store_units(room + q * kWidth + b, low_nibbles(both)), store_units(room + (q + 1) * kWidth + b, high_nibbles(both));
        }
    }
    memset(room + quads * kWidth, 0, (whole - quads) * kWidth * sizeof(unit));
    return room;
  }

  // Adds the integer sums of a group, less its zero points, times their scales, and its offsets times the sums of the rows' integers.
  template <int ROWS>
  TGI_INLINED void add_group(size_t g, size_t row, const u32x16 (&products)[ROWS][BLOCKS], f32x16 (&sums)[ROWS][BLOCKS]) const {
    const Int8Group<BLOCKS> group(w_, panel_, g);
    TGI_UNROLL for (int b = 0; b < BLOCKS; b++) {
      const f32x16 scale = group.scale(b);
      const u32x16 zero = group.zero(BITS, b);
      TGI_UNROLL for (int r = 0; r < ROWS; r++)
          sums[r][b] = fma(float_integers(less_zeros(products[r][b], zero, x_.sum(row + r, g))), scale, sums[r][b]);
    }
    if (!w_.has_offsets) return;
    TGI_UNROLL for (int b = 0; b < BLOCKS; b++) {
      const f32x16 offset = group.offset(b);
      TGI_UNROLL for (int r = 0; r < ROWS; r++) sums[r][b] = fma(splat((float)x_.sum(row + r, g)), offset, sums[r][b]);
    }
  }

  // Products of a row's integers and codes counted from `zero`; the sum of these integers fits into 16 bits unless the group is large.
  TGI_INLINED u32x16 less_zeros(u32x16 sum, u32x16 zero, int32_t inputs) const {
    return w_.group <= kWordQuads ? sub_word_product(sum, zero, inputs) : sub_units(sum, mul_units(zero, splat_unit((unit)inputs)));
  }

  const Gemm& p_;
  const TileSteps& depth_;
  const Int8& w_;
  const int panel_;
  const size_t first_, rows_;
  const Int8Rows& x_;
};

template <class Op, int BLOCKS, int BITS>
void multiply_int8_panel(const Gemm& p, const TileSteps& depth, int panel, size_t first, size_t last, const Int8Rows& x, Scratch& scratch) {
  if constexpr (BITS == 4 && kHasWideInt8)
    if (x.together) return WideInt8Panel<Op, BLOCKS>(p, depth, panel, first, last, x).run(scratch);
  Int8Panel<Op, BLOCKS, BITS>(p, depth, panel, first, last, x).run(scratch);
}

// Panels from…to-1 times rows first…last-1.
template <class Op, int BITS>
void multiply_int8(const Gemm& p, int from, int to, size_t first, size_t last, Scratch& scratch, uint64_t phase) {
  const Int8& weight = *(const Int8*)p.w.data;
  const TileSteps depth(weight.quads, weight.group);
  const size_t together = wide_int8_rows(BITS, blocks_of(p.epilogue), last - first);
  const Int8Rows x = Int8Rounding(p, depth, first, last, together).rows(scratch, phase);
  for (int panel = from; panel < to; panel++)
    in_pairs(p.epilogue) ? multiply_int8_panel<Op, kPairBlocks, BITS>(p, depth, panel, first, last, x, scratch)
                         : multiply_int8_panel<Op, kPlainBlocks, BITS>(p, depth, panel, first, last, x, scratch);
}

}  // namespace tgi
