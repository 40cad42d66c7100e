// A long step runs part by part: what the tokens of a part make stays in the processor's caches from one product to the next, and less
// memory is needed for it. A part is to its rows what a chunk of a prompt is.
#pragma once

#include "step.h"

namespace tgi {

constexpr int kPartTokens = 1024;

// Tokens first…last-1 of a step, as a step of their own.
class StepPart {
 public:
  StepPart(const Step& whole, int first, int last) : step_(whole) {
    const int32_t* row = whole.row;
    for (; row[0] + row[1] <= first; row += 3) step_.table += whole.table_stride;
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
  StepPart(const StepPart&) = delete;

  const Step& step() const { return step_; }
  // How many wanted tokens are in the parts before.
  size_t chosen() const { return chosen_; }

 private:
  Step step_;
  size_t chosen_;
  std::vector<int32_t> rows_, wanted_;
  std::vector<Segment> segments_;
};

// The end is common: so few tokens are wanted that it is bound by reading weights, among them the largest.
template <class Op>
void run_step(const Model& model, const Step& step, Workspace& space, Pool& pool) {
  const int parts = std::max(1, (step.tokens + kPartTokens - 1) / kPartTokens);
  const int size = rounded_up((step.tokens + parts - 1) / parts, kPage);
  space.make_room<Op>(model, size, step.wanted, step.segments > 0);
  for (int first = 0; first < step.tokens; first += size) {
    const StepPart part(step, first, std::min(first + size, step.tokens));
    const StepBody<Op> body(model, part.step(), part.chosen(), space, pool.threads());
    pool.run(body.phases());
  }
  pool.run(StepEnd<Op>(model, step, space, pool.threads()).phases());
}

}  // namespace tgi
