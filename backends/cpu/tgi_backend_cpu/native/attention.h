// Attention over the paged cache.
//
// A block of the cache holds, head by head, pages of 16 positions: first the keys as [unit of the head][16 positions], then the values
// as [unit of positions][element of the head], so that both GEMMs read them sequentially. A row's positions are processed in chunks of
// kChunk, each with its own softmax, and chunks are merged in order: the bits of a query depend on its row alone, whether it runs
// in a long prompt or by itself, and whether or not its chunks were divided among threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "pool.h"
#include "simd.h"

namespace tgi {

constexpr int kPage = 16;
constexpr int kChunk = 256;
constexpr int kQueries = kRegisters == 32 ? 8 : 4;  // rows of queries that share one read of the keys
constexpr float kHidden = -1e30f;

// One layer's cache.
struct Cache {
  unit* base;  // this layer's part of block 0
  int kv_heads, head_size, block_size;
  int layers;  // layers whose parts of a block are adjacent, so that a new block touches one place in memory, not one per layer

  size_t page_units(int per_unit) const { return (size_t)kPage * head_size / per_unit; }
  unit* page(int per_unit, int block, int page, int head) const {
    const size_t per_head = (size_t)(block_size / kPage) * 2 * page_units(per_unit);
    return base + ((size_t)block * layers * kv_heads + head) * per_head + (size_t)page * 2 * page_units(per_unit);
  }
};

struct Scoring {
  float scale, softcap;
  int window;  // positions that a query sees, itself included; 0 is all
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

template <class Op>
void write_key(const Cache& cache, const int32_t* table, int position, int head, const typename Op::element* key) {
  unit* keys = keys_of<Op>(cache, table, position, head) + position % kPage;
  const int steps = cache.head_size / Op::per_unit;
  for (int k = 0; k < steps; k++) memcpy(&keys[k * kPage], key + (size_t)k * Op::per_unit, 4);
}

// Writes the values of one position. Two positions may share units: then whoever writes the first writes the second as well (`next`), since
// two threads must not write to one unit. Without a second position its half is zeroed: it will be multiplied by zero, and zero times
// what a faulted row left there could be NaN.
template <class Op>
void write_value(const Cache& cache, const int32_t* table, int position, int head, const typename Op::element* value,
                 const typename Op::element* next) {
  const int place = position % kPage, size = cache.head_size;
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
bool written_before(int position, bool has_previous) {
  return Op::per_unit == 2 && position % 2 && has_previous;
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
  const unit* query[kQueries];
  int from[kQueries], to[kQueries];
};

template <class Op>
struct ChunkWork {
  const Cache& cache;
  const Scoring& scoring;
  const int32_t* table;
  int head;

  const unit* keys(int page) const {
    const int per_block = cache.block_size / kPage;
    return cache.page(Op::per_unit, table[page / per_block], page % per_block, head);
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
        TGI_UNROLL for (int p = 0; p < PAGES; p++) b[p] = Op::part(load_units(k[p] + step * kPage), pass);
        TGI_UNROLL for (int r = 0; r < ROWS; r++) {
          const auto a = Op::part(splat_unit(q.query[r][step]), pass);
          TGI_UNROLL for (int p = 0; p < PAGES; p++) c[r][p] = Op::madd(c[r][p], a, b[p]);
        }
      }
      // The values of these pages are needed next; they follow the keys.
      TGI_UNROLL for (int p = 0; p < PAGES; p++) if ((size_t)step < page_lines) prefetch(k[p] + (page_lines + step) * 16);
    }
    TGI_UNROLL for (int p = 0; p < PAGES; p++) TGI_UNROLL for (int r = 0; r < ROWS; r++) {
      f32x16 v = mul(c[r][p], splat(scoring.scale));
      if (scoring.softcap > 0) v = mul(tanh(div(v, splat(scoring.softcap))), splat(scoring.softcap));
      const int base = (page + p) * kPage;
      if (q.from[r] > base || q.to[r] < base + kPage) v = within(v, q.from[r] - base, q.to[r] - base, splat(kHidden));
      top[r] = max(top[r], v);
      store(scores + r * kChunk + p * kPage, v);
    }
  }

