// The paged cache, and some queries over one chunk of it; see attention.h.
#pragma once

#include "float8.h"
#include "memory.h"
#include "tile_attention.h"

namespace tgi {

constexpr int kQueries = kRegisters == 32 ? 8 : 4;  // rows of queries that share one read of the keys
constexpr int kMostQueries = kTiles ? kTileRows : kQueries;
constexpr float kHidden = -1e30f;
constexpr int kMostHead = 512;

// How keys and values are stored: in the model's dtype, or as integers or floats of eight bits with a scale per position, 16 of keys and 16 of
// values after those of the page.
enum class CacheDtype : int32_t { model = 0, int8 = 1, e4m3 = 2 };

// One layer's cache.
struct Cache {
  unit* base;  // this layer's part of block 0
  int kv_heads, head_size, block_size;
  int layers;  // layers whose parts of a block are adjacent, so that a new block touches one place in memory, not one per layer
  CacheDtype dtype;

  bool in_bytes() const { return dtype != CacheDtype::model; }

  // Of a page's keys, or values.
  size_t page_units(int per_unit) const { return in_bytes() ? (size_t)kPage * head_size / sizeof(unit) : (size_t)kPage * head_size / per_unit; }
  unit* page(int per_unit, int block, int page, int head) const {
    const size_t size = 2 * page_units(per_unit) + (in_bytes() ? 2 * kPage : 0), per_head = (size_t)(block_size / kPage) * size;
    return base + ((size_t)block * layers * kv_heads + head) * per_head + (size_t)page * size;
  }
};

struct Scoring {
  float scale, softcap;
  int window;  // positions that a query sees, itself included; 0 is all
  int bias_stride;
  const float* bias;  // [heads][bias_stride], added to scores by the position of the key, whole pages of them; null: nothing
};

// A row of a step: tokens first…first+count-1 of the step are at positions past… of the row, whose blocks are `table`.
struct Row {
  int first, count, past;
  const int32_t* table;
};

template <class Op>
unit* keys_of(const Cache& cache, const int32_t* table, int position, int head) {
  return cache.page(Op::per_unit, table[position / cache.block_size], position % cache.block_size / kPage, head);
}

// The scales of a page's keys; those of its values follow.
template <class Op>
float* scales_of(const Cache& cache, unit* page) { return (float*)(page + 2 * cache.page_units(Op::per_unit)); }

template <class Op>
float round_for(const Cache& cache, const typename Op::element* from, int8_t* to) {
  return cache.dtype == CacheDtype::e4m3 ? round_to_e4m3(from, cache.head_size, to) : round_to_bytes(from, cache.head_size, to);
}

template <class Op>
void write_key(const Cache& cache, const int32_t* table, int position, int head, const typename Op::element* key) {
  constexpr int kEach = Op::per_unit;
  unit* page = keys_of<Op>(cache, table, position, head);
  const int place = position % kPage;
  if (cache.in_bytes()) {
    int8_t whole[kMostHead], *to = (int8_t*)page + place * kEach;
    scales_of<Op>(cache, page)[place] = round_for<Op>(cache, key, whole);
    for (int i = 0; i < cache.head_size; i += kEach) memcpy(to + (size_t)i * kPage, whole + i, kEach);
    return;
  }
  unit* keys = page + place;
  const int steps = cache.head_size / kEach;
  for (int k = 0; k < steps; k++) memcpy(&keys[k * kPage], key + (size_t)k * Op::per_unit, 4);
}

// Writes the values of one position. Two positions may share units: then whoever writes the first writes the second as well (`next`), since
// two threads must not write to one unit. Without a second position its half is zeroed: it will be multiplied by zero, and zero times
// what a faulted row left there could be NaN. Numbers of eight bits are bytes of their own.
template <class Op>
void write_value(const Cache& cache, const int32_t* table, int position, int head, const typename Op::element* value,
                 const typename Op::element* next) {
  const int place = position % kPage, size = cache.head_size;
  if (cache.in_bytes()) {
    constexpr int kEach = Op::per_unit;
    unit* page = keys_of<Op>(cache, table, position, head);
    int8_t whole[kMostHead], *to = (int8_t*)(page + cache.page_units(kEach)) + place / kEach * size * kEach + place % kEach;
    scales_of<Op>(cache, page)[kPage + place] = round_for<Op>(cache, value, whole);
    for (int i = 0; i < size; i++) to[i * kEach] = whole[i];
    return;
  }
  unit* values = keys_of<Op>(cache, table, position, head) + cache.page_units(Op::per_unit) +
                 (size_t)(place / Op::per_unit) * size;
  if constexpr (Op::per_unit == 1)
    memcpy(values, value, (size_t)size * 4);
  else if (place % 2)
    for (int i = 0; i < size; i++) values[i] = (values[i] & 0xffffu) | (unit)value[i] << 16;
  else if (next)
    for (int i = 0; i < size; i++) values[i] = value[i] | (unit)next[i] << 16;
  else
    for (int i = 0; i < size; i++) values[i] = value[i];
}

// Whether a position's values are written together with those of the previous position, because the same step writes both.
template <class Op>
bool written_before(const Cache& cache, int position, bool has_previous) {
  return Op::per_unit == 2 && position % 2 && has_previous && !cache.in_bytes();
}

// The state of one query: highest score, sum of weights, weighted sum of values [head_size].
struct Softmax {
  float highest, total;
};

// Merges `more` into `state`; a part without visible positions changes nothing.
inline void merge(Softmax& state, float* values, const Softmax& more, const float* more_values, int width) {
  if (more.total == 0) return;
  if (state.total == 0) {
    state = more;
    memcpy(values, more_values, (size_t)width * sizeof(float));
    return;
  }
  const float highest = state.highest < more.highest ? more.highest : state.highest;
  const float ours = exp_one(state.highest - highest), theirs = exp_one(more.highest - highest);
  state = {highest, state.total * ours + more.total * theirs};
  for (int i = 0; i < width; i += 16) store(values + i, fma(load(values + i), splat(ours), mul(load(more_values + i), splat(theirs))));
}

// Some queries that share a KV head, over one chunk; each sees positions from…to-1.
struct Queries {
  const unit* query[kMostQueries];
  int from[kMostQueries], to[kMostQueries];
  const float* bias[kMostQueries];  // of the query's head, if there is any
};

// Numbers of eight bits are widened to the dtype, which holds them exactly; scores are multiplied by the keys' scales, and weights by the
// values'.
template <class Op, CacheDtype DTYPE>
struct ChunkWork {
  static constexpr bool kScaled = DTYPE != CacheDtype::model;

