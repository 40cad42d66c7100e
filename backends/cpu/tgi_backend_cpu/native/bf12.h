// bf12: bfloat16 in twelve bits per element, lossless.
//
// A weight's sign and fraction take eight bits and are nearly random; its exponent takes eight more, but nearly all weights of a
// matrix share sixteen exponents. So an element is stored as a byte plus a four-bit index of its exponent, and the few outliers are
// listed separately. A step that is bound by reading weights reads three quarters of the bytes, and multiplies exactly the same values:
// a panel, or a part of one, is decoded into the cache right before it is used.
//
// Panels are consecutive, in groups of four lines (32 elements each): two lines of bytes, each for two lines of elements, and one
// of exponent indices, low nibbles for the first pair.
#pragma once

#include <algorithm>

#include "dense.h"
#include "pool.h"
#include "simd.h"

namespace tgi {

constexpr size_t kGroupLines = 4;  // lines of 32 elements, or 16 units, per group
constexpr size_t kGroupElements = kGroupLines * kLine / sizeof(bf16);
constexpr size_t kGroupBytes = 3 * kLine;
constexpr size_t kReadBeyond = 4 * kGroupBytes;  // bytes beyond the last panel that may be read

// An element with another exponent, by its place in its panel.
struct Outlier {
  uint32_t place;
  bf16 element;
};

// The header of a bf12 weight. After it come the index of each panel's first outlier (and the end of the last ones), the outliers, and
// the panels.
struct Bf12 {
  uint8_t exponents[16];
  uint64_t panel_groups, rare_at, panels_at;  // the latter two in bytes from the header

  const uint32_t* first_rare() const { return (const uint32_t*)(this + 1); }
  const Outlier* outlier() const { return (const Outlier*)((const char*)this + rare_at); }
  const char* panel(size_t index) const { return (const char*)this + panels_at + index * panel_groups * kGroupBytes; }
};

// Decodes the lines of one panel, front to back.
class Bf12Decoder {
 public:
  // Prefetches `ahead` bytes further on.
  Bf12Decoder(const Bf12& weight, size_t panel, size_t ahead = kAhead)
      : from_(weight.panel(panel)), ahead_(ahead), rare_(weight.outlier() + weight.first_rare()[panel]),
        rare_end_(weight.outlier() + weight.first_rare()[panel + 1]) {
    uint8_t low[16], high[16];
    for (int i = 0; i < 16; i++) low[i] = (uint8_t)(weight.exponents[i] << 7), high[i] = (uint8_t)(weight.exponents[i] >> 1);
    low_ = splat_table(low), high_ = splat_table(high);
  }

  const char* next_line() const { return from_; }

  // Decode the next `groups` to `to`, which is line-aligned; the panel may end earlier.
  TGI_INLINED void next(size_t groups, unit* to) {
    TGI_UNROLL for (size_t g = 0; g < groups; g++, from_ += kGroupBytes) {
      const u32x16 which = load_units((const unit*)(from_ + 2 * kLine));
      unit* lines = to + g * kGroupLines * 16;
      two_lines(load_units((const unit*)from_), low_nibbles(which), lines);
      two_lines(load_units((const unit*)(from_ + kLine)), high_nibbles(which), lines + 32);
      TGI_UNROLL for (size_t line = 0; line < 3; line++) prefetch_weight(from_ + ahead_ + line * kLine);
    }
    const size_t end = done_ + groups * kGroupElements;
    for (; rare_ < rare_end_ && rare_->place < end; rare_++) memcpy((bf16*)to + (rare_->place - done_), &rare_->element, sizeof(bf16));
    done_ = end;
  }

 private:
  void two_lines(u32x16 bytes, u32x16 which, unit* to) const {
    const u32x16 low = bits_or(bytes, splat_unit(0x7f7f7f7fu), look_up(low_, which));
    const u32x16 high = bits_or(bytes, splat_unit(0x80808080u), look_up(high_, which));
    store_units(to, joined_first(low, high));
    store_units(to + 16, joined_last(low, high));
  }

  const char* from_;
  const size_t ahead_;
  const Outlier *rare_, *rare_end_;
  size_t done_ = 0;
  u32x16 low_, high_;
};

// Lines of a bf12 panel, decoded a few steps before they are multiplied, so that the two overlap. They stay in `to` if other rows need
// them.
class Bf12Lines {
 public:
  static constexpr int kSteps = kGroupLines;
  static constexpr size_t kRoom = kGroupLines * kGroupLines;
  static constexpr bool kGrouped = false;
  static constexpr size_t kLineBytes = kGroupBytes / kGroupLines;
  using Again = DenseLines;

  Bf12Lines(const void* data, size_t panel, unit* room, bool stay, size_t ahead = kAhead)
      : panel_(*(const Bf12*)data, panel, ahead), to_(room), stay_(stay) {}

  template <int BLOCKS>
  TGI_INLINED const unit* next() {
    unit* steps = to_;
    panel_.next(BLOCKS, steps);
    if (stay_) to_ += BLOCKS * kGroupLines * 16;
    return steps;
  }

