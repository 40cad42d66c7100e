// GEMMs of bfloat16 over the tile unit.
//
// A panel of two blocks is, 16 steps at a time, two tiles as they lie in memory. Rows of x are copied to tiles once per thread and GEMM: 16 rows of
// 64 bytes that are adjacent, since rows a whole x apart would each be a line that no prefetcher expects. Up to 32 rows are multiplied
// with a panel at a time, in four tiles of sums. If there are more, the panel is processed in parts that stay in the first cache while
// all rows pass by, and sums wait in memory meanwhile. An element's bits depend on neither: it is the sum over tiles, in order.
#pragma once

#include "gemm.h"
#include "tiles.h"

namespace tgi {

constexpr int kTileSteps = kTileBytes / (int)sizeof(unit);
constexpr size_t kTileUnits = (size_t)kTileRows * kTileSteps;
constexpr int kTileBlocks = 2;             // per panel
constexpr size_t kPassRows = 2 * kTileRows;  // rows that are multiplied at a time
constexpr size_t kSumsWidth = 16 * kTileBlocks;
constexpr size_t kPanelTile = kTileBlocks * kTileUnits;  // units of a panel's 16 steps
// 16-step parts of a panel that stay in the first cache while rows stream past them, or that are decoded right before they are multiplied by
// few rows.
constexpr size_t kDepthTiles = 19, kFewDepthTiles = 2;
constexpr size_t kTileAhead = 6144;  // bytes that a weight is prefetched ahead: tile loads alone don't keep enough lines in flight

// A weight's steps in tiles. Each group of steps, if they are summed by group, starts a new one.
struct TileSteps {
  size_t steps, group, groups, group_tiles;

  explicit TileSteps(const Linear& w) : TileSteps((size_t)w.steps, (size_t)w.steps) {}
  TileSteps(size_t steps, size_t most) : steps(steps), group(std::min(steps, most)) {
    groups = (steps + group - 1) / group;
    group_tiles = (group + kTileSteps - 1) / kTileSteps;
  }
  size_t tiles() const { return groups * group_tiles; }
  size_t end_of(size_t g) const { return std::min(steps, (g + 1) * group); }
  // Steps of a group's tile, at most 16.
  size_t steps_of(size_t g, size_t tile) const { return std::min<size_t>(kTileSteps, end_of(g) - g * group - tile * kTileSteps); }
  size_t tiles_of(size_t g) const { return (end_of(g) - g * group + kTileSteps - 1) / kTileSteps; }
};

// Rows first…last-1 of x as tiles [16 rows][tile of steps], padded with zeros. Kept for the other tasks of a phase.
inline const unit* row_tiles(const Gemm& p, const TileSteps& depth, size_t first, size_t last, Scratch& scratch, uint64_t phase) {
  const size_t whole = (last - first + kTileRows - 1) / kTileRows * kTileRows;
  unit* tiles = scratch.tiles.at_least(whole * depth.tiles() * kTileSteps);
  if (scratch.has_tiles.is_there(phase, first)) return tiles;
  for (size_t r = 0; r < whole; r++) {
    const unit* x = p.x + (first + r) * depth.steps;
    unit* to = tiles + r / kTileRows * depth.tiles() * kTileUnits + r % kTileRows * kTileSteps;
    for (size_t t = 0; t < depth.tiles(); t++, to += kTileUnits) {
      const size_t some = first + r < last ? depth.steps_of(0, t) : 0;
      if (some) memcpy(to, x + t * kTileSteps, some * sizeof(unit));
      if (some < kTileSteps) memset(to + some, 0, (kTileSteps - some) * sizeof(unit));
    }
  }
  return tiles;
}

// Tiles 0–3 are sums of up to 32 rows, 4 and 5 rows, 6 and 7 blocks of a panel. Fewer rows take less time; more are padded with zeros.
inline void use_gemm_tiles(size_t rows) {
  const int first = (int)std::min<size_t>(rows, kTileRows);
  const int second = rows >= kPassRows ? kTileRows : rows > kTileRows ? (int)rows - kTileRows : 0;
  use_shapes(1u << 16 | first << 8 | second, [=] {
    TileShapes shapes;
    for (int t : {0, 1, 4}) shapes.set(t, first);
    for (int t : {2, 3, 5}) shapes.set(t, std::max(1, second));
    for (int t : {6, 7}) shapes.set(t, kTileRows);
    return shapes;
  });
}

// Parts of a dense panel, where they are; the last one is copied if it is not a whole tile.
class DensePanelTiles {
 public:
  static constexpr bool kGrouped = false;
  static constexpr size_t kFewTiles = (size_t)-1;

