// Codes of four or eight bits with scales by groups of inputs: weights of (code − zero) · scale, or code · scale + offset. Codes are integers; or,
// without zero points and offsets, e4m3 floats or indices into a codebook of 16 levels, which are rounded to bfloat16.
//
// Codes are decoded to bfloat16, which holds them exactly, right before they are multiplied; the sum of a group is then multiplied by the
// group's scale. So no weight is rounded, and a step that is bound by reading weights reads a half, or a quarter, of the bytes. An offset is
// multiplied by the sum of the group's inputs, which is computed once per row (see group_sums). With the tile unit, weights of several groups
// are rounded to bfloat16, as a dequantized checkpoint's are (see WeightLines).
//
// A panel's codes come in groups of four steps. With four bits, each block of 16 columns has one line for its four steps: 32 words, for
// the elements of a line of units, of which nibble s belongs to step s. With eight bits, each step and block has 32 bytes in that order.
// A panel's scales are [group][block][16] floats, each group's followed by its offsets; or halves, if these hold all scales and there are
// no offsets. Its zero points are [group][block][16] bytes.
#pragma once

#include <algorithm>

#include "float8.h"
#include "levels.h"
#include "pool.h"

namespace tgi {

constexpr int kCodeSteps = 4;  // steps that are decoded at a time; groups have multiples of it
constexpr int kMostBlocks = 4;

enum class Code { int4, int8, e4m3, level };
constexpr bool in_nibbles(Code code) { return code == Code::int4 || code == Code::level; }
constexpr size_t block_bytes_of(Code code) { return in_nibbles(code) ? kLine : kCodeSteps * 32; }  // of a block's four steps

// The header of such a weight. The places are in bytes from the header; panels lie `…_bytes` apart. No zero points: zero_bytes is 0.
struct Codes {
  uint64_t code_bytes, scale_bytes, zero_bytes, codes_at, scales_at, zeros_at, group_steps, groups, has_offsets, half_scales;
  LevelTable levels;

  const char* codes(size_t panel) const { return (const char*)this + codes_at + panel * code_bytes; }
  const char* scales(size_t panel) const { return (const char*)this + scales_at + panel * scale_bytes; }
  const int8_t* zeros(size_t panel) const { return zero_bytes ? (const int8_t*)this + zeros_at + panel * zero_bytes : nullptr; }
};

// The scales of one group of a panel of some blocks, and its offsets if the weight has any.
struct Scales {
  const char* at;
  bool halves;
  size_t blocks;

  TGI_INLINED f32x16 scale(size_t block) const { return halves ? load((const f16*)at + block * 16) : load((const float*)at + block * 16); }
  TGI_INLINED f32x16 offset(size_t block) const { return load((const float*)at + (blocks + block) * 16); }
};

// Those of a panel's groups, front to back.
class GroupScales {
 public:
  GroupScales(const Codes& weight, size_t panel)
      : steps_((int)weight.group_steps), halves_(weight.half_scales != 0),
        block_bytes_(halves_ ? kLine / 2 : weight.has_offsets ? 2 * kLine : kLine), at_(weight.scales(panel)) {}
  int steps() const { return steps_; }
  template <int BLOCKS>
  TGI_INLINED Scales next() {
    const Scales group = {at_, halves_, BLOCKS};
    at_ += BLOCKS * block_bytes_;
    return group;
  }

 private:
  const int steps_;
  const bool halves_;
  const size_t block_bytes_;
  const char* at_;
};

// Lines that were decoded before.
struct DecodedCodes {
  static constexpr int kSteps = 1;
  static constexpr bool kGrouped = true, kInRegisters = false;
  const unit* at;
  GroupScales scales;

  DecodedCodes(const void* data, size_t panel, const unit* lines) : at(lines), scales(*(const Codes*)data, panel) {}

  template <int BLOCKS>
  TGI_INLINED const unit* next() {
    const unit* step = at;
    at += BLOCKS * 16;
    return step;
  }
};

// Lines of a panel as floats in registers, for rows that are multiplied at once: shorter than by way of bfloat16, where that is widened again
// to be multiplied. The numbers, and thus the bits of results, are the same.
template <Code CODE>
class CodeNumbers {
 public:
  static constexpr int kSteps = kCodeSteps;
  static constexpr bool kGrouped = true, kInRegisters = true;
  static constexpr size_t kBlockBytes = block_bytes_of(CODE);
  GroupScales scales;

  CodeNumbers(const void* data, size_t panel)
      : scales(*(const Codes*)data, panel), codes_(((const Codes*)data)->codes(panel)), zeros_(((const Codes*)data)->zeros(panel)),
        left_(scales.steps()), levels_(((const Codes*)data)->levels) {}

