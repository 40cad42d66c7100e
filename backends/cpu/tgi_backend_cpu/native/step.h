// A step of a decoder of the Llama family as lists of phases, described by structures that Python fills in.
#pragma once

#include "attention.h"
#include "phases.h"

namespace tgi {

// These structures are mirrored in interface.py.
struct Layer {
  Linear qkv, output, gate_up, down;
  const float *attention_norm, *mlp_norm, *query_norm, *key_norm;  // the last two are per head, or null
  unit* cache;
  int32_t window, rotary;          // rotary 0: no RoPE in this layer
  int32_t cache_layers, windowed;  // how many layers share the blocks of its cache; windowed 1: rows' blocks are those of `window_table`
};

struct Model {
  int32_t hidden, intermediate, layers, heads, kv_heads, head_size, rotary, block_size;
  float epsilon, embedding_scale, attention_scale, residual_scale, logit_scale, rotary_scale, softcap;
  int32_t bfloat16;
  int32_t fused_rope;  // qkv is packed in pairs and its GEMM rotates the heads; 0: heads are normalized, if at all, and rotated after it
  const Layer* layer;
  const float *final_norm, *frequencies;  // frequencies [rotary / 2]
  const void* embedding;    // [vocabulary][hidden]; if null, it begins there in that open file
  int64_t embedding_start;
  int32_t embedding_file;
  Linear head;
  const PackedLoras* adapters;  // [adapters][layers][Projection::count]
  CacheDtype cache_dtype;
  int32_t ranks;             // the largest total rank of one adapter's slices of one projection
};

// The merged projections of a layer, which adapters target.
enum class Projection : size_t { qkv, output, gate_up, down, count };

// The tokens of one step, row by row. `row` [rows][3] holds each row's first token, count and past; `table` [rows][table_stride] its blocks,
// and `window_table` those of windowed layers, if there are any. Of these, blocks before the window may be other rows', and are not read.
// `wanted_tokens` are those whose logits [wanted][vocabulary] are computed: at once, or where `logits` is null by `StepHead`. `segment` are the
// tokens that have an adapter, in order. `states` [tokens][state_layers][hidden] get the streams before the layers `state_layer`, in the
// dtype of the model.
struct Step {
  int32_t tokens, rows, wanted, table_stride;
  const int64_t* ids;
  const int32_t *row, *table, *wanted_tokens;
  float* logits;
  const Segment* segment;
  int32_t segments, state_layers;
  const int32_t* state_layer;
  void* states;
  const int32_t* window_table;
};

// Activations of a step; the buffers grow and are reused. `chosen` holds those of the wanted tokens after the last layer's attention: from
// there on no other tokens are needed.
struct Workspace {
  Buffer<float> stream, raw_heads, rotation, chosen_stream, low, added;
  Buffer<unit> normed, heads, attended, inner, chosen;

  // For microbatches of `tokens` tokens, and `wanted` wanted tokens in the whole step.
  template <class Op>
  void make_room(const Model& m, size_t tokens, size_t wanted, bool adapted) {
    const size_t queries = (size_t)m.heads * m.head_size, all = queries + 2 * (size_t)m.kv_heads * m.head_size;
    const size_t most = std::max(tokens, wanted);
    stream.at_least(tokens * m.hidden);
    raw_heads.at_least(m.fused_rope ? 0 : tokens * all);
    rotation.at_least(tokens * m.rotary);
    heads.at_least(tokens * (all / Op::per_unit));
    attended.at_least(tokens * (queries / Op::per_unit));
    normed.at_least(most * (m.hidden / Op::per_unit));
    inner.at_least(most * (m.intermediate / Op::per_unit));
    chosen_stream.at_least(wanted * m.hidden);
    chosen.at_least(wanted * (queries / Op::per_unit));
    if (!adapted) return;
    low.at_least(most * m.ranks);
    added.at_least(most * std::max({all, (size_t)m.hidden, 2 * (size_t)m.intermediate}) + 64);  // whole panels are read
  }
};

// The adapters of a step, or of its wanted tokens, layer by layer.
struct StepAdapters {
  const Model& model;
  Workspace& space;
  std::vector<Segment> segments;

