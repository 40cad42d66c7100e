// GEMMs in which both sides are integers: weights of eight or four bits with a scale, and maybe an offset, per output or per group of inputs,
// and rows of x that are rounded to eight bits with a scale per group.
//
// Sums of a group are exact integers, by whichever instruction; the rest is the same float32 arithmetic in the same order. So the bits are
// those of every other number of rows and instruction set.
//
// A panel is [quad of inputs][block][16 outputs][4] bytes, code + 128, since both VPDPBUSD and TDPBSUD multiply unsigned by signed bytes;
// 128 times the sum of the row's integers is subtracted. With four bits, a line has two quads: the first one's codes + 8 in the low nibbles,
// the second one's in the high ones. Scales are [panel][group][block][16], as in codes.h; zero points are [panel][group][block][16] bytes.
#pragma once

#include "simd_integers.h"
#include "tile_gemm.h"

namespace tgi {

constexpr size_t kRowGroup = 128;   // inputs of a row that share a scale where the weight has one scale per output
constexpr size_t tiles_pay(int bits) { return bits == 4 ? 11 : 5; }  // rows from which tiles are faster; measured on Sapphire Rapids
constexpr size_t kWordQuads = 64;  // of a row, whose sum fits into 16 bits: 4 · 64 · 127
constexpr int zero_of(int bits) { return 1 << (bits - 1); }  // what is added to codes

// The header of such a weight; places are in bytes from it. `group` is in quads.
struct Int8 {
  uint64_t panel_bytes, scale_bytes, scales_at, zero_bytes, zeros_at, quads, group, scale_groups, has_offsets, half_scales;

  const unit* panel(size_t index) const { return (const unit*)((const char*)(this + 1) + kLine - sizeof(Int8) % kLine + index * panel_bytes); }
  const char* scales(size_t index) const { return (const char*)this + scales_at + index * scale_bytes; }
  const int8_t* zeros(size_t index) const { return (const int8_t*)this + zeros_at + index * zero_bytes; }
};

class Int8Encoder {
 public:
  explicit Int8Encoder(const UnpackedCodes& from) : from_(from) {
    head_.quads = (from.steps + 1) / 2, head_.has_offsets = from.offsets != nullptr;
    head_.group = from.groups > 1 ? from.group_steps / 2 : kRowGroup / 4, head_.scale_groups = from.groups;
    head_.panel_bytes = (from.bits == 4 ? (head_.quads + 1) / 2 : head_.quads) * from.blocks * kLine;
    head_.half_scales = fit_halves(from), head_.scale_bytes = scale_bytes_of(from, head_.half_scales);
    head_.zero_bytes = from.zeros ? from.groups * from.blocks * 16 : 0;
    head_.scales_at = rounded_up(sizeof head_ + kLine, kLine) + from.panels * head_.panel_bytes;
    head_.zeros_at = rounded_up(head_.scales_at + from.panels * head_.scale_bytes, kLine);
  }

  size_t size() const { return head_.zeros_at + from_.panels * head_.zero_bytes; }

  void run(Pool& pool, char* to) {
    memcpy(to, &head_, sizeof head_);
    const auto work = [&](uint32_t panel, Scratch&, uint64_t) { write(*(const Int8*)to, panel); };
    pool.run({phase_of(Part::other, work, from_.panels)});
  }

 private:
  void write(const Int8& head, size_t panel) const {
    const int16_t* code = from_.codes + panel * from_.steps * from_.blocks * 32;
    uint8_t* to = (uint8_t*)head.panel(panel);
    memset(to, from_.bits == 4 ? 0 : zero_of(8), head.panel_bytes);
    for (size_t step = 0; step < from_.steps; step++)
      for (size_t at = 0; at < from_.blocks * 16; at++, code += 2)
        for (size_t word = 0; word < 2; word++) write_one(to, step / 2, at, step % 2 * 2 + word, code[word] + zero_of(from_.bits));
    write_scales(from_, panel, head.half_scales, (char*)head.scales(panel));
    if (from_.zeros) write_zeros(from_, panel, 0, (int8_t*)head.zeros(panel));
  }

