// What a step is made of: phases of things done to every token by itself, and of products.
#pragma once

#include <deque>
#include <functional>

#include "low_rank.h"
#include "rows.h"

namespace tgi {

template <class Op>
class Phases {
  using number = typename Op::number;
  // Tokens of a task that is done to every token by itself: few where there are few, and else whole pages, whose keys share cache lines.
  static constexpr size_t kFewTokens = 4, kManyTokens = 64;
  // So many rows at most are normalised by each thread for itself.
  static constexpr size_t kNormedByEach = 8;

 public:
  Phases(size_t threads, float epsilon) : threads_(threads), epsilon_(epsilon) {}
  Phases(const Phases&) = delete;

  const std::vector<Phase>& all() const { return phases_; }

  void add(const Phase& phase) { phases_.push_back(phase); }

  void each_token(Part part, std::function<void(size_t)> work, size_t tokens) {
    const size_t even = tokens / (threads_ * 8) / kPage * kPage, at_once = even ? std::min(even, kManyTokens) : kFewTokens;
    each_.push_back({std::move(work), tokens, at_once});
    add(phase_of(part, each_.back(), (tokens + at_once - 1) / at_once));
  }

  // A product, and what adapters add to it.
  void product(Part part, Product p, const Adapted& adapted) {
    if (adapted.any()) {
      const size_t columns = p.finish == Finish::gated ? 2 * (size_t)p.columns() : p.columns(), depth = (size_t)p.w.steps * Op::per_unit;
      additions_.emplace_back(adapted, (const number*)p.x, depth, p.rows, columns, threads_);
      additions_.back().phases(part, [this](const Phase& phase) { add(phase); });
      p.added = adapted.sums, p.added_stride = columns;
    }
    add_product(part, p, {});
  }

  // The same of rows of `stream` [rows][width], each normalised and weighed by `norm`; `normed` has room for them.
  void normed_product(Part part, Product p, const float* stream, const float* norm, int width, unit* normed, const Adapted& adapted) {
    if (p.rows <= kNormedByEach && !adapted.any()) return add_product(part, p, {stream, norm, epsilon_, width});
    each_token(
        Part::norm,
        [this, stream, norm, width, normed](size_t t) {
          fetch(stream + (t + 2) * width, width * sizeof(float));
          rms_norm(stream + t * width, norm, epsilon_, width, (number*)normed + t * width);
        },
        p.rows);
    p.x = normed;
    product(part, p, adapted);
  }

 private:
  struct EachToken {
    std::function<void(size_t)> work;
    size_t tokens, at_once;
    void operator()(uint32_t task, Scratch&, uint64_t) const {
      for (size_t t = task * at_once; t < tokens && t < (task + 1) * at_once; t++) work(t);
    }
  };

  // What comes before a product; nothing where `weight` is null.
  struct Norm {
    const float *stream, *weight;
    float epsilon;
    int width;
  };

  // A product, with the norm before it where its rows are few: then each thread normalises them all for itself, which costs less than
  // waiting for each other.
  struct ProductWork {
    Product p;
    Cut cut;
    Norm norm;
    void operator()(uint32_t task, Scratch& scratch, uint64_t phase) const {
      if (!norm.weight) return run_task<Op>(p, cut, task, scratch);
      Product own = p;
      unit* normed = scratch.normed.at_least(p.rows * p.w.steps);
      if (scratch.phase != phase)
        for (size_t row = 0; row < p.rows; row++)
          rms_norm(norm.stream + row * norm.width, norm.weight, norm.epsilon, norm.width, (number*)(normed + row * p.w.steps));
      scratch.phase = phase;
      own.x = normed;
      run_task<Op>(own, cut, task, scratch);
    }
  };

  void add_product(Part part, const Product& p, const Norm& norm) {
    products_.push_back({p, Cut(p, threads_), norm});
    add(phase_of(part, products_.back(), products_.back().cut.tasks()));
  }

  const size_t threads_;
  const float epsilon_;
  std::deque<EachToken> each_;
  std::deque<ProductWork> products_;
  std::deque<Additions<Op>> additions_;
  std::vector<Phase> phases_;
};

}  // namespace tgi
