// Weights of eight or four bits with a scale, and maybe a zero point or an offset, per output or per group of inputs, and rows of x that are
// rounded to eight bits with a scale per row group: 128 inputs, or as many whole groups as fit into them.
//
// Sums of a group are exact integers, by whichever instruction; the rest is the same float32 arithmetic in the same order: over the groups of
// a row group, sum · scale + sum of x · offset, and over the row groups, that times the row's scale. A scale per output comes last. So the
// bits are those of every other number of rows and instruction set.
//
// A panel is [quad of inputs][block][16 outputs][4] bytes, code + 128, since both VPDPBUSD and TDPBSUD multiply unsigned by signed bytes;
// 128 times the sum of the row's integers is subtracted. With four bits, a line has two quads: the first one's codes + 8 in the low nibbles,
// the second one's in the high ones. Scales are [panel][group][block][16], as in codes.h; zero points are [panel][group][block][16] bytes.
#pragma once

#include "simd_integers.h"
#include "tile_gemm.h"

namespace tgi {

constexpr size_t kRowGroup = 128;  // inputs of a row that share a scale
constexpr int zero_of(int bits) { return 1 << (bits - 1); }  // what is added to codes

// The header of such a weight; places are in bytes from it. `group` is in quads, `row_group` in groups.
struct Int8 {
  uint64_t panel_bytes, scale_bytes, scales_at, zero_bytes, zeros_at, quads, group, row_group, scale_groups, has_offsets, half_scales;

  bool scale_last() const { return scale_groups == 1 && !has_offsets; }
  const unit* panel(size_t index) const { return (const unit*)((const char*)(this + 1) + kLine - sizeof(Int8) % kLine + index * panel_bytes); }
  const char* scales(size_t index) const { return (const char*)this + scales_at + index * scale_bytes; }
  const int8_t* zeros(size_t index) const { return (const int8_t*)this + zeros_at + index * zero_bytes; }
};

class Int8Encoder {
 public:
  explicit Int8Encoder(const UnpackedCodes& from) : from_(from) {
    head_.quads = (from.steps + 1) / 2, head_.has_offsets = from.offsets != nullptr;
    head_.group = from.groups > 1 ? from.group_steps / 2 : kRowGroup / 4, head_.scale_groups = from.groups;
    head_.row_group = std::max<size_t>(1, kRowGroup / 4 / head_.group);
    head_.panel_bytes = (from.bits == 4 ? (head_.quads + 1) / 2 : head_.quads) * from.blocks * kLine;
    head_.half_scales = fit_halves(from), head_.scale_bytes = scale_bytes_of(from, head_.half_scales);
    head_.zero_bytes = from.zeros ? from.groups * from.blocks * 16 : 0;
    head_.scales_at = rounded_up(sizeof head_ + kLine, kLine) + from.panels * head_.panel_bytes;
    head_.zeros_at = rounded_up(head_.scales_at + from.panels * head_.scale_bytes, kLine);
  }

  size_t size() const { return head_.zeros_at + from_.panels * head_.zero_bytes; }

  void run(Pool& pool, char* to) {
    memcpy(to, &head_, sizeof head_);
    const auto work = [&](uint32_t task, Scratch&, uint64_t) { write(*(const Int8*)to, from_.first + task); };
    pool.run({phase_of(Part::other, work, from_.last - from_.first)});
  }

