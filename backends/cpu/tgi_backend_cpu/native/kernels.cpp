// The C interface. One library per instruction set is built from this file; kernels.py loads the one that fits the processor.
#include "choose.h"
#include "parts.h"

using namespace tgi;

namespace {

template <class Op>
void pack(unit* to, int blocks, const void* weight, int rows, int depth, int first, int stride) {
  pack_rows<Op>(to, blocks, (const typename Op::number*)weight, rows, depth, first, stride);
}

// Rows of a step as the calls of single layers name them: first token, count, past, and a row of `table`.
std::vector<Row> rows_of_step(const int32_t* row, int count, const int32_t* table, int stride) {
  std::vector<Row> rows;
  for (int r = 0; r < count; r++) rows.push_back({row[3 * r], row[3 * r + 1], row[3 * r + 2], table + (size_t)r * stride});
  return rows;
}

void run_product(Pool& pool, bool bfloat16, const Product& p) {
  const Cut cut(p, pool.threads());
  const auto work = [&](uint32_t task, Scratch& scratch, uint64_t) {
    bfloat16 ? run_task<Bf16>(p, cut, task, scratch) : run_task<Float>(p, cut, task, scratch);
  };
  pool.run({phase_of(Part::other, work, cut.tasks())});
}

// Rows before the first segment and behind the last stay untouched.
template <class Op>
void adapt(Pool& pool, const LowRanks* found, std::vector<Segment> segments, const void* x, size_t depth, void* y, size_t stride,
           size_t columns) {
  using number = typename Op::number;
  Adapted adapted{&segments, found, 1};
  if (!adapted.any()) return;
  const int begin = segments.front().first;
  for (Segment& segment : segments) segment.first -= begin, segment.last -= begin;
  const size_t rows = segments.back().last;
  number* const sums_to = (number*)y + begin * stride;
  size_t ranks = 0;
  for (const Segment& segment : segments)
    for (int i = 0; i < adapted.of(segment).parts; i++)
      ranks += (size_t)(segment.last - segment.first) * adapted.of(segment).part[i].up.steps;
  thread_local Buffer<float> low, sums;
  adapted.low = low.at_least(ranks), adapted.sums = sums.at_least(rows * columns);
  const Additions<Op> additions(adapted, (const number*)x + begin * depth, depth, rows, columns, pool.threads());
  const auto add_row = [&](uint32_t row, Scratch&, uint64_t) {
    number* to = sums_to + row * stride;
    const float* from = adapted.sums + row * columns;
    for (int i = 0; i < (int)columns; i += 16) {
      const int n = (int)columns - i;
      store_first(to + i, add(load_first(to + i, n), load_first(from + i, n)), n);
    }
  };
  std::vector<Phase> phases;
  additions.phases(Part::other, [&](const Phase& phase) { phases.push_back(phase); });
  phases.push_back(phase_of(Part::other, add_row, rows));
  pool.run(phases);
}

}  // namespace

