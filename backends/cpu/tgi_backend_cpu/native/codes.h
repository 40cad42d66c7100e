// Codes of four or eight bits with scales by groups of inputs, decoded to bfloat16 right before they are multiplied.
//
// A weight is value(code) · scale, or (code − zero) · scale, rounded to bfloat16: the very element that a dense panel of the dequantized
// weight holds, so a GEMM gives the same bits. A step that is bound by reading weights reads a half, or a quarter, of the bytes.
//
// Codes of eight bits are signed integers. Codes of four bits index a table of sixteen floats: integers, or any other codebook.
//
// A panel's codes are [step][block], 16 columns each, padded to whole calls of next(): with eight bits 16 bytes for the even elements of a unit
// and 16 for the odd ones, with four bits 16 bytes with the even element in the low nibble. Its scales are [group][block][16] floats, its
// zero points [group][block][16] bytes.
#pragma once

#include <algorithm>

#include "pool.h"
#include "simd.h"

namespace tgi {

constexpr int kCodeSteps = 4;  // steps that are decoded at a time; groups have multiples of it
constexpr int kMostBlocks = 4;

// The header of such a weight. The places are in bytes from the header; panels lie `…_bytes` apart. No zero points: zero_bytes is 0.
struct Codes {
  float table[16];
  uint64_t code_bytes, scale_bytes, zero_bytes, codes_at, scales_at, zeros_at, group_steps;

  const uint8_t* codes(size_t panel) const { return (const uint8_t*)this + codes_at + panel * code_bytes; }
  const float* scales(size_t panel) const { return (const float*)((const char*)this + scales_at + panel * scale_bytes); }
  const int8_t* zeros(size_t panel) const { return (const int8_t*)this + zeros_at + panel * zero_bytes; }
};

template <int BITS>
constexpr size_t code_line_bytes() { return BITS == 4 ? 16 : 32; }

// Lines of a panel, decoded; see layouts.h.
template <int BITS>
class CodeLines {
 public:
  static constexpr int kSteps = kCodeSteps;
  static constexpr size_t kRoom = kCodeSteps * kMostBlocks;

  CodeLines(const void* data, size_t panel, unit* room, bool stay)
      : table_(load(((const Codes*)data)->table)), codes_(((const Codes*)data)->codes(panel)), scales_(((const Codes*)data)->scales(panel)),
        zeros_(((const Codes*)data)->zero_bytes ? ((const Codes*)data)->zeros(panel) : nullptr),
        group_steps_((long)((const Codes*)data)->group_steps), left_(group_steps_), to_(room), stay_(stay) {}

  template <int BLOCKS>
  TGI_INLINED const unit* next() {
    unit* steps = to_;
    if (zeros_)
      decode<BLOCKS, true>(steps);
    else
      decode<BLOCKS, false>(steps);
    if (stay_) to_ += BLOCKS * kSteps * 16;
    return steps;
  }

 private:
  template <int BLOCKS, bool ZEROS>
  TGI_INLINED void decode(unit* to) {
    if (left_ == 0) {
      scales_ += BLOCKS * 16, left_ = group_steps_;
      if (ZEROS) zeros_ += BLOCKS * 16;
    }
    left_ -= kSteps;
    TGI_UNROLL for (int r = 0; r < BLOCKS; r++) {
      const f32x16 scale = load(scales_ + r * 16), zero = ZEROS ? load_bytes(zeros_ + r * 16) : tgi::zero();
      TGI_UNROLL for (int s = 0; s < kSteps; s++) {
        const uint8_t* from = codes_ + (s * BLOCKS + r) * code_line_bytes<BITS>();
        f32x16 even, odd;
        if constexpr (BITS == 8) {
          even = load_bytes((const int8_t*)from), odd = load_bytes((const int8_t*)from + 16);
        } else {
          const u32x16 both = load_byte_units(from);
          even = entries(table_, both), odd = entries(table_, high_nibble_units(both));
        }
        if (ZEROS) even = sub(even, zero), odd = sub(odd, zero);
        store_units(to + (s * BLOCKS + r) * 16, bf16_units(mul(even, scale), mul(odd, scale)));
      }
    }
    codes_ += BLOCKS * kSteps * code_line_bytes<BITS>();
    TGI_UNROLL for (size_t at = 0; at < BLOCKS * kSteps * code_line_bytes<BITS>(); at += kLine) prefetch_near(codes_ + kAhead / 2 + at);
  }

  const f32x16 table_;
  const uint8_t* codes_;
  const float* scales_;
  const int8_t* zeros_;
  const long group_steps_;
  long left_;
  unit* to_;
  bool stay_;
};

// A weight in panels, each element of its own kind: int16 codes [step][block][16][2], and floats [group][block][16].
struct UnpackedCodes {
  const int16_t* codes;
  const float *scales, *zeros;  // no zero points: null
  const float* table;
  size_t panels, blocks, steps, groups, group_steps;
  int32_t bits;
};

// Encodes such a weight.
class CodeEncoder {
 public:
  explicit CodeEncoder(const UnpackedCodes& from) : from_(from) {
    const size_t padded = rounded_up(from.steps, kCodeSteps) * from.blocks, scales = from.groups * from.blocks * 16;
    memcpy(head_.table, from.table, sizeof head_.table);
    head_.code_bytes = padded * (from.bits == 4 ? code_line_bytes<4>() : code_line_bytes<8>());
    head_.scale_bytes = scales * sizeof(float), head_.zero_bytes = from.zeros ? scales : 0;
    head_.codes_at = rounded_up(sizeof(Codes), kLine);
    head_.scales_at = rounded_up(head_.codes_at + from.panels * head_.code_bytes, kLine);
    head_.zeros_at = rounded_up(head_.scales_at + from.panels * head_.scale_bytes, kLine);
    head_.group_steps = rounded_up(from.group_steps, kCodeSteps);
  }

  size_t size() const { return head_.zeros_at + from_.panels * head_.zero_bytes + kLine; }

  void run(Pool& pool, char* to) {
    memcpy(to, &head_, sizeof head_);
    const auto work = [&](uint32_t panel, Scratch&, uint64_t) { write(*(const Codes*)to, panel); };
    pool.run({phase_of(Part::other, work, from_.panels)});
  }

 private:
  void write(const Codes& head, size_t panel) const {
    const size_t lines = from_.steps * from_.blocks, scales = from_.groups * from_.blocks * 16;
    const int16_t* code = from_.codes + panel * lines * 32;
    uint8_t* to = (uint8_t*)head.codes(panel);
    for (size_t line = 0; line < lines; line++, code += 32)
      for (int lane = 0; lane < 16; lane++) {
        const int even = code[2 * lane], odd = code[2 * lane + 1];
        if (from_.bits == 4)
          to[line * 16 + lane] = (uint8_t)((even & 15) | odd << 4);
        else
          to[line * 32 + lane] = (uint8_t)even, to[line * 32 + 16 + lane] = (uint8_t)odd;
      }
    memcpy((float*)head.scales(panel), from_.scales + panel * scales, scales * sizeof(float));
    for (size_t i = 0; from_.zeros && i < scales; i++) ((int8_t*)head.zeros(panel))[i] = (int8_t)from_.zeros[panel * scales + i];
  }

  const UnpackedCodes from_;
  Codes head_ = {};
};

}  // namespace tgi