  const Cache& cache;
  const Scoring& scoring;
  const int32_t* table;
  int head;

  unit* keys(int page) const {
    const int per_block = cache.block_size / kPage;
    return cache.page(Op::per_unit, table[page / per_block], page % per_block, head);
  }
  // The line at unit `at` of a page's keys or values, as it is multiplied in a pass.
  TGI_INLINED auto line(const unit* from, size_t at, int pass) const {
    if constexpr (DTYPE == CacheDtype::int8)
      return integer_part<Op>((const int8_t*)from + at * Op::per_unit, pass);
    else if constexpr (DTYPE == CacheDtype::e4m3)
      return e4m3_part<Op>((const int8_t*)from + at * Op::per_unit, pass);
    else
      return Op::part(load_units(from + at), pass);
  }

  // Scores [ROWS][kChunk] of pages first…last-1, and the highest of each row.
  template <int ROWS>
  void score(const Queries& q, int first, int last, float* scores, float* highest_of) const {
    constexpr int kAtOnce = kRegisters == 32 ? 2 : 1;  // two independent chains of additions per query, over different positions
    f32x16 top[ROWS];
    TGI_UNROLL for (int r = 0; r < ROWS; r++) top[r] = splat(kHidden);
    int page = first;
    for (; page + kAtOnce <= last; page += kAtOnce) score_pages<ROWS, kAtOnce>(q, page, scores + (page - first) * kPage, top);
    for (; page < last; page++) score_pages<ROWS, 1>(q, page, scores + (page - first) * kPage, top);
    TGI_UNROLL for (int r = 0; r < ROWS; r++) highest_of[r] = highest(top[r]);
  }