  Adapted of(const Layer& layer, Projection projection) const {
    if (segments.empty()) return {};
    const size_t count = (size_t)Projection::count, at = (size_t)(&layer - model.layer) * count + (size_t)projection;
    return {&segments, model.adapters + at, model.layers * count, space.low.data(), space.added.data()};
  }
};

// What a layer does after its attention, to `rows` rows of the residual stream.
template <class Op>
void add_output_and_mlp(Phases<Op>& phases, const StepAdapters& adapters, const Layer& layer, const unit* attended, float* stream,
                        size_t rows) {
  const Model& m = adapters.model;
  Workspace& w = adapters.space;
  const auto back = [&](const Linear& linear, const unit* x) {
    return Gemm{Epilogue::add, linear, x, stream, (size_t)m.hidden, rows, m.residual_scale};
  };
  const Gemm gate_up{Epilogue::gated, layer.gate_up, nullptr, w.inner.data(), (size_t)m.intermediate, rows};
  phases.gemm(Part::output, back(layer.output, attended), adapters.of(layer, Projection::output));
  phases.normed_gemm(Part::gate_up, gate_up, stream, layer.mlp_norm, m.hidden, w.normed.data(), adapters.of(layer, Projection::gate_up));
  phases.gemm(Part::down, back(layer.down, w.inner.data()), adapters.of(layer, Projection::down));
}

// Runs tokens of a step, which are those of the whole step from `first` on, up to the last layer's attention, and copies the wanted ones to
// the chosen activations from `chosen` on.
template <class Op>
class StepBody {
  using element = typename Op::element;

 public:
  StepBody(const Model& model, const Step& step, size_t first, size_t chosen, Workspace& space, size_t threads)
      : m_(model), s_(step), w_(space), threads_(threads), first_(first), chosen_(chosen), half_(model.rotary / 2),
        heads_(model.heads * model.head_size), qkv_((model.heads + 2 * model.kv_heads) * model.head_size),
        adapters_{model, space, {step.segment, step.segment + step.segments}}, phases_(threads, model.epsilon) {
    for (int r = 0; r < step.rows; r++)
      all_.rows.push_back({step.row[3 * r], step.row[3 * r + 1], step.row[3 * r + 2], step.table + (size_t)r * step.table_stride});
    if (step.window_table) {
      window_rows_ = all_.rows;
      for (int r = 0; r < step.rows; r++) window_rows_[r].table = step.window_table + (size_t)r * step.table_stride;
    }
    const std::vector<Row>& rows = rows_of(m_.layer[m_.layers - 1]);
    for (int i = 0, r = 0; i < step.wanted; i++) {
      const int token = step.wanted_tokens[i];
      while (token >= rows[r].first + rows[r].count) r++;
      last_.rows.push_back({token, 1, rows[r].past + token - rows[r].first, rows[r].table});
    }
    const size_t tokens = step.tokens;
    token_row_.resize(tokens);
    for (size_t r = 0; r < all_.rows.size(); r++)
      for (int t = 0; t < all_.rows[r].count; t++) token_row_[all_.rows[r].first + t] = (int)r;
    phases_.each_token(Part::input, [this](size_t token) { start(token); }, tokens);
    for (int l = 0; l < m_.layers; l++) {
      const bool is_last = l == m_.layers - 1;
      add_states(l);
      add_attention(m_.layer[l], is_last ? last_ : m_.layer[l].window ? windowed_plan(m_.layer[l]) : all_);
      if (!is_last) add_output_and_mlp(phases_, adapters_, m_.layer[l], w_.attended.data(), w_.stream.data(), tokens);
    }
    phases_.each_token(Part::other, [this](size_t i) { choose(i); }, s_.wanted);
  }

  const std::vector<Phase>& phases() const { return phases_.all(); }

 private:
  // Hand out the stream before a layer, if it is asked for.
  void add_states(int layer) {
    for (int32_t i = 0; i < s_.state_layers; i++) {
      if (s_.state_layer[i] != layer) continue;
      phases_.each_token(
          Part::other,
          [this, i](size_t t) {
            const size_t to = (first_ + t) * s_.state_layers + i;
            cast_row(w_.stream.data() + t * m_.hidden, m_.hidden, (element*)s_.states + to * m_.hidden);
          },
          s_.tokens);
    }
  }