 private:
  void write(const Int8& head, size_t panel) const {
    const int16_t* code = from_.codes + (panel - from_.first) * from_.steps * from_.blocks * 32;
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

// The scales and zero points of one group of a panel of BLOCKS blocks.
template <int BLOCKS>
struct Int8Group {
  Int8Group(const Int8& w, size_t panel, size_t g)
      : scales_{w.scales(panel) + of(w, g) * (w.scale_bytes / w.scale_groups), w.half_scales != 0, BLOCKS}, scale_last_(w.scale_last()),
        zeros_(w.zero_bytes ? w.zeros(panel) + of(w, g) * BLOCKS * 16 : nullptr) {}

  // 1 if the scale comes last.
  TGI_INLINED f32x16 scale(int block) const { return scale_last_ ? splat(1.0f) : scales_.scale(block); }
  TGI_INLINED f32x16 offset(int block) const { return scales_.offset(block); }

  // What was added to a block's codes, plus its zero points.
  TGI_INLINED u32x16 zero(int bits, int block) const {
    const u32x16 middle = splat_unit((unit)zero_of(bits));
    return zeros_ ? add_units(middle, load_byte_units(zeros_ + block * 16)) : middle;
  }

 private:
  static size_t of(const Int8& w, size_t g) { return w.scale_groups > 1 ? g : 0; }

  const Scales scales_;
  const bool scale_last_;
  const int8_t* zeros_;
};

// Multiplies by scales that come last.
template <int ROWS, int BLOCKS>
TGI_INLINED void scale_last(const Int8& w, size_t panel, f32x16 (&totals)[ROWS][BLOCKS]) {
  if (!w.scale_last()) return;
  TGI_UNROLL for (int b = 0; b < BLOCKS; b++) {
    const f32x16 scale = Scales{w.scales(panel), w.half_scales != 0, BLOCKS}.scale(b);
    TGI_UNROLL for (int r = 0; r < ROWS; r++) totals[r][b] = mul(totals[r][b], scale);
  }
}

// Applies the epilogue to ROWS rows of totals that are in memory, [row][BLOCKS · 16].
template <class Op, int ROWS, int BLOCKS>
TGI_INLINED void finish_int8(const Gemm& p, const Int8& w, int panel, size_t row, const float* totals) {
  f32x16 c[ROWS][BLOCKS];
  TGI_UNROLL for (int r = 0; r < ROWS; r++) TGI_UNROLL for (int b = 0; b < BLOCKS; b++) c[r][b] = load(totals + (r * BLOCKS + b) * 16);
  scale_last(w, panel, c);
  apply_any_epilogue<Op>(p, panel, row, c);
}

// Rows of x in integers, of each row and row group the scale, and of each group the sum of its integers. Integers are signed bytes in tiles
// [16 rows][16 quads]; or, if `together` is not 0, bytes with 128 added, [rows / together][quad][together][4].
struct Int8Rows {
  const unit* bytes;
  const float* scales;
  const int32_t* sums;
  size_t groups, row_groups, together;

  float scale(size_t row, size_t row_group) const { return scales[row * row_groups + row_group]; }
  int32_t sum(size_t row, size_t g) const { return sums[row * groups + g]; }
};

// Rounds rows first…last-1 of a GEMM.
class Int8Rounding {
 public:
  Int8Rounding(const Gemm& p, const TileSteps& depth, size_t first, size_t last, size_t together)
      : p_(p), depth_(depth), w_(*(const Int8*)p.w.data), first_(first), rows_(last - first), together_(together) {}

  // Kept for the other tasks of a phase, as row_tiles are.
  Int8Rows rows(Scratch& scratch, uint64_t phase) const {
    const size_t row_groups = (depth_.groups + w_.row_group - 1) / w_.row_group, most = w_.row_group * depth_.group;
    const size_t size = together_ ? rounded_up(rows_, together_) * w_.quads : rounded_up(rows_, kTileRows) * depth_.tiles() * kTileSteps;
    unit* bytes = scratch.tiles.at_least(size);
    float* scales = scratch.tile_scales.at_least(rows_ * (row_groups + depth_.groups));
    int32_t* sums = (int32_t*)(scales + rows_ * row_groups);
    if (!scratch.has_tiles.is_there(phase, first_)) {
      if (!together_) memset(bytes, 0, size * sizeof(unit));
      int8_t* room = (int8_t*)scratch.units.at_least(rounded_up(most, kTileSteps) + 2 * kTileSteps);
      for (size_t r = 0; r < rows_; r++)
        for (size_t part = 0; part < row_groups; part++) scales[r * row_groups + part] = round(r, part, room, bytes, sums);
    }
    return {bytes, scales, sums, depth_.groups, row_groups, together_};
  }

 private:
  // A row group; its scale.
  float round(size_t r, size_t part, int8_t* room, unit* bytes, int32_t* sums) const {
    const size_t first = part * w_.row_group, last = std::min<size_t>(depth_.groups, first + w_.row_group), inputs = 2 * (size_t)p_.w.steps;
    const size_t from = first * depth_.group * 4, count = std::min(inputs, depth_.end_of(last - 1) * 4) - from;
    memset(room + count / kTileBytes * kTileBytes, 0, 2 * kTileBytes);
    const float scale = round_to_bytes((const bf16*)(p_.x + (first_ + r) * p_.w.steps) + from, (int)count, room);
    for (size_t g = first; g < last; g++, room += depth_.group * 4) {
      const size_t quads = depth_.end_of(g) - g * depth_.group;
      if (!together_ || w_.has_offsets) {
        int32_t total = 0;
        for (size_t i = 0; i < 4 * quads; i++) total += room[i];
        sums[r * depth_.groups + g] = total;
      }
      together_ ? write_together(r, g, quads, (const unit*)room, bytes) : write_tiles(r, g, (const char*)room, bytes);
    }
    return scale;
  }

  void write_tiles(size_t r, size_t g, const char* room, unit* bytes) const {
    unit* to = bytes + (r / kTileRows * depth_.tiles() + g * depth_.group_tiles) * kTileUnits + r % kTileRows * kTileSteps;
    for (size_t t = 0; t < depth_.tiles_of(g); t++) memcpy(to + t * kTileUnits, room + t * kTileBytes, kTileBytes);
  }

  void write_together(size_t r, size_t g, size_t quads, const unit* room, unit* bytes) const {
    unit* to = bytes + (r / together_ * w_.quads + g * depth_.group) * together_ + r % together_;
    for (size_t q = 0; q < quads; q++) to[q * together_] = room[q] ^ 0x80808080;
  }

  const Gemm& p_;
  const TileSteps& depth_;
  const Int8& w_;
  const size_t first_, rows_, together_;
};

}  // namespace tgi