  template <int ROWS, int PAGES>
  TGI_INLINED void score_pages(const Queries& q, int page, float* scores, f32x16* top) const {
    const int steps = cache.head_size / Op::per_unit;
    const size_t page_lines = cache.page_units(Op::per_unit) / 16;
    const unit* k[PAGES];
    f32x16 c[ROWS][PAGES];
    TGI_UNROLL for (int p = 0; p < PAGES; p++) k[p] = keys(page + p);
    TGI_UNROLL for (int r = 0; r < ROWS; r++) TGI_UNROLL for (int p = 0; p < PAGES; p++) c[r][p] = zero();
    for (int step = 0; step < steps; step++) {
      TGI_UNROLL for (int pass = 0; pass < Op::passes; pass++) {
        decltype(Op::part(u32x16(), 0)) b[PAGES];
        TGI_UNROLL for (int p = 0; p < PAGES; p++) b[p] = line(k[p], step * kPage, pass);
        TGI_UNROLL for (int r = 0; r < ROWS; r++) {
          const auto a = Op::part(splat_unit(q.query[r][step]), pass);
          TGI_UNROLL for (int p = 0; p < PAGES; p++) c[r][p] = Op::madd(c[r][p], a, b[p]);
        }
      }
      // The values of these pages are needed next; they follow the keys.
      TGI_UNROLL for (int p = 0; p < PAGES; p++) if ((size_t)step < page_lines) prefetch(k[p] + (page_lines + step) * 16);
    }
    TGI_UNROLL for (int p = 0; p < PAGES; p++) TGI_UNROLL for (int r = 0; r < ROWS; r++) {
      const f32x16 v = scored(q, r, page + p, c[r][p]);
      top[r] = max(top[r], v);
      store(scores + r * kChunk + p * kPage, v);
    }
  }

  // A query's products with a page's keys as scores: scaled, and hidden where the query does not see.
  TGI_INLINED f32x16 scored(const Queries& q, int r, int page, f32x16 product) const {
    if constexpr (kScaled) product = mul(product, load(scales_of<Op>(cache, keys(page))));
    f32x16 v = mul(product, splat(scoring.scale));
    if (scoring.softcap > 0) v = mul(tanh(div(v, splat(scoring.softcap))), splat(scoring.softcap));
    const int base = page * kPage;
    if (scoring.bias) v = add(v, load(q.bias[r] + base));
    if (q.from[r] > base || q.to[r] < base + kPage) v = within(v, q.from[r] - base, q.to[r] - base, splat(kHidden));
    return v;
  }

  // Scores of `pages` pages as weights, and each row's softmax; `top` are its highest scores.
  TGI_INLINED void weigh(int rows, int first, int pages, const float* top, const float* scores, unit* weights, Softmax* states) const {
    for (int r = 0; r < rows; r++) {
      f32x16 total = zero();
      const f32x16 base = splat(top[r]);
      for (int i = 0; i < pages * kPage; i += 16) {
        const f32x16 s = load(scores + r * kChunk + i);
        f32x16 e = where_above(s, 0.5f * kHidden, Op::exp(sub(s, base)));
        total = add(total, e);
        if constexpr (kScaled) e = where_above(s, 0.5f * kHidden, mul(e, load(scales_of<Op>(cache, keys(first + i / kPage)) + kPage)));
        store((typename Op::element*)(weights + r * (kChunk / Op::per_unit)) + i, e);
      }
      states[r] = {top[r], sum(total)};
    }
  }