  DensePanelTiles(const Gemm& p, size_t panel, unit* room) : at_((const unit*)p.w.data + panel * p.w.steps * kTileBlocks * 16), room_(room) {}

  // `tiles` tiles of `steps` steps; those of the next call follow.
  const unit* next(size_t tiles, size_t steps) {
    const unit* from = at_;
    const size_t units = steps * kTileBlocks * 16;
    at_ += units;
    if (steps == tiles * kTileSteps) return from;
    memcpy(room_, from, units * sizeof(unit));
    memset(room_ + units, 0, (tiles * kPanelTile - units) * sizeof(unit));
    return room_;
  }
  static constexpr bool in_memory = true;

 private:
  const unit* at_;
  unit* room_;
};

// Parts of a panel in another layout, decoded.
template <class Lines>
class DecodedPanelTiles {
 public:
  static constexpr bool kGrouped = Lines::kGrouped;
  static constexpr size_t kFewTiles = kFewDepthTiles;

  DecodedPanelTiles(const Gemm& p, size_t panel, unit* room) : lines(p.w.data, panel, room, true), room_(room) {}

  const unit* next(size_t tiles, size_t steps) {
    lines.write_to(room_);
    for (size_t s = 0; s < steps; s += Lines::kSteps) lines.template next<kTileBlocks>();
    const size_t units = steps * kTileBlocks * 16;
    memset(room_ + units, 0, (tiles * kPanelTile - units) * sizeof(unit));
    return room_;
  }
  static constexpr bool in_memory = false;
  Lines lines;

 private:
  unit* room_;
};

// Rows first…last-1 of x, whose tiles are `x`, times one panel; see the head of this file.
template <class Op>
class TilePanel {
 public:
  TilePanel(const Gemm& p, const TileSteps& depth, int panel, size_t first, size_t last, const unit* x)
      : p_(p), depth_(depth), panel_(panel), first_(first), rows_(last - first), passes_((rows_ + kPassRows - 1) / kPassRows), x_(x) {}

  void run(Scratch& scratch) {
    switch (p_.w.layout) {
      case Layout::dense:
        return run_over<DensePanelTiles>(scratch);
      case Layout::bf12:
        return run_over<DecodedPanelTiles<Bf12Lines>>(scratch);
      case Layout::codes4:
        return run_codes<Code::int4>(scratch);
      case Layout::codes8:
        return run_codes<Code::int8>(scratch);
      case Layout::e4m3:
        return run_codes<Code::e4m3>(scratch);
      case Layout::levels:
        return run_codes<Code::level>(scratch);
      case Layout::int4:
      case Layout::int8:
        return;
    }
  }

 private:
  // Some tiles of the panel's steps, from tile `from` on.
  struct Part {
    const unit* w;
    size_t from, tiles;
    bool first, last, in_memory;
  };

  template <Code CODE>
  void run_codes(Scratch& scratch) {
    if (codes_of(p_.w)->groups > 1)
      run_over<DecodedPanelTiles<WeightLines<CODE>>>(scratch);
    else
      run_over<DecodedPanelTiles<CodeLines<CODE>>>(scratch);
  }

  template <class Source>
  void run_over(Scratch& scratch) {
    const size_t most = passes_ > 1 ? kDepthTiles : Source::kFewTiles, tiles = depth_.tiles();
    sums_ = scratch.floats.at_least(passes_ * kPassRows * kSumsWidth);
    Source source(p_, panel_, scratch.units.at_least(kDepthTiles * kPanelTile));
    if constexpr (Source::kGrouped) scales_ = (const float*)source.lines.scales.template next<kTileBlocks>().at;
    use_gemm_tiles(rows_);
    // Only the last tile may be partial: it is a part of its own.
    const size_t whole = depth_.steps_of(0, tiles - 1) == (size_t)kTileSteps ? tiles : tiles - 1;
    const size_t parts = whole / most + (whole % most > 0), even = parts ? (whole + parts - 1) / parts : 0;
    in_parts_ = tiles > even;
    for (size_t t = 0, some; t < tiles; t += some) {
      some = t == whole ? 1 : std::min(even, whole - t);
      const unit* w = source.next(some, some == 1 ? depth_.steps_of(0, t) : some * kTileSteps);
      multiply_part({w, t, some, t == 0, t + some == tiles, Source::in_memory});
    }
  }

