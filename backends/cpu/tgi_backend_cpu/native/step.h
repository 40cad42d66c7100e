// A whole step of a decoder of the Llama family as one list of phases: what it consists of stands in a table that Python fills in.
#pragma once

#include <deque>
#include <functional>

#include "attention.h"
#include "gemm.h"
#include "rows.h"

namespace tgi {

// These structures are mirrored in tables.py.
struct Layer {
  Linear qkv, output, gate_up, down;
  const float *attention_norm, *mlp_norm, *query_norm, *key_norm;  // the last two over single heads, or null
  unit* cache;
  int32_t window, rotary;  // rotary 0: this layer's queries and keys are not turned
};

struct Model {
  int32_t hidden, intermediate, layers, heads, kv_heads, head_size, rotary, block_size;
  float epsilon, embedding_scale, attention_scale, residual_scale, logit_scale, rotary_scale, softcap;
  int32_t bfloat16;
  const Layer* layer;
  const float *final_norm, *frequencies;  // frequencies [rotary / 2]
  const void* embedding;
  Linear head;
};

// Tokens of one step, row by row. `rows` holds first token, count and past of each row; `tables` [rows][table_stride] its blocks.
// `wanted` are the tokens whose logits [wanted][vocabulary] are to be computed.
struct Step {
  int32_t tokens, rows, wanted, table_stride;
  const int64_t* ids;
  const int32_t *row, *table, *wanted_tokens;
  float* logits;
};

// Activations of a step; grows and is kept.
struct Workspace {
  Buffer<float> stream, qkv, rotation, chosen_stream;
  Buffer<unit> normed, query, attended, inner, chosen;
};

template <class Op>
class StepRun {
  using number = typename Op::number;
  // Tokens of a task that is done to every token by itself: few where there are few, and else whole pages, whose keys share cache lines.
  static constexpr size_t kFewTokens = 4, kManyTokens = 64;

 public:
  StepRun(const Model& model, const Step& step, Workspace& space, size_t threads)
      : m_(model), s_(step), w_(space), threads_(threads), half_(model.rotary / 2), heads_(model.heads * model.head_size),
        qkv_((model.heads + 2 * model.kv_heads) * model.head_size) {
    const size_t tokens = step.tokens;
    w_.stream.at_least(tokens * m_.hidden);
    w_.qkv.at_least(tokens * qkv_);
    w_.rotation.at_least(tokens * m_.rotary);
    w_.normed.at_least(units(tokens, m_.hidden));
    w_.query.at_least(units(tokens, heads_));
    w_.attended.at_least(units(tokens, heads_));
    w_.inner.at_least(units(tokens, m_.intermediate));
    w_.chosen_stream.at_least((size_t)step.wanted * m_.hidden);
    w_.chosen.at_least(units(step.wanted, std::max(heads_, m_.hidden)));
    for (int r = 0; r < step.rows; r++)
      all_.rows.push_back({step.row[3 * r], step.row[3 * r + 1], step.row[3 * r + 2], step.table + (size_t)r * step.table_stride});
    // Behind the last layer's attention only the wanted tokens count.
    for (int i = 0, r = 0; i < step.wanted; i++) {
      const int token = step.wanted_tokens[i];
      while (token >= all_.rows[r].first + all_.rows[r].count) r++;
      last_.rows.push_back({token, 1, all_.rows[r].past + token - all_.rows[r].first, all_.rows[r].table});
    }
    token_row_.resize(tokens);
    for (size_t r = 0; r < all_.rows.size(); r++)
      for (int t = 0; t < all_.rows[r].count; t++) token_row_[all_.rows[r].first + t] = (int)r;
    phase(Part::input, [this](size_t token) { start(token); }, tokens);
    for (int l = 0; l < m_.layers; l++) add_layer(m_.layer[l], l == m_.layers - 1);
    Product head = product(Finish::floats, m_.head, nullptr, s_.logits, m_.head.columns, s_.wanted);
    head.scale = m_.logit_scale;
    normed_product(Part::head, head, w_.chosen_stream.data(), m_.final_norm);
  }
  StepRun(const StepRun&) = delete;

  const std::vector<Phase>& phases() const { return phases_; }

 private:
  // Something done to every token by itself.
  struct EachToken {
    std::function<void(size_t)> work;
    size_t tokens, at_once;
    void operator()(uint32_t task, Scratch&, uint64_t) const {
      for (size_t t = task * at_once; t < tokens && t < (task + 1) * at_once; t++) work(t);
    }
  };

