// The parts of a step: phases that process each token by itself, and GEMMs.
#pragma once

#include <deque>
#include <functional>

#include "lora.h"
#include "rows.h"

namespace tgi {

template <class Op>
class Phases {
  using element = typename Op::element;
  // Tokens per task of a phase over single tokens: few if there are few, else whole pages, whose keys share cache lines.
  static constexpr size_t kFewTokens = 4, kManyTokens = 64;
  // With at most this many rows, each thread normalizes all of them itself.
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

  // A GEMM, plus its adapters.
  void gemm(Part part, Gemm p, const Adapted& adapted) {
    if (adapted.any()) {
      const size_t columns = p.epilogue == Epilogue::gated ? 2 * (size_t)p.columns() : p.columns(), depth = (size_t)p.w.steps * Op::per_unit;
      lora_.emplace_back(adapted, (const element*)p.x, depth, p.rows, columns, threads_);
      lora_.back().phases(part, [this](const Phase& phase) { add(phase); });
      p.added = adapted.sums, p.added_stride = columns;
    }
    add_gemm(part, p, {});
  }

  // The same over rows of `stream` [rows][width] after RMS norm with weight `norm`; `normed` has room for them.
  void normed_gemm(Part part, Gemm p, const float* stream, const float* norm, int width, unit* normed, const Adapted& adapted) {
    if (p.rows <= kNormedByEach && !adapted.any()) return add_gemm(part, p, {stream, norm, epsilon_, width});
    each_token(
        Part::norm,
        [this, stream, norm, width, normed](size_t t) {
          fetch(stream + (t + 2) * width, width * sizeof(float));
          rms_norm(stream + t * width, norm, epsilon_, width, (element*)normed + t * width);
        },
        p.rows);
    p.x = normed;
    gemm(part, p, adapted);
  }

 private:
  struct EachToken {
    std::function<void(size_t)> work;
    size_t tokens, at_once;
    void operator()(uint32_t task, Scratch&, uint64_t) const {
      for (size_t t = task * at_once; t < tokens && t < (task + 1) * at_once; t++) work(t);
    }
  };

  // The norm before a GEMM; none if `weight` is null.
  struct Norm {
    const float *stream, *weight;
    float epsilon;
    int width;
  };

  // A GEMM, with the norm before it if it has few rows: each thread then normalizes all of them itself, which costs less than waiting for
  // other threads.
  struct GemmWork {
    Gemm p;
    Tiling tiling;
    Norm norm;
    void operator()(uint32_t task, Scratch& scratch, uint64_t phase) const {
      if (!norm.weight) return run_task<Op>(p, tiling, task, scratch, phase);
      Gemm own = p;
      unit* normed = scratch.normed.at_least(p.rows * p.w.steps);
      if (!scratch.has_normed.is_there(phase, 0))
        for (size_t row = 0; row < p.rows; row++)
          rms_norm(norm.stream + row * norm.width, norm.weight, norm.epsilon, norm.width, (element*)(normed + row * p.w.steps));
      own.x = normed;
      run_task<Op>(own, tiling, task, scratch, phase);
    }
  };

  void add_gemm(Part part, const Gemm& p, const Norm& norm) {
    gemms_.push_back({p, Tiling(p, threads_), norm});
    add(phase_of(part, gemms_.back(), gemms_.back().tiling.tasks()));
  }

  const size_t threads_;
  const float epsilon_;
  std::deque<EachToken> each_;
  std::deque<GemmWork> gemms_;
  std::deque<LoraSums<Op>> lora_;
  std::vector<Phase> phases_;
};

}  // namespace tgi