  // All rows times a part of the panel. A single pass keeps its sums in the tiles from one part to the next.
  void multiply_part(const Part& part) {
    for (size_t pass = 0; pass < passes_; pass++) {
      const unit* x = x_ + (2 * pass * depth_.tiles() + part.from) * kTileUnits;
      const bool second = rows_ > pass * kPassRows + kTileRows, fetch = part.in_memory && pass == 0;
      const bool load = !part.first && passes_ > 1, store = part.last || passes_ > 1;
      if (part.last && p_.epilogue == Epilogue::add) fetch_results(pass);
      float* sums = sums_of(pass);
      second ? multiply<true>(x, part.w, part.tiles, sums, part.first, load, store, fetch)
             : multiply<false>(x, part.w, part.tiles, sums, part.first, load, store, fetch);
      if (part.last && scales_) scale(pass, sums);
      if (part.last) finish(pass, sums);
    }
  }

  // Up to 32 rows. `fetch`: the panel comes from memory.
  template <bool SECOND>
  void multiply(const unit* x, const unit* w, size_t tiles, float* sums, bool first, bool load, bool store, bool fetch) const {
    constexpr size_t kStride = kSumsWidth * sizeof(float), kLineStride = kTileBlocks * kLine;
    float* next = sums + kTileRows * kSumsWidth;
    const unit* x2 = x + depth_.tiles() * kTileUnits;
    if (first) {
      tile_zero<0>(), tile_zero<1>();
      if (SECOND) tile_zero<2>(), tile_zero<3>();
    } else if (load) {
      tile_load<0>(sums, kStride), tile_load<1>(sums + 16, kStride);
      if (SECOND) tile_load<2>(next, kStride), tile_load<3>(next + 16, kStride);
    }
    for (size_t t = 0; t < tiles; t++, x += kTileUnits, x2 += kTileUnits, w += kPanelTile) {
      if (fetch) tgi::fetch((const char*)w + kTileAhead, kPanelTile * sizeof(unit));
      tile_load<6>(w, kLineStride);
      tile_stream<4>(x, kTileBytes);
      tile_bf16<0, 4, 6>();
      tile_load<7>(w + 16, kLineStride);
      tile_bf16<1, 4, 7>();
      if (!SECOND) continue;
      tile_stream<5>(x2, kTileBytes);
      tile_bf16<2, 5, 6>();
      tile_bf16<3, 5, 7>();
    }
    if (!store) return;
    tile_store<0>(sums, kStride), tile_store<1>(sums + 16, kStride);
    if (SECOND) tile_store<2>(next, kStride), tile_store<3>(next + 16, kStride);
  }

  // A pass's sums; they last from one part to the next only if there are several.
  float* sums_of(size_t pass) const { return sums_ + (in_parts_ ? pass * kPassRows * kSumsWidth : 0); }
  size_t pass_end(size_t pass) const { return std::min(rows_, (pass + 1) * kPassRows); }

  // Multiplies sums of codes by their scales, and adds their offsets times the sum of the row's inputs.
  void scale(size_t pass, float* sums) const {
    for (size_t row = pass * kPassRows; row < pass_end(pass); row++, sums += kSumsWidth)
      TGI_UNROLL for (size_t at = 0; at < kSumsWidth; at += 16) {
        const f32x16 product = mul(load(sums + at), load(scales_ + at));
        store(sums + at, p_.sums ? fma(splat(p_.sums[first_ + row]), load(scales_ + kSumsWidth + at), product) : product);
      }
  }

  void fetch_results(size_t pass) const {
    for (size_t row = pass * kPassRows; row < pass_end(pass); row++)
      fetch((const float*)p_.y + (first_ + row) * p_.y_stride + panel_ * kSumsWidth, kSumsWidth * sizeof(float));
  }

  void finish(size_t pass, const float* sums) const {
    constexpr int kAtOnce = 4;
    const size_t end = pass_end(pass);
    size_t row = pass * kPassRows;
    for (; row + kAtOnce <= end; row += kAtOnce, sums += kAtOnce * kSumsWidth) finish_rows<kAtOnce>(row, sums);
    for (; row < end; row++, sums += kSumsWidth) finish_rows<1>(row, sums);
  }

  template <int ROWS>
  void finish_rows(size_t row, const float* sums) const {
    f32x16 c[ROWS][kTileBlocks];
    TGI_UNROLL for (int m = 0; m < ROWS; m++) TGI_UNROLL for (int r = 0; r < kTileBlocks; r++)
        c[m][r] = load(sums + m * kSumsWidth + r * 16);
    apply_any_epilogue<Op>(p_, panel_, first_ + row, c);
  }

  const Gemm& p_;
  const TileSteps& depth_;
  const int panel_;
  const size_t first_, rows_, passes_;
  const unit* x_;
  bool in_parts_ = false;
  const float* scales_ = nullptr;  // of codes of a single group
  float* sums_ = nullptr;
};

}  // namespace tgi