  // Calls use(step, element of its unit, floats [BLOCKS]) for the next four steps, in order.
  template <int BLOCKS, class Use>
  TGI_INLINED void next(const Use& use) {
    zeros_ ? decode<BLOCKS, true>(use) : decode<BLOCKS, false>(use);
    TGI_UNROLL for (size_t at = 0; at < BLOCKS * kBlockBytes; at += kLine) prefetch_weight(codes_ + kAhead / 2 + at);
  }

 private:
  template <int BLOCKS, bool ZEROS, class Use>
  TGI_INLINED void decode(const Use& use) {
    if (ZEROS && left_ == 0) zeros_ += BLOCKS * 16, left_ = scales.steps();
    left_ -= kSteps;
    u32x16 zero[BLOCKS];
    if (ZEROS) TGI_UNROLL for (int r = 0; r < BLOCKS; r++) zero[r] = load_byte_units(zeros_ + r * 16);
    step<BLOCKS, ZEROS, 0>(zero, use), step<BLOCKS, ZEROS, 1>(zero, use), step<BLOCKS, ZEROS, 2>(zero, use), step<BLOCKS, ZEROS, 3>(zero, use);
    codes_ += BLOCKS * kBlockBytes;
  }

  template <int BLOCKS, bool ZEROS, int STEP, class Use>
  TGI_INLINED void step(const u32x16* zero, const Use& use) const {
    element<BLOCKS, ZEROS, STEP, 0>(zero, use), element<BLOCKS, ZEROS, STEP, 1>(zero, use);
  }

  template <int BLOCKS, bool ZEROS, int STEP, int PLACE, class Use>
  TGI_INLINED void element(const u32x16* zero, const Use& use) const {
    constexpr bool kNibbles = in_nibbles(CODE);
    constexpr int kShift = kNibbles ? 28 : 16, kLeft = kNibbles ? 28 - 16 * PLACE - 4 * STEP : 16 * (1 - PLACE);
    f32x16 numbers[BLOCKS];
    TGI_UNROLL for (int r = 0; r < BLOCKS; r++) {
      const char* block = codes_ + r * kBlockBytes;
      if constexpr (CODE == Code::e4m3) {
        const u32x16 both = any_e4m3_words(load_byte_words((const int8_t*)block + STEP * 32));
        numbers[r] = PLACE ? odd_half(both) : even_half(both);
        continue;
      }
      if constexpr (CODE == Code::level) {
        const u32x16 both = level_words(right_unsigned<4 * STEP>(load_units((const unit*)block)), levels_);
        numbers[r] = PLACE ? odd_half(both) : even_half(both);
        continue;
      }
      u32x16 v;  // with the number on top
      if constexpr (kNibbles)
        v = left<kLeft>(load_units((const unit*)block));
      else
        v = left<kLeft>(load_byte_words((const int8_t*)block + STEP * 32));
      if constexpr (kNibbles && ZEROS)
        v = right_unsigned<kShift>(v);
      else
        v = right<kShift>(v);
      numbers[r] = float_integers(ZEROS ? sub_units(v, zero[r]) : v);
    }
    use(STEP, PLACE, numbers);
  }

  const char* codes_;
  const int8_t* zeros_;
  long left_;
  const LevelTable& levels_;
};

// Lines of a panel, decoded; see layouts.h.
template <Code CODE>
class CodeLines {
 public:
  static constexpr int kSteps = kCodeSteps;
  static constexpr size_t kRoom = kCodeSteps * kMostBlocks;
  static constexpr size_t kBlockBytes = block_bytes_of(CODE);
  static constexpr bool kGrouped = true, kInRegisters = false;
  using Again = DecodedCodes;
  using InRegisters = CodeNumbers<CODE>;
  GroupScales scales;

  CodeLines(const void* data, size_t panel, unit* room, bool stay)
      : scales(*(const Codes*)data, panel), codes_(((const Codes*)data)->codes(panel)), zeros_(((const Codes*)data)->zeros(panel)),
        left_(scales.steps()), to_(room), stay_(stay), levels_(((const Codes*)data)->levels) {}

  template <int BLOCKS>
  TGI_INLINED const unit* next() {
    unit* steps = to_;
    each_line<BLOCKS>([steps](int step, int block, const auto& line) { store_units(steps + (step * BLOCKS + block) * 16, line.units()); });
    if (stay_) to_ += BLOCKS * kSteps * 16;
    return steps;
  }

  // Where the next steps are written.
  void write_to(unit* room) { to_ = room; }

