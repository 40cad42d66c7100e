// The C interface. One library per instruction set is built from this file; kernels.py loads the one for the processor.
#include "sampling.h"
#include "microbatch.h"

using namespace tgi;

namespace {

template <class Op>
void pack(unit* to, int blocks, const void* weight, int rows, int depth, int first, int stride) {
  pack_rows<Op>(to, blocks, (const typename Op::element*)weight, rows, depth, first, stride);
}

// The rows of a step as the calls for single layers pass them: first token, count, past, and a row of `table`.
std::vector<Row> rows_of_step(const int32_t* row, int count, const int32_t* table, int stride) {
  std::vector<Row> rows;
  for (int r = 0; r < count; r++) rows.push_back({row[3 * r], row[3 * r + 1], row[3 * r + 2], table + (size_t)r * stride});
  return rows;
}

void run_gemm(Pool& pool, bool bfloat16, const Gemm& p) {
  const Tiling tiling(p, pool.threads());
  const auto work = [&](uint32_t task, Scratch& scratch, uint64_t phase) {
    bfloat16 ? run_task<Bf16>(p, tiling, task, scratch, phase) : run_task<Float>(p, tiling, task, scratch, phase);
  };
  pool.run({phase_of(Part::other, work, tiling.tasks())});
}

// Rows before the first segment and after the last are not changed.
template <class Op>
void add_lora(Pool& pool, const PackedLoras* found, std::vector<Segment> segments, const void* x, size_t depth, void* y, size_t stride,
           size_t columns) {
  using element = typename Op::element;
  Adapted adapted{&segments, found, 1};
  if (!adapted.any()) return;
  const int begin = segments.front().first;
  for (Segment& segment : segments) segment.first -= begin, segment.last -= begin;
  const size_t rows = segments.back().last;
  element* const sums_to = (element*)y + begin * stride;
  size_t ranks = 0;
  for (const Segment& segment : segments)
    for (int i = 0; i < adapted.of(segment).slices; i++)
      ranks += (size_t)(segment.last - segment.first) * adapted.of(segment).slice[i].lora_b.steps;
  thread_local Buffer<float> low, sums;
  adapted.low = low.at_least(ranks), adapted.sums = sums.at_least(rows * columns);
  const LoraSums<Op> lora(adapted, (const element*)x + begin * depth, depth, rows, columns, pool.threads());
  const auto add_row = [&](uint32_t row, Scratch&, uint64_t) {
    element* to = sums_to + row * stride;
    const float* from = adapted.sums + row * columns;
    for (int i = 0; i < (int)columns; i += 16) {
      const int n = (int)columns - i;
      store_first(to + i, add(load_first(to + i, n), load_first(from + i, n)), n);
    }
  };
  std::vector<Phase> phases;
  lora.phases(Part::other, [&](const Phase& phase) { phases.push_back(phase); });
  phases.push_back(phase_of(Part::other, add_row, rows));
  pool.run(phases);
}

}  // namespace