  // Weighted sums [ROWS][head_size] of BLOCKS · 16 elements from `column` on.
  template <int ROWS, int BLOCKS>
  void weighted_sums(const unit* weights, int first, int last, int end, int column, float* values) const {
    f32x16 c[ROWS][BLOCKS];
    TGI_UNROLL for (int r = 0; r < ROWS; r++) TGI_UNROLL for (int b = 0; b < BLOCKS; b++) c[r][b] = zero();
    for (int page = first; page < last; page++) {
      const unit* v = keys(page) + cache.page_units(Op::per_unit) + column;
      const int left = end - page * kPage, positions = left < kPage ? left : kPage;
      const unit* w = weights + (page - first) * kPage / Op::per_unit;
      for (int step = 0; step * Op::per_unit < positions; step++) {
        TGI_UNROLL for (int pass = 0; pass < Op::passes; pass++) {
          decltype(Op::part(u32x16(), 0)) b[BLOCKS];
          TGI_UNROLL for (int i = 0; i < BLOCKS; i++) b[i] = Op::part(load_units(v + (size_t)step * cache.head_size + i * 16), pass);
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
    for (int r = 0; r < ROWS; r++) {
      f32x16 total = zero();
      const f32x16 base = splat(top[r]);
      for (int i = 0; i < (last - first) * kPage; i += 16) {
        const f32x16 s = load(scores + r * kChunk + i), e = where_above(s, 0.5f * kHidden, Op::exp(sub(s, base)));
        total = add(total, e);
        store((typename Op::element*)(weights + r * (kChunk / Op::per_unit)) + i, e);
      }
      states[r] = {top[r], sum(total)};
    }
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
};

// One phase: the queries of all rows of a step. `query` and `out` are [tokens][heads][head_size], strides in elements.
template <class Op>
class Attention {
 public:
  using element = typename Op::element;

  Attention(const Cache& cache, const Scoring& scoring, int heads, const element* query, size_t query_stride, element* out,
            size_t out_stride)
      : cache_(cache),
        scoring_(scoring),
        heads_(heads),
        query_(query),
        query_stride_(query_stride),
        out_(out),
        out_stride_(out_stride) {}

  void operator()(uint32_t index, Scratch& scratch, uint64_t) const {
    const AttentionTask& task = plan_->tasks[index];
    const Row& row = plan_->rows[task.row];
    const int group = heads_ / cache_.kv_heads, width = cache_.head_size, queries = task.count * group;
    float* floats = scratch.floats.at_least((size_t)kQueries * (kChunk + width) + (size_t)queries * (width + 2));
    unit* weights = scratch.units.at_least((size_t)kQueries * kChunk);
    float* scores = floats;
    float* part = scores + kQueries * kChunk;
    float* values = part + kQueries * width;
    Softmax* states = (Softmax*)(values + (size_t)queries * width);
    if (task.split >= 0) {
      values = plan_->partial.data() + task.slot * (size_t)group * (width + 2);
      states = (Softmax*)(values + (size_t)group * width);
    }
    for (int i = 0; i < queries; i++) states[i] = {kHidden, 0.0f};
    const ChunkWork<Op> work{cache_, scoring_, row.table, task.head};
    const int last_position = row.past + task.first + task.count;
    const int first_seen = scoring_.window ? std::max(0, row.past + task.first + 1 - scoring_.window) : 0;
    const int first_chunk = task.split >= 0 ? task.split : first_seen / kChunk;
    const int end_chunk = task.split >= 0 ? task.split + 1 : (last_position + kChunk - 1) / kChunk;
    for (int chunk = first_chunk; chunk < end_chunk; chunk++)
      for (int at = 0; at < queries; at += kQueries) {
        if (chunk == first_chunk) fetch_ahead(task, row, at + kQueries, std::min(at + 2 * kQueries, queries));
        one_chunk(work, task, row, chunk, at, std::min(kQueries, queries - at), scores, weights, part, states, values);
      }
    if (task.split < 0)
      write(task, row, states, values);
    else if (plan_->left[task.group].fetch_sub(1, std::memory_order_acq_rel) == 1)
      join(task, row);
  }

  // Shared by all layers of a step: its tasks, and room for the partial results of rows that are split.
  struct AttentionTask {
    int row, head, first, count;  // tokens first…first+count-1 of those that the row runs in the step
    int split;                    // the chunk to compute, or -1 for all
    size_t slot;                  // where a partial result goes
    int group;                    // the row and head that partial results belong to
  };
  struct Plan {
    std::vector<Row> rows;
    std::vector<AttentionTask> tasks;
    std::vector<float> partial;
    std::vector<std::atomic<int>> left;
    std::vector<std::pair<size_t, int>> parts;  // of each group: first slot, count
  };

  // Divides a step into tasks. A row is split into its chunks if there are too few tasks for all threads.
  static void plan(Plan& plan, const Cache& cache, const Scoring& scoring, int heads, size_t threads) {
    const int group = heads / cache.kv_heads, tile = std::max(1, 96 / group);
    size_t slots = 0, groups = 0;
    plan.tasks.clear();
    plan.parts.clear();
    const bool few = plan.rows.size() * cache.kv_heads < 4 * threads;
    for (size_t r = 0; r < plan.rows.size(); r++) {
      const Row& row = plan.rows[r];
      const int seen = scoring.window ? std::max(0, row.past + 1 - scoring.window) : 0;
      const int first_chunk = seen / kChunk, chunks = (row.past + row.count + kChunk - 1) / kChunk - first_chunk;
      for (int head = 0; head < cache.kv_heads; head++) {
        if (row.count == 1 && few && chunks > 1) {
          for (int c = 0; c < chunks; c++)
            plan.tasks.push_back({(int)r, head, 0, 1, first_chunk + c, slots + c, (int)groups});
          plan.parts.push_back({slots, chunks});
          slots += chunks;
          groups++;
          continue;
        }
        for (int first = 0; first < row.count; first += tile)
          plan.tasks.push_back({(int)r, head, first, std::min(tile, row.count - first), -1, 0, 0});
      }
    }
    plan.partial.resize(slots * group * (cache.head_size + 2));
    plan.left = std::vector<std::atomic<int>>(groups);
  }

  // Before each layer.
  static void reset(Plan& plan) {
    for (size_t i = 0; i < plan.parts.size(); i++) plan.left[i].store(plan.parts[i].second, std::memory_order_relaxed);
  }

  void use(Plan& plan) { plan_ = &plan; }

 private:
  // Prefetch queries at…end-1 of a task, and their outputs.
  TGI_INLINED void fetch_ahead(const AttentionTask& task, const Row& row, int at, int end) const {
    const int group = heads_ / cache_.kv_heads, width = cache_.head_size;
    for (; at < end; at++) {
      const size_t token = row.first + task.first + at / group, head = (size_t)(task.head * group + at % group) * width;
      fetch(query_ + token * query_stride_ + head, width * sizeof(element));
      fetch(out_ + token * out_stride_ + head, width * sizeof(element));
    }
  }

  void one_chunk(const ChunkWork<Op>& work, const AttentionTask& task, const Row& row, int chunk, int at, int rows, float* scores,
                 unit* weights, float* part, Softmax* states, float* values) const {
    const int group = heads_ / cache_.kv_heads, width = cache_.head_size;
    Queries q;
    int from = INT32_MAX, to = 0;
    for (int i = 0; i < rows; i++) {
      const int token = task.first + (at + i) / group, head = task.head * group + (at + i) % group;
      q.query[i] = (const unit*)(query_ + (row.first + token) * query_stride_ + (size_t)head * width);
      q.to[i] = row.past + token + 1;
      q.from[i] = scoring_.window ? std::max(0, q.to[i] - scoring_.window) : 0;
      from = std::min(from, q.from[i]);
      to = std::max(to, q.to[i]);
    }
    const int start = std::max(chunk * kChunk, from / kPage * kPage), end = std::min((chunk + 1) * kChunk, to);
    if (start >= end) return;
    Softmax found[kQueries];
    work.template dispatch<kQueries>(rows, q, start / kPage, (end + kPage - 1) / kPage, end, scores, weights, found, part);
    for (int i = 0; i < rows; i++) merge(states[at + i], values + (size_t)(at + i) * width, found[i], part + (size_t)i * width, width);
  }

  void write(const AttentionTask& task, const Row& row, const Softmax* states, const float* values) const {
    const int group = heads_ / cache_.kv_heads, width = cache_.head_size;
    for (int i = 0; i < task.count * group; i++) {
      element* to = out_ + (row.first + task.first + i / group) * out_stride_ + (size_t)(task.head * group + i % group) * width;
      const f32x16 factor = splat(1.0f / states[i].total);
      for (int k = 0; k < width; k += 16) store(to + k, mul(load(values + (size_t)i * width + k), factor));
    }
  }

  // Merges the partial results of a split row, in order.
  void join(const AttentionTask& task, const Row& row) const {
    const int group = heads_ / cache_.kv_heads, width = cache_.head_size;
    const auto [slot, count] = plan_->parts[task.group];
    float* values = plan_->partial.data() + slot * (size_t)group * (width + 2);
    Softmax* states = (Softmax*)(values + (size_t)group * width);
    for (int part = 1; part < count; part++) {
      const float* more = values + part * (size_t)group * (width + 2);
      const Softmax* totals = (const Softmax*)(more + (size_t)group * width);
      for (int i = 0; i < group; i++) merge(states[i], values + (size_t)i * width, totals[i], more + (size_t)i * width, width);
    }
    write(task, row, states, values);
  }

  const Cache cache_;
  const Scoring scoring_;
  const int heads_;
  const element* query_;
  const size_t query_stride_;
  element* out_;
  const size_t out_stride_;
  Plan* plan_ = nullptr;
};

}  // namespace tgi