  // A product, with the norm before it where its rows are few: then each thread normalises them all for itself, which costs less than
  // waiting for each other.
  struct ProductWork {
    Product p;
    Cut cut;
    const float *stream, *norm;
    float epsilon;
    int hidden;
    void operator()(uint32_t task, Scratch& scratch, uint64_t phase) const {
      if (!norm) return run_task<Op>(p, cut, task, scratch);
      Product own = p;
      unit* normed = scratch.normed.at_least(p.rows * p.w.steps);
      if (scratch.phase != phase)
        for (size_t row = 0; row < p.rows; row++)
          rms_norm(stream + row * hidden, norm, epsilon, hidden, (number*)(normed + row * p.w.steps));
      scratch.phase = phase;
      own.x = normed;
      run_task<Op>(own, cut, task, scratch);
    }
  };

  // So many rows at most are normalised by each thread for itself.
  static constexpr size_t kNormedByEach = 8;

  static size_t units(size_t rows, int width) { return rows * (width / Op::per_unit); }

  void phase(Part part, std::function<void(size_t)> work, size_t tokens) {
    const size_t even = tokens / (threads_ * 8) / kPage * kPage, at_once = even ? std::min(even, kManyTokens) : kFewTokens;
    each_.push_back({std::move(work), tokens, at_once});
    phases_.push_back(phase_of(part, each_.back(), (tokens + at_once - 1) / at_once));
  }

  Product product(Finish finish, const Linear& linear, const void* x, void* y, int stride, size_t rows) const {
    return {finish, linear, (const unit*)x, y, (size_t)stride, rows};
  }

  void add_product(Part part, const Product& p, const float* stream = nullptr, const float* norm = nullptr) {
    products_.push_back({p, Cut(p, threads_), stream, norm, m_.epsilon, m_.hidden});
    phases_.push_back(phase_of(part, products_.back(), products_.back().cut.tasks()));
  }

  void normed_product(Part part, Product p, const float* stream, const float* norm) {
    if (p.rows <= kNormedByEach) return add_product(part, p, stream, norm);
    unit* to = w_.normed.data();
    phase(
        Part::norm,
        [this, stream, norm, to](size_t t) {
          fetch(stream + (t + 2) * m_.hidden, m_.hidden * sizeof(float));
          rms_norm(stream + t * m_.hidden, norm, m_.epsilon, m_.hidden, (number*)to + t * m_.hidden);
        },
        p.rows);
    p.x = to;
    add_product(part, p);
  }

  void add_layer(const Layer& layer, bool is_last) {
    float* stream = w_.stream.data();
    normed_product(Part::qkv, product(Finish::floats, layer.qkv, nullptr, w_.qkv.data(), qkv_, s_.tokens), stream, layer.attention_norm);
    typename Attention<Op>::Plan& plan = is_last ? last_ : layer.window ? windowed_plan(layer.window) : all_;
    const Cache cache{layer.cache, m_.kv_heads, m_.head_size, m_.block_size, m_.layers};
    const Scoring scoring{m_.attention_scale, m_.softcap, layer.window};
    if (plan.tasks.empty()) Attention<Op>::plan(plan, cache, scoring, m_.heads, threads_);
    phase(
        Part::rotary,
        [this, &layer, cache, &plan](size_t t) {
          if (t == 0) Attention<Op>::reset(plan);
          turn_and_keep(layer, cache, t);
        },
        s_.tokens);
    attention_.emplace_back(cache, scoring, m_.heads, (const number*)w_.query.data(), (size_t)heads_, (number*)w_.attended.data(),
                            (size_t)heads_);
    attention_.back().use(plan);
    phases_.push_back(phase_of(Part::attention, attention_.back(), plan.tasks.size()));
    size_t rows = s_.tokens;
    const unit* attended = w_.attended.data();
    if (is_last) {
      phase(Part::other, [this](size_t i) { choose(i); }, s_.wanted);
      rows = s_.wanted, stream = w_.chosen_stream.data(), attended = w_.chosen.data();
    }
    Product output = product(Finish::add, layer.output, attended, stream, m_.hidden, rows);
    output.scale = m_.residual_scale;
    add_product(Part::output, output);
    normed_product(Part::gate_up, product(Finish::gated, layer.gate_up, nullptr, w_.inner.data(), m_.intermediate, rows), stream,
                   layer.mlp_norm);
    Product down = product(Finish::add, layer.down, w_.inner.data(), stream, m_.hidden, rows);
    down.scale = m_.residual_scale;
    add_product(Part::down, down);
  }