  const char* next_line() const { return panel_.next_line(); }

  // Where the next steps are written.
  void write_to(unit* room) { to_ = room; }

 private:
  Bf12Decoder panel_;
  unit* to_;
  bool stay_;
};

// Encodes a packed weight of `panels` · `lines` as bf12.
class Bf12Encoder {
 public:
  Bf12Encoder(const unit* packed, size_t panels, size_t lines)
      : packed_(packed), panels_(panels), lines_(lines), groups_((lines + kGroupLines - 1) / kGroupLines) {}

  // Bytes written to `to`, which has room for the packed weight and is line-aligned; 0 if that would save less than a tenth.
  size_t run(Pool& pool, char* to) {
    count(pool);
    choose();
    const size_t before = sizeof(Bf12) + (panels_ + 1) * sizeof(uint32_t);
    Bf12 head{{}, groups_, rounded_up(before, alignof(Outlier)), 0};
    memcpy(head.exponents, exponents_, 16);
    head.panels_at = rounded_up(head.rare_at + first_rare_.back() * sizeof(Outlier), kLine);
    const size_t size = head.panels_at + panels_ * groups_ * kGroupBytes + kReadBeyond;
    if (size * 10 > panels_ * lines_ * kLine * 9) return 0;
    memcpy(to, &head, sizeof head);
    for (size_t p = 0; p <= panels_; p++) ((uint32_t*)(to + sizeof head))[p] = (uint32_t)first_rare_[p];
    const auto work = [&](uint32_t panel, Scratch&, uint64_t) { write(*(const Bf12*)to, panel); };
    pool.run({phase_of(Part::other, work, panels_)});
    return size;
  }

 private:
  const bf16* elements(size_t panel) const { return (const bf16*)(packed_ + panel * lines_ * 16); }
  static uint8_t exponent_of(bf16 element) { return (uint8_t)(element >> 7); }

  void count(Pool& pool) {
    counts_.assign(panels_ * 256, 0);
    const auto work = [&](uint32_t panel, Scratch&, uint64_t) {
      uint32_t own[4][256] = {};  // four tables, so that one increment does not wait for the previous one
      const bf16* element = elements(panel);
      for (size_t i = 0; i < lines_ * 32; i++) own[i % 4][exponent_of(element[i])]++;
      for (int e = 0; e < 256; e++) counts_[panel * 256 + e] = own[0][e] + own[1][e] + own[2][e] + own[3][e];
    };
    pool.run({phase_of(Part::other, work, panels_)});
  }

  // Finds the sixteen most frequent exponents, and counts each panel's elements with another.
  void choose() {
    uint64_t all[256] = {};
    for (size_t i = 0; i < counts_.size(); i++) all[i % 256] += counts_[i];
    memset(which_, kRareMark, sizeof which_);
    for (uint8_t i = 0; i < 16; i++) {
      int best = -1;
      for (int e = 0; e < 256; e++)
        if (which_[e] == kRareMark && (best < 0 || all[e] > all[best])) best = e;
      which_[best] = i, exponents_[i] = (uint8_t)best;
    }
    first_rare_.assign(1, 0);
    for (size_t p = 0; p < panels_; p++) {
      size_t outlier = 0;
      for (int e = 0; e < 256; e++) outlier += which_[e] == kRareMark ? counts_[p * 256 + e] : 0;
      first_rare_.push_back(first_rare_.back() + outlier);
    }
  }

  void write(const Bf12& head, size_t panel) const {
    const bf16* element = elements(panel);
    Outlier* outlier = (Outlier*)head.outlier() + first_rare_[panel];
    uint8_t* to = (uint8_t*)head.panel(panel);
    for (size_t g = 0; g < groups_; g++, to += kGroupBytes)
      for (size_t i = 0; i < kGroupElements; i++) {
        const size_t place = g * kGroupElements + i, line = i / 32, word = i % 32;
        const bf16 value = place < lines_ * 32 ? element[place] : 0;
        const uint8_t which = which_[exponent_of(value)];
        if (which == kRareMark && place < lines_ * 32) *outlier++ = {(uint32_t)place, value};
        // The first eight of each sixteen bytes belong to the first line.
        const size_t byte = word / 8 * 16 + line % 2 * 8 + word % 8;
        to[line / 2 * kLine + byte] = (uint8_t)((value & 0x7f) | (value >> 8 & 0x80));
        uint8_t& both = to[2 * kLine + byte];
        both = line < 2 ? (uint8_t)(which & 15) : (uint8_t)(both | (which & 15) << 4);
      }
  }

  static constexpr uint8_t kRareMark = 255;
  const unit* packed_;
  const size_t panels_, lines_, groups_;
  std::vector<uint32_t> counts_;
  std::vector<uint64_t> first_rare_;
  uint8_t which_[256], exponents_[16];
};

}  // namespace tgi