  void write_one(uint8_t* to, size_t quad, size_t column, size_t byte, int code) const {
    if (from_.bits == 8)
      to[(quad * from_.blocks * 16 + column) * 4 + byte] = (uint8_t)code;
    else
      to[(quad / 2 * from_.blocks * 16 + column) * 4 + byte] |= (uint8_t)(code << (quad % 2 * 4));
  }

  const UnpackedCodes from_;
  Int8 head_ = {};
};

// Rows of x in integers: tiles [16 rows][16 quads], and of each row and group the scale and the sum of its integers.
struct Int8Rows {
  const unit* tiles;
  const float* scales;
  const int32_t* sums;
};

// Kept for the other tasks of a phase, as row_tiles are.
inline Int8Rows int8_rows(const Gemm& p, const TileSteps& depth, size_t first, size_t last, Scratch& scratch, uint64_t phase) {
  const size_t rows = last - first, whole = (rows + kTileRows - 1) / kTileRows * kTileRows, inputs = 2 * (size_t)p.w.steps;
  unit* tiles = scratch.tiles.at_least(whole * depth.tiles() * kTileSteps);
  float* scales = scratch.tile_scales.at_least(2 * rows * depth.groups);
  int32_t* sums = (int32_t*)(scales + rows * depth.groups);
  if (scratch.has_tiles.is_there(phase, first)) return {tiles, scales, sums};
  memset(tiles, 0, whole * depth.tiles() * kTileSteps * sizeof(unit));
  int8_t* bytes = (int8_t*)scratch.units.at_least(rounded_up(depth.group * 4, kTileBytes) / sizeof(unit));
  for (size_t r = 0; r < rows; r++)
    for (size_t g = 0; g < depth.groups; g++) {
      const size_t from = g * depth.group * 4, count = std::min(inputs, from + depth.group * 4) - from;
      memset(bytes + count / kTileBytes * kTileBytes, 0, count % kTileBytes ? kTileBytes : 0);
      scales[r * depth.groups + g] = round_to_bytes((const bf16*)(p.x + (first + r) * p.w.steps) + from, (int)count, bytes);
      int32_t total = 0;
      for (size_t i = 0; i < count; i++) total += bytes[i];
      sums[r * depth.groups + g] = total;
      unit* to = tiles + (r / kTileRows * depth.tiles() + g * depth.group_tiles) * kTileUnits + r % kTileRows * kTileSteps;
      for (size_t t = 0; t < depth.tiles_of(g); t++) memcpy(to + t * kTileUnits, bytes + t * kTileBytes, kTileBytes);
    }
  return {tiles, scales, sums};
}

// Rows of x times one panel of BLOCKS blocks of codes of BITS bits.
template <class Op, int BLOCKS, int BITS>
class Int8Panel {
  static constexpr size_t kWidth = 16 * BLOCKS;
  static constexpr size_t kQuads = BITS == 4 ? kNibbleProducts : 1;  // that are multiplied between two checks for the end
  static constexpr int kAtOnce = kRegisters == 32 ? 8 : 4 / BLOCKS;  // rows whose sums fit into the registers

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
    return x_.tiles + (row / kTileRows * depth_.tiles() + g * depth_.group_tiles) * kTileUnits;
  }