// Everything else is hidden: symbols of several libraries in one process would otherwise resolve to the first one's.
#pragma GCC visibility push(default)
extern "C" {

// Changes with every signature or structure; kernels.py checks it.
int32_t tgi_interface() { return 16; }

// Asks the system for what this variant needs beyond instructions; once per process, before any other function. Returns 0 or an errno.
int32_t tgi_permit() { return permit_tiles(); }

void* tgi_pool(int32_t threads) { return new Pool(threads); }
void tgi_pool_free(void* pool) { delete (Pool*)pool; }
void tgi_times(void* pool, uint64_t* nanoseconds) {
  memcpy(nanoseconds, ((Pool*)pool)->times(), sizeof(uint64_t) * (size_t)Part::count);
}

// Zeroed memory, in huge pages if the system has them; null if there is none.
void* tgi_map(size_t bytes) { return map_huge(bytes); }
void tgi_unmap(void* memory, size_t bytes) { unmap_huge(memory, bytes); }

// The number of panels of a packed weight, and the bytes of each; `columns` counts both members of a pair.
void tgi_packed_size(int32_t bfloat16, Panels how, int32_t columns, int32_t depth, size_t* panels, size_t* panel_bytes) {
  const size_t steps = bfloat16 ? (depth + 1) / 2 : depth, blocks = blocks_of(how);
  *panels = (columns + 16 * blocks - 1) / (16 * blocks);
  *panel_bytes = steps * blocks * kLine;
}

// Packs rows of a weight [rows][depth], from block `first` on. For pairs, `first` is 0 for the first members and 1 for the second.
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

// Encodes a packed bfloat16 weight of `panels` panels as bf12. Returns the bytes written to `to`, which has room for the packed weight; 0 if
// that saves too little.
size_t tgi_pack_bf12(void* pool, const unit* weight, size_t panels, size_t panel_bytes, char* to) {
  return Bf12Encoder(weight, panels, panel_bytes / kLine).run(*(Pool*)pool, to);
}

// The bytes that a weight of codes takes, and, if `to` is not null, writes its panels first…last-1 there.
size_t tgi_pack_codes(void* pool, const UnpackedCodes* from, char* to) {
  CodeEncoder encoder(*from);
  if (to) encoder.run(*(Pool*)pool, to);
  return encoder.size();
}

// The same for a weight whose rows of x are rounded to eight bits.
size_t tgi_pack_int8(void* pool, const UnpackedCodes* from, char* to) {
  Int8Encoder encoder(*from);
  if (to) encoder.run(*(Pool*)pool, to);
  return encoder.size();
}

// y [rows][columns] = x · Wᵀ + bias, all in one dtype.
void tgi_linear(void* pool, int32_t bfloat16, const Linear* linear, const void* x, void* y, size_t rows) {
  run_gemm(*(Pool*)pool, bfloat16, {Epilogue::cast, *linear, (const unit*)x, y, (size_t)linear->columns, rows});
}

// Adds the adapters of the segments, computed from x [][depth], to y [][columns], whose rows are `stride` apart; `found` is by adapter.
void tgi_add_lora(void* pool, int32_t bfloat16, const PackedLoras* found, const Segment* segment, int32_t segments, const void* x, size_t depth,
               void* y, size_t stride, size_t columns) {
  (bfloat16 ? add_lora<Bf16> : add_lora<Float>)(*(Pool*)pool, found, {segment, segment + segments}, x, depth, y, stride, columns);
}

// silu(gate) · up over a weight of pairs, for tests and for layers called one by one.
void tgi_gated(void* pool, int32_t bfloat16, const Linear* linear, const void* x, void* y, size_t rows) {
  run_gemm(*(Pool*)pool, bfloat16, {Epilogue::gated, *linear, (const unit*)x, y, (size_t)linear->columns / 2, rows});
}

// Writes keys and values of `tokens` positions to the cache; `slots` are block · block_size + offset. Strides are in elements, of tokens and
// heads.
void tgi_write(void* pool, int32_t bfloat16, const Cache* cache, const int64_t* slots, int32_t tokens, const void* keys,
               size_t key_stride, size_t key_head, const void* values, size_t value_stride, size_t value_head) {
  const auto run = [&](auto op) {
    using Op = decltype(op);
    using element = typename Op::element;
    const auto work = [&](uint32_t t, Scratch&, uint64_t) {
      const int32_t block = (int32_t)(slots[t] / cache->block_size);
      const int offset = (int)(slots[t] % cache->block_size);
      const bool before = written_before<Op>(*cache, offset, t > 0 && slots[t - 1] == slots[t] - 1);
      const bool has_next = (int)t + 1 < tokens && slots[t + 1] == slots[t] + 1;
      for (int h = 0; h < cache->kv_heads; h++) {
        const element* value = (const element*)values + t * value_stride + h * value_head;
        write_key<Op>(*cache, &block, offset, h, (const element*)keys + t * key_stride + h * key_head);
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
    using element = typename Op::element;
    typename Attention<Op>::Plan plan;
    plan.rows = rows_of_step(row, rows, table, table_stride);
    Attention<Op>::plan(plan, *cache, *scoring, heads, ((Pool*)pool)->threads());
    Attention<Op>::reset(plan);
    Attention<Op> attention(*cache, *scoring, heads, (const element*)query, stride, (element*)out, stride);
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

// What the output head takes, [count][hidden], of wanted tokens of the step before, at `chosen`: their streams after the final norm.
void tgi_hidden(const Model* model, const void* space, const int32_t* chosen, int32_t count, void* hidden) {
  const auto run = [&](auto op) {
    using element = typename decltype(op)::element;
    const size_t width = (size_t)model->hidden;
    const float* stream = ((const Workspace*)space)->chosen_stream.data();
    for (int32_t i = 0; i < count; i++)
      rms_norm(stream + (size_t)chosen[i] * width, model->final_norm, model->epsilon, model->hidden, (element*)hidden + i * width);
  };
  model->bfloat16 ? run(Bf16()) : run(Float());
}

// Logits of `count` tokens of a step that had no room for them; see `StepHead`.
void tgi_head(void* pool, const Model* model, void* space, const int32_t* chosen, int32_t count, float* logits) {
  const auto run = [&](auto op) {
    Pool& threads = *(Pool*)pool;
    threads.run(StepHead<decltype(op)>(*model, *(Workspace*)space, chosen, count, logits, threads.threads()).phases());
  };
  model->bfloat16 ? run(Bf16()) : run(Float());
}

// Samples rows `chosen` of logits [rows][vocabulary]: those with a temperature above 0 draw at `uniforms`, the others take the argmax;
// `totals` requests logprobs of the latter. A row whose logits are not all finite gets token -1.
void tgi_sample(void* pool, const float* logits, int32_t vocabulary, int32_t count, const int32_t* chosen, const double* temperatures,
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