  void add_attention(const Layer& layer, typename Attention<Op>::Plan& plan) {
    Gemm qkv{Epilogue::floats, layer.qkv, nullptr, w_.raw_heads.data(), (size_t)qkv_, (size_t)s_.tokens};
    if (m_.fused_rope) {
      qkv.epilogue = Epilogue::rope, qkv.y = w_.heads.data();
      qkv.rope = {w_.rotation.data(), half_, layer.rotary ? m_.heads + m_.kv_heads : 0};
    }
    const Adapted adapted = adapters_.of(layer, Projection::qkv);
    phases_.normed_gemm(Part::qkv, qkv, w_.stream.data(), layer.attention_norm, m_.hidden, w_.normed.data(), adapted);
    const Cache cache{layer.cache, m_.kv_heads, m_.head_size, m_.block_size, layer.cache_layers, m_.cache_dtype};
    const Scoring scoring{m_.attention_scale, m_.softcap, layer.window};
    if (plan.tasks.empty()) Attention<Op>::plan(plan, cache, scoring, m_.heads, threads_);
    phases_.each_token(
        Part::rotary,
        [this, &layer, cache, &plan](size_t t) {
          if (t == 0) Attention<Op>::reset(plan);
          m_.fused_rope ? keep_rotated(layer, cache, t) : rotate_and_keep(layer, cache, t);
        },
        s_.tokens);
    attention_.emplace_back(cache, scoring, m_.heads, heads_of(0), (size_t)qkv_, (element*)w_.attended.data(), (size_t)heads_);
    attention_.back().use(plan);
    phases_.add(phase_of(Part::attention, attention_.back(), plan.tasks.size()));
  }

  typename Attention<Op>::Plan& windowed_plan(const Layer& layer) {
    for (auto& [width, plan] : windowed_)
      if (width == layer.window) return plan;
    windowed_.emplace_back();
    windowed_.back().first = layer.window;
    windowed_.back().second.rows = rows_of(layer);
    return windowed_.back().second;
  }

  // The step's rows with the block tables of a layer.
  const std::vector<Row>& rows_of(const Layer& layer) const { return layer.windowed ? window_rows_ : all_.rows; }

  // The token's embedding, and the cosines and sines of its position.
  void start(size_t t) {
    float* stream = w_.stream.data() + t * m_.hidden;
    embed(embedding_of(t, (element*)(stream + m_.hidden) - m_.hidden), m_.hidden, m_.embedding_scale, stream);
    const Row& row = all_.rows[token_row_[t]];
    float* to = w_.rotation.data() + t * m_.rotary;
    rotation(row.past + (int)t - row.first, m_.frequencies, half_, m_.rotary_scale, to, to + half_);
  }

  // A token's embedding, in memory or read from the file to `room`.
  const element* embedding_of(size_t t, element* room) const {
    const size_t at = (size_t)s_.ids[t] * m_.hidden;
    if (m_.embedding) return (const element*)m_.embedding + at;
    read_file(m_.embedding_file, m_.embedding_start + (int64_t)(at * sizeof(element)), (char*)room, m_.hidden * sizeof(element));
    return room;
  }

  // A token's queries, keys and values, as attention reads them.
  element* heads_of(size_t token) const { return (element*)w_.heads.data() + token * qkv_; }

  // Prefetch a share of the next page that the row writes.
  TGI_INLINED void fetch_page(const Cache& cache, const Row& row, int position) const {
    const int place = position % kPage, next = position - place + kPage;
    if (next >= row.past + row.count) return;
    const size_t share = 2 * cache.page_units(Op::per_unit) / kPage;
    for (int h = 0; h < m_.kv_heads; h++) fetch(keys_of<Op>(cache, row.table, next, h) + place * share, share * sizeof(unit));
  }

  // Write a token's keys and values to the cache: key(head), and value(head, ahead) of the token itself or the next one.
  template <class Key, class Value>
  TGI_INLINED void keep(const Layer& layer, const Cache& cache, size_t t, const Key& key, const Value& value) {
    const Row& row = rows_of(layer)[token_row_[t]];
    const int position = row.past + (int)t - row.first;
    const bool has_next = (int)t + 1 < row.first + row.count, before = written_before<Op>(cache, position, (int)t > row.first);
    fetch_page(cache, row, position);
    for (int h = 0; h < m_.kv_heads; h++) {
      write_key<Op>(cache, row.table, position, h, key(h));
      if (!before) write_value<Op>(cache, row.table, position, h, value(h, 0), has_next ? value(h, 1) : nullptr);
    }
  }

  // If the GEMM has rotated them.
  void keep_rotated(const Layer& layer, const Cache& cache, size_t t) {
    const int size = m_.head_size;
    const element *keys = heads_of(t) + heads_, *values = keys + m_.kv_heads * size;
    fetch(keys + 4 * qkv_, 2 * m_.kv_heads * size * sizeof(element));
    keep(layer, cache, t, [&](int h) { return keys + h * size; }, [&](int h, int ahead) { return values + ahead * qkv_ + h * size; });
  }