  // Calls keep(step, block, line) for the next four steps.
  template <int BLOCKS, class Keep>
  TGI_INLINED void each_line(const Keep& keep) {
    zeros_ ? decode<BLOCKS, true>(keep) : decode<BLOCKS, false>(keep);
  }

 private:
  // The codes, less their zero points, of a line: words, of which four bits count where there are no zero points to subtract.
  template <bool ZEROS>
  struct Line {
    u32x16 words;
    const LevelTable& levels;
    TGI_INLINED u32x16 units() const {
      if constexpr (CODE == Code::level) return level_words(words, levels);
      if constexpr (CODE == Code::e4m3) return any_e4m3_words(words);
      if constexpr (CODE == Code::int8) return bf16_integers(words);
      return ZEROS ? bf16_fives(words) : bf16_nibbles(words);
    }
    // Floats of the first, or the second, element of each unit.
    TGI_INLINED f32x16 even() const { return CODE == Code::int8 ? float_integers(right<16>(left<16>(words))) : even_half(units()); }
    TGI_INLINED f32x16 odd() const { return CODE == Code::int8 ? float_integers(right<16>(words)) : odd_half(units()); }
  };

  template <int BLOCKS, bool ZEROS, class Keep>
  TGI_INLINED void decode(const Keep& keep) {
    if (ZEROS && left_ == 0) zeros_ += BLOCKS * 16, left_ = scales.steps();
    left_ -= kSteps;
    TGI_UNROLL for (int r = 0; r < BLOCKS; r++, codes_ += kBlockBytes) {
      const u32x16 zero = ZEROS ? load_byte_twice(zeros_ + r * 16) : splat_unit(0);
      u32x16 words = splat_unit(0);
      if (in_nibbles(CODE)) words = load_units((const unit*)codes_);
      TGI_UNROLL for (int s = 0; s < kSteps; s++) {
        if constexpr (!in_nibbles(CODE)) {
          const u32x16 wide = load_byte_words((const int8_t*)codes_ + s * 32);
          keep(s, r, Line<ZEROS>{ZEROS ? sub_words(wide, zero) : wide, levels_});
        } else {
          keep(s, r, Line<ZEROS>{ZEROS ? sub_words(low_nibble_words(words), zero) : words, levels_});
          words = next_nibble_words(words);
        }
      }
    }
    TGI_UNROLL for (size_t at = 0; at < BLOCKS * kBlockBytes; at += kLine) prefetch_weight(codes_ + kAhead / 2 + at);
  }

  const char* codes_;
  const int8_t* zeros_;
  long left_;
  unit* to_;
  bool stay_;
  const LevelTable& levels_;
};

// Lines of a panel as weights: codes times the scales of their group, plus its offsets, rounded to bfloat16. For the tile unit, which multiplies
// so fast that sums by group would take most of the time.
template <Code CODE>
class WeightLines {
 public:
  static constexpr int kSteps = kCodeSteps;
  static constexpr bool kGrouped = false;

  WeightLines(const void* data, size_t panel, unit* room, bool stay)
      : codes_(data, panel, room, stay), has_offsets_(((const Codes*)data)->has_offsets != 0), to_(room) {}

  template <int BLOCKS>
  TGI_INLINED void next() {
    if (left_ == 0) group_ = codes_.scales.template next<BLOCKS>(), left_ = codes_.scales.steps();
    left_ -= kSteps;
    has_offsets_ ? decode<BLOCKS, true>() : decode<BLOCKS, false>();
    to_ += BLOCKS * kSteps * 16;
  }

  // Where the next steps are written.
  void write_to(unit* room) { to_ = room; }

 private:
  template <int BLOCKS, bool OFFSETS>
  TGI_INLINED void decode() {
    codes_.template each_line<BLOCKS>([this](int step, int block, const auto& line) {
      const f32x16 scale = group_.scale(block), offset = OFFSETS ? group_.offset(block) : zero();
      const auto weight = [&](f32x16 code) { return OFFSETS ? fma(code, scale, offset) : mul(code, scale); };
      store_units(to_ + (step * BLOCKS + block) * 16, bf16_pairs(weight(line.even()), weight(line.odd())));
    });
  }

