// LoRA adapters: for some tokens of a step, x · A · B is added to the result of a GEMM over x.
//
// Both matrices are float32 in any model: they are small, and so are their rounding errors then. An element of either GEMM is one chain of
// additions over its own row and column, so a token's result depends on no other token, nor on how a step is divided.
#pragma once

#include <algorithm>
#include <vector>

#include "tasks.h"
#include "pool.h"

namespace tgi {

// These structures are mirrored in interface.py.

// One slice of a merged projection: `lora_a` [rank][inputs] in panels of one block, `lora_b` [columns][rank], for columns from `first` on.
struct PackedLora {
  Linear lora_a, lora_b;
  int32_t first, unused;
};

// One adapter's slices of one merged projection.
struct PackedLoras {
  const PackedLora* slice;
  int32_t slices, unused;
};

// Tokens first…last-1 run with an adapter.
struct Segment {
  int32_t adapter, first, last;
};

// The adapters of one GEMM: those of adapter a are at found[a · stride]. `low` has room for [rows][rank], `sums` for [rows][columns].
struct Adapted {
  const std::vector<Segment>* segments = nullptr;
  const PackedLoras* found = nullptr;
  size_t stride = 0;
  float *low = nullptr, *sums = nullptr;

  const PackedLoras& of(const Segment& segment) const { return found[segment.adapter * stride]; }
  bool any() const {
    if (segments)
      for (const Segment& segment : *segments)
        if (of(segment).slices) return true;
    return false;
  }
};

// Computes the adapters' sums [rows][columns] for rows of x [rows][depth] in two phases: x · A, then · B. Rows and columns without an
// adapter are zero.
template <class Op>
class LoraSums {
  using element = typename Op::element;
  static constexpr size_t kRows = 16;  // per task

 public:
  LoraSums(const Adapted& adapted, const element* x, size_t depth, size_t rows, size_t columns, size_t threads)
      : x_(x), sums_(adapted.sums), depth_(depth), columns_(columns) {
    float* low = adapted.low;
    size_t done = 0;
    for (const Segment& segment : *adapted.segments) {
      clear(done, segment.first);
      size_t covered = 0;
      const PackedLoras& found = adapted.of(segment);
      for (int i = 0; i < found.slices; i++) low = add(found.slice[i], segment, low, threads), covered += found.slice[i].lora_b.columns;
      if (covered < columns) clear(segment.first, segment.last);
      done = segment.last;
    }
    clear(done, rows);
  }
  LoraSums(const LoraSums&) = delete;

  struct Down {
    const LoraSums& all;
    void operator()(uint32_t task, Scratch& scratch, uint64_t) const { all.run_down(task, scratch); }
  };
  struct Up {
    const LoraSums& all;
    void operator()(uint32_t task, Scratch& scratch, uint64_t phase) const { all.run_up(task, scratch, phase); }
  };
  // Phases over this object, which must not move. Zeroing runs in the first one.
  template <class Add>
  void phases(Part part, const Add& add) const {
    add(phase_of(part, down_, clears_ + downs_));
    add(phase_of(part, up_, ups_));
  }

 private:
  struct Item {
    const PackedLora* low;
    size_t first, rows, down, up;  // the last two are the numbers of its first tasks
    Gemm gemm;
    Tiling tiling;
  };
  struct Gap {
    size_t first, last, task;
  };

  float* add(const PackedLora& low, const Segment& segment, float* inner, size_t threads) {
    const size_t rows = segment.last - segment.first, first = segment.first, rank = low.lora_b.steps;
    const Gemm gemm{Epilogue::floats, low.lora_b, (const unit*)inner, sums_ + first * columns_ + low.first, columns_, rows};
    items_.push_back({&low, first, rows, downs_, ups_, gemm, Tiling(gemm, threads)});
    downs_ += (rows + kRows - 1) / kRows * ((rank + 15) / 16);
    ups_ += items_.back().tiling.tasks();
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
    const size_t rank = item.low->lora_b.steps, panels = (rank + 15) / 16, own = task - item.down, from = own / panels * kRows;
    const size_t rows = std::min(kRows, item.rows - from);
    float* to = (float*)item.gemm.x + from * rank;
    const Gemm p{Epilogue::low, item.low->lora_a, (const unit*)floats(item.first + from, rows, scratch), to, rank, rows};
    PanelGemm<Float>(p, (int)(own % panels), 0, rows).run(scratch);
  }

  void run_clear(size_t task) const {
    const Gap& gap = *(std::upper_bound(gaps_.begin(), gaps_.end(), task, [](size_t t, const Gap& g) { return t < g.task; }) - 1);
    const size_t from = gap.first + (task - gap.task) * kRows, to = std::min(gap.last, from + kRows);
    memset(sums_ + from * columns_, 0, (to - from) * columns_ * sizeof(float));
  }

  void run_up(size_t task, Scratch& scratch, uint64_t phase) const {
    const Item& item = *(std::upper_bound(items_.begin(), items_.end(), task, [](size_t t, const Item& i) { return t < i.up; }) - 1);
    run_task<Float>(item.gemm, item.tiling, (uint32_t)(task - item.up), scratch, phase);
  }

  // Rows of x, converted to floats.
  const float* floats(size_t first, size_t rows, Scratch& scratch) const {
    const element* from = x_ + first * depth_;
    if constexpr (Op::per_unit == 1) {
      return from;
    } else {
      const size_t size = rows * depth_;
      float* to = scratch.floats.at_least(rounded_up(size, 16));
      for (size_t i = 0; i < size; i += 16) store_first(to + i, load_first(from + i, (int)std::min<size_t>(16, size - i)), 16);
      return to;
    }
  }

  const element* x_;
  float* sums_;
  const size_t depth_, columns_;
  size_t downs_ = 0, ups_ = 0, clears_ = 0;
  std::vector<Item> items_;
  std::vector<Gap> gaps_;
  const Down down_{*this};
  const Up up_{*this};
};

}  // namespace tgi