  // If it has rotated neither keys nor queries.
  void rotate_and_keep(const Layer& layer, const Cache& cache, size_t t) {
    const float *from = w_.raw_heads.data() + t * qkv_, *angle = w_.rotation.data() + t * m_.rotary;
    const int size = m_.head_size;
    fetch(from + 2 * qkv_, qkv_ * sizeof(float));
    fetch(heads_of(t + 2), heads_ * sizeof(element));
    float head[512];
    element rotated_key[512], made[2][512];
    const auto rotate_head = [&](const float* head_from, const float* norm, element* to) {
      if (norm) rms_norm(head_from, norm, m_.epsilon, size, head);
      rotate(norm ? head : head_from, angle, angle + half_, layer.rotary ? half_ : 0, size, to);
      return to;
    };
    const auto key = [&](int h) { return rotate_head(from + heads_ + h * size, layer.key_norm, rotated_key); };
    const auto value = [&](int h, int ahead) {
      cast_row(from + ahead * qkv_ + heads_ + (m_.kv_heads + h) * size, size, made[ahead]);
      return made[ahead];
    };
    for (int h = 0; h < m_.heads; h++) rotate_head(from + h * size, layer.query_norm, heads_of(t) + h * size);
    keep(layer, cache, t, key, value);
  }

  void choose(size_t i) {
    const size_t token = s_.wanted_tokens[i], to = chosen_ + i;
    memcpy(w_.chosen_stream.data() + to * m_.hidden, w_.stream.data() + token * m_.hidden, (size_t)m_.hidden * 4);
    memcpy((element*)w_.chosen.data() + to * heads_, (element*)w_.attended.data() + token * heads_, (size_t)heads_ * sizeof(element));
  }

  const Model& m_;
  const Step& s_;
  Workspace& w_;
  const size_t threads_, first_, chosen_;
  const int half_, heads_, qkv_;
  typename Attention<Op>::Plan all_, last_;
  std::vector<Row> window_rows_;
  std::deque<std::pair<int, typename Attention<Op>::Plan>> windowed_;
  std::vector<int> token_row_;
  std::deque<Attention<Op>> attention_;
  const StepAdapters adapters_;
  Phases<Op> phases_;
};

// The output head: logits of `rows` rows of a residual stream.
template <class Op>
void add_head(Phases<Op>& phases, const Model& m, Workspace& w, const float* stream, size_t rows, float* logits) {
  const Gemm head{Epilogue::floats, m.head, nullptr, logits, (size_t)m.head.columns, rows, m.logit_scale};
  phases.normed_gemm(Part::head, head, stream, m.final_norm, m.hidden, w.normed.data(), {});
}

// Runs the chosen tokens from there to the output head, and through it if the step has room for logits.
template <class Op>
class StepEnd {
 public:
  StepEnd(const Model& m, const Step& step, Workspace& w, size_t threads)
      : adapters_{m, w, chosen_segments(step)}, phases_(threads, m.epsilon) {
    const size_t rows = step.wanted;
    float* stream = w.chosen_stream.data();
    add_output_and_mlp(phases_, adapters_, m.layer[m.layers - 1], w.chosen.data(), stream, rows);
    if (step.logits) add_head(phases_, m, w, stream, rows, step.logits);
  }

  const std::vector<Phase>& phases() const { return phases_.all(); }

 private:
  // The step's segments, restricted to its wanted tokens.
  static std::vector<Segment> chosen_segments(const Step& step) {
    std::vector<Segment> found;
    const int32_t *wanted = step.wanted_tokens, *end = wanted + step.wanted;
    for (const Segment* segment = step.segment; segment < step.segment + step.segments; segment++) {
      const auto first = std::lower_bound(wanted, end, segment->first) - wanted, last = std::lower_bound(wanted, end, segment->last) - wanted;
      if (first < last) found.push_back({segment->adapter, (int32_t)first, (int32_t)last});
    }
    return found;
  }

  const StepAdapters adapters_;
  Phases<Op> phases_;
};

// Logits [count][vocabulary] of the wanted tokens at `chosen` of the step before, at most as many as that step had.
template <class Op>
class StepHead {
 public:
  StepHead(const Model& m, Workspace& w, const int32_t* chosen, size_t count, float* logits, size_t threads) : phases_(threads, m.epsilon) {
    float* stream = w.stream.at_least(count * m.hidden);
    for (size_t i = 0; i < count; i++)
      memcpy(stream + i * m.hidden, w.chosen_stream.data() + (size_t)chosen[i] * m.hidden, (size_t)m.hidden * 4);
    add_head(phases_, m, w, stream, count, logits);
  }

  const std::vector<Phase>& phases() const { return phases_.all(); }

 private:
  Phases<Op> phases_;
};

}  // namespace tgi