  CodeLines<CODE> codes_;
  const bool has_offsets_;
  Scales group_ = {};
  long left_ = 0;
  unit* to_;
};

// A weight in panels: int16 codes [step][block][16][2] without their offset, of panels first…last-1, which are to be written; and floats
// [group][block][16] of all panels.
struct UnpackedCodes {
  const int16_t* codes;
  const float *scales, *zeros, *offsets;  // no zero points or offsets: null
  const float* levels;                    // 16 of them if codes are indices; else null
  size_t panels, blocks, steps, groups, group_steps, first, last;
  int32_t bits;
};

// Whether scales by group can be stored as halves, without loss.
inline bool fit_halves(const UnpackedCodes& from) {
  if (from.offsets || from.groups == 1) return false;
  for (size_t at = 0; at < from.panels * from.groups * from.blocks * 16; at += 16) {
    f16 halves[16];
    float again[16];
    store(halves, load(from.scales + at)), store(again, load(halves));
    if (memcmp(again, from.scales + at, sizeof again)) return false;
  }
  return true;
}

inline size_t scale_bytes_of(const UnpackedCodes& from, bool halves) {
  return from.groups * from.blocks * (halves ? kLine / 2 : from.offsets ? 2 * kLine : kLine);
}

// Writes a panel's scales, each group's followed by its offsets.
inline void write_scales(const UnpackedCodes& from, size_t panel, bool halves, char* to) {
  const size_t width = from.blocks * 16;
  for (size_t group = panel * from.groups; group < (panel + 1) * from.groups; group++) {
    const float* scales = from.scales + group * width;
    if (halves) {
      for (size_t at = 0; at < width; at += 16, to += kLine / 2) store((f16*)to, load(scales + at));
      continue;
    }
    memcpy(to, scales, width * sizeof(float)), to += width * sizeof(float);
    if (from.offsets) memcpy(to, from.offsets + group * width, width * sizeof(float)), to += width * sizeof(float);
  }
}

// Writes a panel's zero points, plus `more`.
inline void write_zeros(const UnpackedCodes& from, size_t panel, int more, int8_t* to) {
  const size_t count = from.groups * from.blocks * 16;
  for (size_t i = 0; i < count; i++) to[i] = (int8_t)((int)from.zeros[panel * count + i] + more);
}

// Encodes such a weight.
class CodeEncoder {
 public:
  explicit CodeEncoder(const UnpackedCodes& from) : from_(from) {
    const size_t fours = (from.steps + kCodeSteps - 1) / kCodeSteps;
    head_.code_bytes = fours * from.blocks * block_bytes_of(from.bits == 4 ? Code::int4 : Code::int8);
    head_.half_scales = fit_halves(from), head_.scale_bytes = scale_bytes_of(from, head_.half_scales);
    head_.zero_bytes = from.zeros ? from.groups * from.blocks * 16 : 0;
    head_.codes_at = rounded_up(sizeof(Codes), kLine);
    head_.scales_at = rounded_up(head_.codes_at + from.panels * head_.code_bytes, kLine);
    head_.zeros_at = rounded_up(head_.scales_at + from.panels * head_.scale_bytes, kLine);
    head_.group_steps = rounded_up(from.group_steps, kCodeSteps), head_.groups = from.groups, head_.has_offsets = from.offsets != nullptr;
    if (from.levels) head_.levels = LevelTable(from.levels);
  }

  size_t size() const { return head_.zeros_at + from_.panels * head_.zero_bytes + kLine; }

  void run(Pool& pool, char* to) {
    memcpy(to, &head_, sizeof head_);
    const auto work = [&](uint32_t task, Scratch&, uint64_t) { write(*(const Codes*)to, from_.first + task); };
    pool.run({phase_of(Part::other, work, from_.last - from_.first)});
  }

 private:
  void write(const Codes& head, size_t panel) const {
    const size_t lines = from_.steps * from_.blocks;
    const int16_t* code = from_.codes + (panel - from_.first) * lines * 32;
    char* to = (char*)head.codes(panel);
    for (size_t step = 0; step < from_.steps; step++)
      for (size_t block = 0; block < from_.blocks; block++)
        for (int word = 0; word < 32; word++, code++) write_one(to, step, block, word, *code);
    write_scales(from_, panel, head.half_scales, (char*)head.scales(panel));
    if (from_.zeros) write_zeros(from_, panel, from_.bits == 4 ? 8 : 0, (int8_t*)head.zeros(panel));
  }

  // With zero points, nibbles are counted from 0.
  void write_one(char* to, size_t step, size_t block, int word, int code) const {
    const size_t four = step / kCodeSteps, within = step % kCodeSteps;
    if (from_.bits == 8) {
      to[((four * from_.blocks + block) * kCodeSteps + within) * 32 + word] = (char)code;
      return;
    }
    uint16_t& nibbles = ((uint16_t*)(to + (four * from_.blocks + block) * kLine))[word];
    const int nibble = (from_.zeros ? code + 8 : code) & 15, shift = 4 * (int)within;
    nibbles = (uint16_t)((nibbles & ~(15 << shift)) | nibble << shift);
  }

  const UnpackedCodes from_;
  Codes head_ = {};
};

}  // namespace tgi
