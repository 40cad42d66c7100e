// Adapters: for some tokens of a step, what two small matrices make of a product's input is added to its result.
//
// Both are of floats, whatever the model is: they are small, and so are their errors then. An element of either product is one chain of
// additions over its own row and column, so that what a token gets depends on no other token, nor on where a step is cut.
#pragma once

#include <algorithm>
#include <vector>

#include "gemm.h"
#include "pool.h"

namespace tgi {

// These structures are mirrored in tables.py.

// `down` [rank][inputs] in panels of one block, `up` [columns][rank], whose first column is `first` of the product's.
struct LowRank {
  Linear down, up;
  int32_t first, unused;
};

// What one adapter adds to one product.
struct LowRanks {
  const LowRank* part;
  int32_t parts, unused;
};

// Tokens first…last-1 run under an adapter.
struct Segment {
  int32_t adapter, first, last;
};

// Where a product's adapters are: those of adapter a at found[a · stride]. `low` has room for [rows][rank], `sums` for [rows][columns].
struct Adapted {
  const std::vector<Segment>* segments = nullptr;
  const LowRanks* found = nullptr;
  size_t stride = 0;
  float *low = nullptr, *sums = nullptr;

  const LowRanks& of(const Segment& segment) const { return found[segment.adapter * stride]; }
  bool any() const {
    if (segments)
      for (const Segment& segment : *segments)
        if (of(segment).parts) return true;
    return false;
  }
};

// The sums that adapters make for rows of x [rows][depth], in two phases: down to the ranks, and up to sums [rows][stride], zeros where no
// adapter has anything to add.
template <class Op>
class Additions {
  using number = typename Op::number;
  static constexpr size_t kRows = 16;  // of a task

 public:
  Additions(const Adapted& adapted, const number* x, size_t depth, size_t rows, size_t columns, size_t threads)
      : x_(x), sums_(adapted.sums), depth_(depth), columns_(columns) {
    float* low = adapted.low;
    size_t done = 0;
    for (const Segment& segment : *adapted.segments) {
      clear(done, segment.first);
      size_t covered = 0;
      const LowRanks& found = adapted.of(segment);
      for (int i = 0; i < found.parts; i++) low = add(found.part[i], segment, low, threads), covered += found.part[i].up.columns;
      if (covered < columns) clear(segment.first, segment.last);
      done = segment.last;
    }
    clear(done, rows);
  }
  Additions(const Additions&) = delete;

  struct Down {
    const Additions& all;
    void operator()(uint32_t task, Scratch& scratch, uint64_t) const { all.run_down(task, scratch); }
  };
  struct Up {
    const Additions& all;
    void operator()(uint32_t task, Scratch& scratch, uint64_t) const { all.run_up(task, scratch); }
  };
  // Phases over this object, which stays where it is. What is to be cleared is done beside the way down.
  template <class Add>
  void phases(Part part, const Add& add) const {
    add(phase_of(part, down_, clears_ + downs_));
    add(phase_of(part, up_, ups_));
  }

 private:
  struct Item {
    const LowRank* low;
    size_t first, rows, down, up;  // the last two are its first tasks
    Product product;
    Cut cut;
  };
  struct Gap {
    size_t first, last, task;
  };

  float* add(const LowRank& low, const Segment& segment, float* inner, size_t threads) {
    const size_t rows = segment.last - segment.first, first = segment.first, rank = low.up.steps;
    const Product product{Finish::floats, low.up, (const unit*)inner, sums_ + first * columns_ + low.first, columns_, rows};
    items_.push_back({&low, first, rows, downs_, ups_, product, Cut(product, threads)});
    downs_ += (rows + kRows - 1) / kRows * ((rank + 15) / 16);
    ups_ += items_.back().cut.tasks();
    return inner + rows * rank;
  }

  void clear(size_t first, size_t last) {
    if (first >= last) return;
    gaps_.push_back({first, last, clears_});
    clears_ += (last - first + kRows - 1) / kRows;
  }

  void run_down(size_t task, Scratch& scratch) const {
    if (task < clears_) return run_clear(task);
    task -= clears_;
    const Item& item = *(std::upper_bound(items_.begin(), items_.end(), task, [](size_t t, const Item& i) { return t < i.down; }) - 1);
    const size_t rank = item.low->up.steps, panels = (rank + 15) / 16, own = task - item.down, from = own / panels * kRows;
    const size_t rows = std::min(kRows, item.rows - from);
    float* to = (float*)item.product.x + from * rank;
    const Product p{Finish::low, item.low->down, (const unit*)floats(item.first + from, rows, scratch), to, rank, rows};
    PanelProduct<Float>(p, (int)(own % panels), 0, rows).run(scratch);
  }

  void run_clear(size_t task) const {
    const Gap& gap = *(std::upper_bound(gaps_.begin(), gaps_.end(), task, [](size_t t, const Gap& g) { return t < g.task; }) - 1);
    const size_t from = gap.first + (task - gap.task) * kRows, to = std::min(gap.last, from + kRows);
    memset(sums_ + from * columns_, 0, (to - from) * columns_ * sizeof(float));
  }

  void run_up(size_t task, Scratch& scratch) const {
    const Item& item = *(std::upper_bound(items_.begin(), items_.end(), task, [](size_t t, const Item& i) { return t < i.up; }) - 1);
    run_task<Float>(item.product, item.cut, (uint32_t)(task - item.up), scratch);
  }

  // Rows of x as floats.
  const float* floats(size_t first, size_t rows, Scratch& scratch) const {
    const number* from = x_ + first * depth_;
    if constexpr (Op::per_unit == 1) {
      return from;
    } else {
      const size_t size = rows * depth_;
      float* to = scratch.floats.at_least(rounded_up(size, 16));
      for (size_t i = 0; i < size; i += 16) store_first(to + i, load_first(from + i, (int)std::min<size_t>(16, size - i)), 16);
      return to;
    }
  }

  const number* x_;
  float* sums_;
  const size_t depth_, columns_;
  size_t downs_ = 0, ups_ = 0, clears_ = 0;
  std::vector<Item> items_;
  std::vector<Gap> gaps_;
  const Down down_{*this};
  const Up up_{*this};
};

}  // namespace tgi
