// A long step runs in microbatches: the activations of one stay in the processor's caches from one GEMM to the next, and take less memory.
// To a row, a microbatch is what a prefill chunk is.
#pragma once

#include "step.h"

namespace tgi {

constexpr int kMicrobatchTokens = 1024;

// Tokens first…last-1 of a step, as a step.
class Microbatch {
 public:
  Microbatch(const Step& whole, int first, int last) : step_(whole), first_(first) {
    const int32_t* row = whole.row;
    for (; row[0] + row[1] <= first; row += 3) {
      step_.table += whole.table_stride;
      if (step_.window_table) step_.window_table += whole.table_stride;
    }
    for (; row < whole.row + 3 * whole.rows && row[0] < last; row += 3) {
      const int from = std::max(first, row[0]), to = std::min(last, row[0] + row[1]);
      rows_.insert(rows_.end(), {from - first, to - from, row[2] + from - row[0]});
    }
    const int32_t* wanted = std::lower_bound(whole.wanted_tokens, whole.wanted_tokens + whole.wanted, first);
    chosen_ = wanted - whole.wanted_tokens;
    for (; wanted < whole.wanted_tokens + whole.wanted && *wanted < last; wanted++) wanted_.push_back(*wanted - first);
    step_.tokens = last - first, step_.ids += first;
    step_.rows = (int32_t)rows_.size() / 3, step_.row = rows_.data();
    step_.wanted = (int32_t)wanted_.size(), step_.wanted_tokens = wanted_.data();
    for (const Segment* segment = whole.segment; segment < whole.segment + whole.segments; segment++) {
      const int from = std::max(first, segment->first), to = std::min(last, segment->last);
      if (from < to) segments_.push_back({segment->adapter, from - first, to - first});
    }
    step_.segments = (int32_t)segments_.size(), step_.segment = segments_.data();
  }
  Microbatch(const Microbatch&) = delete;

  const Step& step() const { return step_; }
  // How many tokens are in earlier microbatches.
  size_t first() const { return first_; }
  // How many of those are wanted.
  size_t chosen() const { return chosen_; }

 private:
  Step step_;
  size_t first_, chosen_;
  std::vector<int32_t> rows_, wanted_;
  std::vector<Segment> segments_;
};

// The last part runs once for all microbatches: few tokens are wanted, so it is bound by reading weights, the largest among them.
template <class Op>
void run_step(const Model& model, const Step& step, Workspace& space, Pool& pool) {
  const int batches = std::max(1, (step.tokens + kMicrobatchTokens - 1) / kMicrobatchTokens);
  const int size = rounded_up((step.tokens + batches - 1) / batches, kPage);
  space.make_room<Op>(model, size, step.wanted, step.segments > 0);
  for (int first = 0; first < step.tokens; first += size) {
    const Microbatch batch(step, first, std::min(first + size, step.tokens));
    const StepBody<Op> body(model, batch.step(), batch.first(), batch.chosen(), space, pool.threads());
    pool.run(body.phases());
  }
  pool.run(StepEnd<Op>(model, step, space, pool.threads()).phases());
}

}  // namespace tgi