// All else is hidden: of what several libraries in a process define, the first one's would count for all.
#pragma GCC visibility push(default)
extern "C" {

// Changes whenever a signature or a structure does; kernels.py asks for it.
int32_t tgi_interface() { return 5; }

void* tgi_pool(int32_t threads) { return new Pool(threads); }
void tgi_pool_free(void* pool) { delete (Pool*)pool; }
void tgi_times(void* pool, uint64_t* nanoseconds) {
  memcpy(nanoseconds, ((Pool*)pool)->times(), sizeof(uint64_t) * (size_t)Part::count);
}

// Memory in huge pages where the system gives them, zeroed; null when there is none.
void* tgi_map(size_t bytes) { return map_huge(bytes); }
void tgi_unmap(void* memory, size_t bytes) { unmap_huge(memory, bytes); }

// Panels of a packed weight, and the bytes of each; `columns` counts both of pairs.
void tgi_packed_size(int32_t bfloat16, Panels how, int32_t columns, int32_t depth, size_t* panels, size_t* panel_bytes) {
  const size_t steps = bfloat16 ? (depth + 1) / 2 : depth, blocks = blocks_of(how);
  *panels = (columns + 16 * blocks - 1) / (16 * blocks);
  *panel_bytes = steps * blocks * kLine;
}

// Rows of a weight [rows][depth] into a packed one, from block `first` on. Of pairs, 0 and 1 are where the first and the second ones begin.
void tgi_pack(void* pool, int32_t bfloat16, Panels panels, unit* to, const void* weight, int32_t rows, int32_t depth, int32_t first) {
  const int blocks = blocks_of(panels), stride = panels == Panels::pairs ? kPairBlocks : 1;
  const size_t width = (size_t)depth * (bfloat16 ? 2 : 4);
  const auto work = [=](uint32_t task, Scratch&, uint64_t) {
    const int from = (int)task * 16, count = rows - from < 16 ? rows - from : 16;
    const void* part = (const char*)weight + from * width;
    if (bfloat16)
      pack<Bf16>(to, blocks, part, count, depth, first + (int)task * stride, stride);
    else
      pack<Float>(to, blocks, part, count, depth, first + (int)task * stride, stride);
  };
  ((Pool*)pool)->run({phase_of(Part::other, work, (rows + 15) / 16)});
}

// Makes a packed bfloat16 weight of `panels` panels a bf12 weight. Bytes written to `to`, which has room for as much as the weight takes; 0 where
// that saves too little.
size_t tgi_pack_bf12(void* pool, const unit* weight, size_t panels, size_t panel_bytes, char* to) {
  return Bf12Encoder(weight, panels, panel_bytes / kLine).run(*(Pool*)pool, to);
}

// y [rows][columns] = x · Wᵀ + bias, all in one dtype.
void tgi_linear(void* pool, int32_t bfloat16, const Linear* linear, const void* x, void* y, size_t rows) {
  run_product(*(Pool*)pool, bfloat16, {Finish::numbers, *linear, (const unit*)x, y, (size_t)linear->columns, rows});
}

// What adapters make of the segments of x [][depth] is added to y [][columns], whose rows are `stride` apart; `found` is by adapter.
void tgi_adapt(void* pool, int32_t bfloat16, const LowRanks* found, const Segment* segment, int32_t segments, const void* x, size_t depth,
               void* y, size_t stride, size_t columns) {
  (bfloat16 ? adapt<Bf16> : adapt<Float>)(*(Pool*)pool, found, {segment, segment + segments}, x, depth, y, stride, columns);
}

// silu(gate) · up over a gated weight, for tests and for layers called one by one.
void tgi_gated(void* pool, int32_t bfloat16, const Linear* linear, const void* x, void* y, size_t rows) {
  run_product(*(Pool*)pool, bfloat16, {Finish::gated, *linear, (const unit*)x, y, (size_t)linear->columns / 2, rows});
}

// Keys and values of `tokens` positions into the cache; `slots` are block · block_size + offset. Strides in elements, of tokens and heads.
void tgi_write(void* pool, int32_t bfloat16, const Cache* cache, const int64_t* slots, int32_t tokens, const void* keys,
               size_t key_stride, size_t key_head, const void* values, size_t value_stride, size_t value_head) {
  const auto run = [&](auto op) {
    using Op = decltype(op);
    using number = typename Op::number;
    const auto work = [&](uint32_t t, Scratch&, uint64_t) {
      const int32_t block = (int32_t)(slots[t] / cache->block_size);
      const int offset = (int)(slots[t] % cache->block_size);
      const bool before = written_before<Op>(offset, t > 0 && slots[t - 1] == slots[t] - 1);
      const bool has_next = (int)t + 1 < tokens && slots[t + 1] == slots[t] + 1;
      for (int h = 0; h < cache->kv_heads; h++) {
        const number* value = (const number*)values + t * value_stride + h * value_head;
        write_key<Op>(*cache, &block, offset, h, (const number*)keys + t * key_stride + h * key_head);
        if (!before) write_value<Op>(*cache, &block, offset, h, value, has_next ? value + value_stride : nullptr);
      }
    };
    ((Pool*)pool)->run({phase_of(Part::rotary, work, tokens)});
  };
  bfloat16 ? run(Bf16()) : run(Float());
}

// Attention of one layer: query and out [tokens][heads][head_size].
void tgi_attend(void* pool, int32_t bfloat16, const Cache* cache, const Scoring* scoring, int32_t heads, const int32_t* row, int32_t rows,
                const int32_t* table, int32_t table_stride, const void* query, void* out) {
  const size_t stride = (size_t)heads * cache->head_size;
  const auto run = [&](auto op) {
    using Op = decltype(op);
    using number = typename Op::number;
    typename Attention<Op>::Plan plan;
    plan.rows = rows_of_step(row, rows, table, table_stride);
    Attention<Op>::plan(plan, *cache, *scoring, heads, ((Pool*)pool)->threads());
    Attention<Op>::reset(plan);
    Attention<Op> attention(*cache, *scoring, heads, (const number*)query, stride, (number*)out, stride);
    attention.use(plan);
    ((Pool*)pool)->run({phase_of(Part::attention, attention, plan.tasks.size())});
  };
  bfloat16 ? run(Bf16()) : run(Float());
}

void* tgi_workspace() { return new Workspace; }
void tgi_workspace_free(void* space) { delete (Workspace*)space; }

// One step of a model.
void tgi_step(void* pool, const Model* model, const Step* step, void* space) {
  (model->bfloat16 ? run_step<Bf16> : run_step<Float>)(*model, *step, *(Workspace*)space, *(Pool*)pool);
}

// What rows `chosen` of logits [rows][vocabulary] say: those with a temperature above 0 are drawn from at `uniforms`, the others take
// the highest logit; `totals` asks for the logprobs of the latter. A row that is not finite gets token -1.
void tgi_choose(void* pool, const float* logits, int32_t vocabulary, int32_t count, const int32_t* chosen, const double* temperatures,
                const double* uniforms, int32_t totals, int64_t* tokens, double* logprobs) {
  const auto work = [&](uint32_t i, Scratch& scratch, uint64_t) {
    const float* row = logits + (size_t)chosen[i] * vocabulary;
    const Summary found = summarize(row, vocabulary, totals && temperatures[i] == 0);
    tokens[i] = found.finite ? found.token : -1;
    logprobs[i] = found.finite ? (double)(found.highest - found.log_total) : 0;
    if (!found.finite || temperatures[i] == 0) return;
    double* sums = (double*)scratch.units.at_least(2 * ((size_t)vocabulary / 64 + 2));
    tokens[i] = draw(row, vocabulary, found.highest, temperatures[i], uniforms[i], sums, &logprobs[i]);
  };
  ((Pool*)pool)->run({phase_of(Part::sampling, work, count)});
}

}  // extern "C"
#pragma GCC visibility pop