  // Weighted sums [ROWS][head_size] of BLOCKS · 16 elements from `column` on.
  template <int ROWS, int BLOCKS>
  void weighted_sums(const unit* weights, int first, int last, int end, int column, float* values) const {
    f32x16 c[ROWS][BLOCKS];
    TGI_UNROLL for (int r = 0; r < ROWS; r++) TGI_UNROLL for (int b = 0; b < BLOCKS; b++) c[r][b] = zero();
    for (int page = first; page < last; page++) {
      const unit* v = keys(page) + cache.page_units(Op::per_unit);
      const int left = end - page * kPage, positions = left < kPage ? left : kPage;
      const unit* w = weights + (page - first) * kPage / Op::per_unit;
      for (int step = 0; step * Op::per_unit < positions; step++) {
        TGI_UNROLL for (int pass = 0; pass < Op::passes; pass++) {
          decltype(Op::part(u32x16(), 0)) b[BLOCKS];
          TGI_UNROLL for (int i = 0; i < BLOCKS; i++) b[i] = line(v, (size_t)step * cache.head_size + column + i * 16, pass);
          TGI_UNROLL for (int r = 0; r < ROWS; r++) {
            const auto a = Op::part(splat_unit(w[r * (kChunk / Op::per_unit) + step]), pass);
            TGI_UNROLL for (int i = 0; i < BLOCKS; i++) c[r][i] = Op::madd(c[r][i], a, b[i]);
          }
        }
      }
    }
    TGI_UNROLL for (int r = 0; r < ROWS; r++) TGI_UNROLL for (int b = 0; b < BLOCKS; b++)
        store(values + (size_t)r * cache.head_size + column + b * 16, c[r][b]);
  }

  // One chunk for ROWS queries: the positions of pages first…last-1 below `end`. `values` [ROWS][head_size].
  template <int ROWS>
  void run(const Queries& q, int first, int last, int end, float* scores, unit* weights, Softmax* states, float* values) const {
    float top[ROWS];
    score<ROWS>(q, first, last, scores, top);
    weigh(ROWS, first, last - first, top, scores, weights, states);
    constexpr int kBlocks = ROWS <= 4 ? (kRegisters == 32 ? 4 : 1) : 2;
    int column = 0;
    for (; column + kBlocks * 16 <= cache.head_size; column += kBlocks * 16)
      weighted_sums<ROWS, kBlocks>(weights, first, last, end, column, values);
    for (; column < cache.head_size; column += 16) weighted_sums<ROWS, 1>(weights, first, last, end, column, values);
  }

  template <int ROWS>
  void dispatch(int rows, const Queries& q, int first, int last, int end, float* scores, unit* weights, Softmax* states,
                float* values) const {
    if constexpr (ROWS > 1) {
      if (rows < ROWS) return dispatch<ROWS - 1>(rows, q, first, last, end, scores, weights, states, values);
    }
    run<ROWS>(q, first, last, end, scores, weights, states, values);
  }

  // Whether the tile unit multiplies: then for any number of queries, so that a query's bits don't depend on it.
  bool in_tiles() const { return kTiles && !kScaled && Op::per_unit == 2 && cache.head_size % kTileElements == 0; }

  // The same by the tile unit, for up to 16 queries. `room` has space for kTileRoom · head_size units.
  void run_tiles(int rows, const Queries& q, int first, int last, int end, float* scores, unit* weights, Softmax* states, float* values,
                 unit* room) const {
    const int pages = last - first;
    const unit *k[kChunk / kPage], *v[kChunk / kPage];
    for (int p = 0; p < pages; p++) k[p] = keys(first + p), v[p] = k[p] + cache.page_units(2);
    use_attention_tiles(rows);
    tile_scores(q.query, rows, k, pages, cache.head_size, scores, room);
    float top[kMostQueries];
    for (int r = 0; r < rows; r++) {
      f32x16 highest_of = splat(kHidden);
      for (int p = 0; p < pages; p++) {
        float* at = scores + r * kChunk + p * kPage;
        const f32x16 s = scored(q, r, first + p, load(at));
        highest_of = max(highest_of, s);
        store(at, s);
      }
      top[r] = highest(highest_of);
    }
    weigh(rows, first, pages, top, scores, weights, states);
    tile_weighted_sums(weights, v, pages, end - first * kPage, cache.head_size, values, room);
  }
};

}  // namespace tgi