  template <int ROWS>
  void some_rows(size_t row) const {
    f32x16 totals[ROWS][BLOCKS];
    TGI_UNROLL for (int r = 0; r < ROWS; r++) TGI_UNROLL for (int b = 0; b < BLOCKS; b++) totals[r][b] = zero();
    for (size_t g = 0; g < depth_.groups; g++) {
      u32x16 sums[ROWS][BLOCKS];
      add_up(g, row, sums);
      add_group(g, row, sums, totals);
    }
    apply_any_epilogue<Op>(p_, panel_, first_ + row, totals);
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

  // All rows, up to 32 at a time; totals wait in memory from one group to the next.
  void run_tiles(Scratch& scratch) const {
    const size_t padded = rounded_up(rows_, kPassRows);
    float* totals = scratch.floats.at_least(padded * kWidth);
    unit* sums = scratch.units.at_least(kPassRows * kWidth + depth_.group_tiles * kTileUnits * BLOCKS);
    use_gemm_tiles(rows_);
    memset(totals, 0, padded * kWidth * sizeof(float));
    for (size_t g = 0; g < depth_.groups; g++) {
      const unit* w = whole_tiles(g, sums + kPassRows * kWidth);
      for (size_t row = 0; row < rows_; row += kPassRows) {
        tile_sums(g, row, w, sums);
        for (size_t r = row; r < std::min(rows_, row + kPassRows); r++) {
          u32x16 c[1][BLOCKS];
          f32x16 own[1][BLOCKS];
          TGI_UNROLL for (int b = 0; b < BLOCKS; b++)
              c[0][b] = load_units(sums + (r - row) * kWidth + b * 16), own[0][b] = load(totals + r * kWidth + b * 16);
          add_group(g, r, c, own);
          TGI_UNROLL for (int b = 0; b < BLOCKS; b++) store(totals + r * kWidth + b * 16, own[0][b]);
        }
      }
    }
    for (size_t row = 0; row < rows_; row++) {
      f32x16 c[1][BLOCKS];
      TGI_UNROLL for (int b = 0; b < BLOCKS; b++) c[0][b] = load(totals + row * kWidth + b * 16);
      apply_any_epilogue<Op>(p_, panel_, first_ + row, c);
    }
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

  // Adds the integer sums of a group, less its zero points, times their scales, and its offsets times the sum of the row's integers.
  template <int ROWS>
  TGI_INLINED void add_group(size_t g, size_t row, const u32x16 (&sums)[ROWS][BLOCKS], f32x16 (&totals)[ROWS][BLOCKS]) const {
    const size_t scale_group = w_.scale_groups > 1 ? g : 0;
    const Scales scales = {w_.scales(panel_) + scale_group * (w_.scale_bytes / w_.scale_groups), w_.half_scales != 0, BLOCKS};
    const int8_t* zeros = w_.zero_bytes ? w_.zeros(panel_) + scale_group * kWidth : nullptr;
    TGI_UNROLL for (int b = 0; b < BLOCKS; b++) {
      const f32x16 scale = scales.scale(b);
      const u32x16 middle = splat_unit(zero_of(BITS)), zero = zeros ? add_units(middle, load_byte_units(zeros + b * 16)) : middle;
      TGI_UNROLL for (int r = 0; r < ROWS; r++) {
        const size_t place = (row + r) * depth_.groups + g;
        totals[r][b] = fma(float_integers(less_zeros(sums[r][b], zero, x_.sums[place])), mul(scale, splat(x_.scales[place])), totals[r][b]);
      }
    }
    if (!w_.has_offsets) return;
    TGI_UNROLL for (int b = 0; b < BLOCKS; b++) {
      const f32x16 offset = scales.offset(b);
      TGI_UNROLL for (int r = 0; r < ROWS; r++) {
        const size_t place = (row + r) * depth_.groups + g;
        totals[r][b] = fma(splat(x_.scales[place] * (float)x_.sums[place]), offset, totals[r][b]);
      }
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

// Panels from…to-1 times rows first…last-1.
template <class Op, int BITS>
void multiply_int8(const Gemm& p, int from, int to, size_t first, size_t last, Scratch& scratch, uint64_t phase) {
  const Int8& weight = *(const Int8*)p.w.data;
  const TileSteps depth(weight.quads, weight.group);
  const Int8Rows x = int8_rows(p, depth, first, last, scratch, phase);
  for (int panel = from; panel < to; panel++)
    in_pairs(p.epilogue) ? Int8Panel<Op, kPairBlocks, BITS>(p, depth, panel, first, last, x).run(scratch)
                         : Int8Panel<Op, kPlainBlocks, BITS>(p, depth, panel, first, last, x).run(scratch);
}

}  // namespace tgi