  typename Attention<Op>::Plan& windowed_plan(int window) {
    for (auto& [width, plan] : windowed_)
      if (width == window) return plan;
    windowed_.emplace_back();
    windowed_.back().first = window;
    windowed_.back().second.rows = all_.rows;
    return windowed_.back().second;
  }

  // The token's embedding, and its position's cosines and sines.
  void start(size_t t) {
    embed((const number*)m_.embedding + (size_t)s_.ids[t] * m_.hidden, m_.hidden, m_.embedding_scale, w_.stream.data() + t * m_.hidden);
    const Row& row = all_.rows[token_row_[t]];
    float* to = w_.rotation.data() + t * m_.rotary;
    rotation(row.past + (int)t - row.first, m_.frequencies, half_, m_.rotary_scale, to, to + half_);
  }

  // What the token after next is going to read and write, and a share of the next page that the row writes.
  TGI_INLINED void fetch_ahead(const Cache& cache, const Row& row, size_t t) const {
    fetch(w_.qkv.data() + (t + 2) * qkv_, qkv_ * sizeof(float));
    fetch((const number*)w_.query.data() + (t + 2) * heads_, heads_ * sizeof(number));
    const int position = row.past + (int)t - row.first, place = position % kPage, next = position - place + kPage;
    if (next >= row.past + row.count) return;
    const size_t share = 2 * cache.page_units(Op::per_unit) / kPage;
    for (int h = 0; h < m_.kv_heads; h++) fetch(keys_of<Op>(cache, row.table, next, h) + place * share, share * sizeof(unit));
  }

  // Queries as attention reads them; keys and values into the cache.
  void turn_and_keep(const Layer& layer, const Cache& cache, size_t t) {
    const Row& row = all_.rows[token_row_[t]];
    const float *from = w_.qkv.data() + t * qkv_, *angle = w_.rotation.data() + t * m_.rotary;
    const int size = m_.head_size, position = row.past + (int)t - row.first;
    fetch_ahead(cache, row, t);
    float head[512];
    number key[512], value[512], next[512];
    const auto turned = [&](const float* head_from, const float* norm, number* to) {
      if (norm) rms_norm(head_from, norm, m_.epsilon, size, head);
      rotate(norm ? head : head_from, angle, angle + half_, layer.rotary ? half_ : 0, size, to);
    };
    for (int h = 0; h < m_.heads; h++) turned(from + h * size, layer.query_norm, (number*)w_.query.data() + t * heads_ + h * size);
    for (int h = 0; h < m_.kv_heads; h++) {
      turned(from + heads_ + h * size, layer.key_norm, key);
      write_key<Op>(cache, row.table, position, h, key);
      if (written_before<Op>(position, (int)t > row.first)) continue;
      const float* values = from + heads_ + (m_.kv_heads + h) * size;
      const bool has_next = (int)t + 1 < row.first + row.count;
      to_numbers(values, size, value);
      if (has_next) to_numbers(values + qkv_, size, next);
      write_value<Op>(cache, row.table, position, h, value, has_next ? next : nullptr);
    }
  }

  void choose(size_t i) {
    const size_t token = s_.wanted_tokens[i];
    memcpy(w_.chosen_stream.data() + i * m_.hidden, w_.stream.data() + token * m_.hidden, (size_t)m_.hidden * 4);
    memcpy((number*)w_.chosen.data() + i * heads_, (number*)w_.attended.data() + token * heads_, (size_t)heads_ * sizeof(number));
  }

  const Model& m_;
  const Step& s_;
  Workspace& w_;
  const size_t threads_;
  const int half_, heads_, qkv_;
  typename Attention<Op>::Plan all_, last_;
  std::deque<std::pair<int, typename Attention<Op>::Plan>> windowed_;
  std::vector<int> token_row_;
  std::deque<EachToken> each_;
  std::deque<ProductWork> products_;
  std::deque<Attention<Op>> attention_;
  std::vector<Phase> phases_;
};

}  // namespace tgi
