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

#include "attention_chunk.h"
#include "pool.h"

namespace tgi {

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
    switch (cache_.dtype) {
      case CacheDtype::int8: return run<CacheDtype::int8>(index, scratch);
      case CacheDtype::e4m3: return run<CacheDtype::e4m3>(index, scratch);
      default: return run<CacheDtype::model>(index, scratch);
    }
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
  template <CacheDtype DTYPE>
  void run(uint32_t index, Scratch& scratch) const {
    const AttentionTask& task = plan_->tasks[index];
    const Row& row = plan_->rows[task.row];
    const int group = heads_ / cache_.kv_heads, width = cache_.head_size, queries = task.count * group;
    float* floats = scratch.floats.at_least((size_t)kMostQueries * (kChunk + width) + (size_t)queries * (width + 2));
    unit* weights = scratch.units.at_least((size_t)kMostQueries * kChunk + kTileRoom * width);
    float* scores = floats;
    float* part = scores + kMostQueries * kChunk;
    float* values = part + kMostQueries * width;
    Softmax* states = (Softmax*)(values + (size_t)queries * width);
    if (task.split >= 0) {
      values = plan_->partial.data() + task.slot * (size_t)group * (width + 2);
      states = (Softmax*)(values + (size_t)group * width);
    }
    for (int i = 0; i < queries; i++) states[i] = {kHidden, 0.0f};
    const ChunkWork<Op, DTYPE> work{cache_, scoring_, row.table, task.head};
    const int last_position = row.past + task.first + task.count;
    const int first_seen = scoring_.window ? std::max(0, row.past + task.first + 1 - scoring_.window) : 0;
    const int first_chunk = task.split >= 0 ? task.split : first_seen / kChunk;
    const int end_chunk = task.split >= 0 ? task.split + 1 : (last_position + kChunk - 1) / kChunk;
    const int at_once = work.in_tiles() ? kMostQueries : kQueries;
    for (int chunk = first_chunk; chunk < end_chunk; chunk++)
      for (int at = 0; at < queries; at += at_once) {
        if (chunk == first_chunk) fetch_ahead(task, row, at + at_once, std::min(at + 2 * at_once, queries));
        one_chunk(work, task, row, chunk, at, std::min(at_once, queries - at), scores, weights, part, states, values);
      }
    if (task.split < 0)
      write(task, row, states, values);
    else if (plan_->left[task.group].fetch_sub(1, std::memory_order_acq_rel) == 1)
      join(task, row);
  }

  // Prefetch queries at…end-1 of a task, and their outputs.
  TGI_INLINED void fetch_ahead(const AttentionTask& task, const Row& row, int at, int end) const {
    const int group = heads_ / cache_.kv_heads, width = cache_.head_size;
    for (; at < end; at++) {
      const size_t token = row.first + task.first + at / group, head = (size_t)(task.head * group + at % group) * width;
      fetch(query_ + token * query_stride_ + head, width * sizeof(element));
      fetch(out_ + token * out_stride_ + head, width * sizeof(element));
    }
  }

  template <CacheDtype DTYPE>
  void one_chunk(const ChunkWork<Op, DTYPE>& work, const AttentionTask& task, const Row& row, int chunk, int at, int rows, float* scores,
                 unit* weights, float* part, Softmax* states, float* values) const {
    const int group = heads_ / cache_.kv_heads, width = cache_.head_size;
    Queries q;
    int from = INT32_MAX, to = 0;
    for (int i = 0; i < rows; i++) {
      const int token = task.first + (at + i) / group, head = task.head * group + (at + i) % group;
      q.query[i] = (const unit*)(query_ + (row.first + token) * query_stride_ + (size_t)head * width);
      q.to[i] = row.past + token + 1;
      q.bias[i] = scoring_.bias ? scoring_.bias + (size_t)head * scoring_.bias_stride : nullptr;
      q.from[i] = scoring_.window ? std::max(0, q.to[i] - scoring_.window) : 0;
      from = std::min(from, q.from[i]);
      to = std::max(to, q.to[i]);
    }
    const int start = std::max(chunk * kChunk, from / kPage * kPage), end = std::min((chunk + 1) * kChunk, to);
    if (start >= end) return;
    Softmax found[kMostQueries];
    const int first = start / kPage, last = (end + kPage - 1) / kPage;
    if (work.in_tiles())
      work.run_tiles(rows, q, first, last, end, scores, weights, found, part, weights + kMostQueries * kChunk);
    else
      work.template dispatch<kQueries>(rows, q, first, last, end, scores, weights, found, part);
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
