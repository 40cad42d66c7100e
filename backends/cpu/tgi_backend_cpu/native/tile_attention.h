// The products of attention over the tile unit.
//
// A page's keys are tiles as they lie in the cache: 16 lines of two elements of 16 positions. So are its values, tiles of 8 lines of two
// positions of 16 elements. An element of a result is the sum over tiles, in order, whatever other queries there are.
#pragma once

#include "memory.h"
#include "tiles.h"

namespace tgi {

constexpr int kPage = 16;
constexpr int kChunk = 256;
constexpr int kTileElements = 32;                           // of a row of a tile
constexpr int kTileRoom = kTiles ? kTileRows : 0;           // units of room per element of a head
constexpr int kPairs = kPage / 2;

// Tiles 0–3 are sums, 4 are queries, 5 weights, 6 keys, 7 values.
inline void use_attention_tiles(int rows) {
  use_shapes(2u << 16 | (uint32_t)rows, [=] {
    TileShapes shapes;
    for (int t : {0, 1, 2, 3, 4}) shapes.set(t, rows);
    shapes.set(5, rows, kPairs * (int)sizeof(unit));
    shapes.set(6, kTileRows);
    shapes.set(7, kPairs);
    return shapes;
  });
}

// Products [rows][kChunk] of queries with the keys of pages.
inline void tile_scores(const unit* const* queries, int rows, const unit* const* keys, int pages, int head_size, float* scores, unit* room) {
  const int tiles = head_size / kTileElements;
  constexpr size_t kUnits = kTileRows * kTileBytes / sizeof(unit);
  for (int r = 0; r < rows; r++)
    for (int t = 0; t < tiles; t++) memcpy(room + t * kUnits + r * kTileBytes / 4, queries[r] + t * kTileBytes / 4, kTileBytes);
  const size_t page_bytes = (size_t)kPage * head_size * sizeof(bf16);
  for (int p = 0; p < pages; p++) {
    // The values of this page, which follow its keys, are needed next.
    for (size_t at = 0; at < page_bytes; at += kLine) prefetch((const char*)keys[p] + page_bytes + at);
    if (p + 1 < pages) fetch(keys[p + 1], page_bytes);
    tile_zero<0>();
    for (int t = 0; t < tiles; t++) {
      tile_load<4>(room + t * kUnits, kTileBytes);
      tile_load<6>(keys[p] + t * kUnits, kTileBytes);
      tile_bf16<0, 4, 6>();
    }
    tile_store<0>(scores + p * kPage, kChunk * sizeof(float));
  }
}

template <int TILE>
TGI_INLINED void add_weighted(const unit* values, int head_size) {
  tile_load<7>(values + TILE * 16, (size_t)head_size * sizeof(unit));
  tile_bf16<TILE, 5, 7>();
}

// Sums [rows][head_size] of the first `positions` positions' values, by weights [rows][kChunk]. What follows them in the last page may be
// anything, so zeros stand in for it.
inline void tile_weighted_sums(const unit* weights, const unit* const* values, int pages, int positions, int head_size, float* sums,
                               unit* room) {
  const size_t stride = (size_t)head_size * sizeof(float);
  const int pairs = (positions - (pages - 1) * kPage + 1) / 2;
  const unit* last = values[pages - 1];
  if (pairs < kPairs) {
    memcpy(room, last, (size_t)pairs * head_size * sizeof(unit));
    memset(room + (size_t)pairs * head_size, 0, (size_t)(kPairs - pairs) * head_size * sizeof(unit));
    last = room;
  }
  for (int column = 0; column < head_size; column += 64) {
    const bool four = column + 64 <= head_size;
    tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
    for (int p = 0; p < pages; p++) {
      const unit* v = (p + 1 < pages ? values[p] : last) + column;
      tile_load<5>(weights + p * kPairs, kChunk * sizeof(bf16));
      add_weighted<0>(v, head_size), add_weighted<1>(v, head_size);
      if (four) add_weighted<2>(v, head_size), add_weighted<3>(v, head_size);
    }
    tile_store<0>(sums + column, stride), tile_store<1>(sums + column + 16, stride);
    if (four) tile_store<2>(sums + column + 32, stride), tile_store<3>(sums + column + 48, stride);
  }
}

}  // namespace tgi
