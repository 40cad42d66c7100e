// A thread pool for machines that run other work as well.
//
// Work is a list of phases of numbered tasks. Each thread has a share of a phase's tasks, the same part of every phase, so that it finds
// its own results in its own cache. A thread that has finished its share steals tasks from the others'. Tasks are claimed one by
// one, and a phase ends when its tasks are done, not when all threads have arrived: a thread that the system has preempted between two
// tasks delays nobody. A thread that finds nothing to claim spins for about ten microseconds and then sleeps.
#pragma once

#include <immintrin.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "memory.h"
#include "tiles.h"

namespace tgi {

// The part of a step that a phase belongs to, for profiling.
enum class Part : uint32_t { input, norm, qkv, rotary, attention, output, gate_up, down, head, sampling, other, count };

// What a thread derived from some rows of a phase's input, kept for its other tasks of that phase.
class Derived {
 public:
  // Whether it is there for rows from `first` on; if not, the caller is about to derive it.
  bool is_there(uint64_t phase, size_t first) {
    if (phase_ == phase && first_ == first) return true;
    phase_ = phase, first_ = first;
    return false;
  }

 private:
  uint64_t phase_ = 0;
  size_t first_ = 0;
};

// A thread's own buffers, kept from one task to the next.
struct Scratch {
  Buffer<float> floats;
  Buffer<uint32_t> units;
  Buffer<uint32_t> normed;
  Buffer<uint32_t> tiles;
  Buffer<float> tile_scales;
  Buffer<float> wide_rows, wide_part;
  Buffer<float> sums;
  Derived has_normed, has_tiles, has_wide_rows, has_sums;
};

struct Phase {
  Part part;
  uint32_t tasks;
  void (*run)(const void* self, uint32_t task, Scratch& scratch, uint64_t phase);
  const void* self;
};

// A phase that calls `work(task, scratch, phase)`; `work` must outlive it.
template <class Work>
Phase phase_of(Part part, const Work& work, size_t tasks) {
  return {part, (uint32_t)tasks,
          [](const void* self, uint32_t task, Scratch& scratch, uint64_t phase) {
            (*static_cast<const Work*>(self))(task, scratch, phase);
          },
          &work};
}

class Pool {
 public:
  // `threads` includes the caller of run.
  explicit Pool(int threads) : lane_((size_t)(threads < 1 ? 1 : threads)) {
    for (size_t i = 1; i < lane_.size(); i++) workers_.emplace_back([this, i] { work(i); });
  }

  ~Pool() {
    stopping_.store(true);
    wake();
    for (auto& worker : workers_) worker.join();
  }

  size_t threads() const { return lane_.size(); }

  // Nanoseconds spent in phases of each part since the pool was created.
  const uint64_t* times() const { return times_; }

  // Runs the phases in order; returns when the last one has ended. One caller at a time; others wait.
  void run(const std::vector<Phase>& phases) {
    std::lock_guard<std::mutex> turn(turn_);
    phases_ = phases.data();
    count_ = phases.size();
    at_ = (size_t)-1;
    over_.store(false, std::memory_order_relaxed);
    since_ = now();
    advance();
    unsigned idle = 0;
    while (!over_.load(std::memory_order_acquire)) {
      const uint32_t seen = signal_.load(std::memory_order_acquire);
      if (claim_one(0))
        idle = 0;
      else if (!over_.load(std::memory_order_acquire))
        pause(idle, seen);
    }
    release_tiles();
  }

 private:
  // What each thread owns: buffers, and its share of the phase. The share is one word (phase number, end of the share, next task), so that
  // a claim can succeed only in the phase in which the word was read.
  struct alignas(64) Lane {
    std::atomic<uint64_t> claim{0};
    Scratch scratch;
  };
  static constexpr int kTaskBits = 20;
  static constexpr uint64_t kTaskMask = (1u << kTaskBits) - 1;
  static constexpr unsigned kSpins = 1500;

  // Runs a task of the thread's own share, or else of the next thread that has one.
  bool claim_one(size_t thread) {
    for (size_t i = 0; i < lane_.size(); i++) {
      std::atomic<uint64_t>& claim = lane_[(thread + i) % lane_.size()].claim;
      uint64_t seen = claim.load(std::memory_order_acquire);
      while ((seen & kTaskMask) < ((seen >> kTaskBits) & kTaskMask)) {
        if (!claim.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
        const Phase phase = phases_[at_];  // a copy: the list may be gone once the last task has finished
        phase.run(phase.self, (uint32_t)(seen & kTaskMask), lane_[thread].scratch, number_);
        if (finished_.fetch_add(1, std::memory_order_acq_rel) + 1 == phase.tasks) advance();
        return true;
      }
    }
    return false;
  }

  // Opens the next phase that has tasks, or ends the run. Called by whoever finished the last task of a phase.
  void advance() {
    if (at_ < count_) {
      const uint64_t time = now();
      times_[(size_t)phases_[at_].part] += time - since_;
      since_ = time;
    }
    size_t next = at_ + 1;
    while (next < count_ && phases_[next].tasks == 0) next++;
    at_ = next;
    finished_.store(0, std::memory_order_relaxed);
    number_++;
    const bool last = next >= count_;
    const uint64_t tasks = last ? 0 : phases_[next].tasks, opened = number_ << (2 * kTaskBits);
    for (size_t i = 0; i < lane_.size(); i++) {
      const uint64_t first = tasks * i / lane_.size(), end = tasks * (i + 1) / lane_.size();
      lane_[i].claim.store(opened | (end << kTaskBits) | first, std::memory_order_release);
    }
    // From here on other threads may have moved on, even to another run: don't read what they change.
    if (last) over_.store(true, std::memory_order_release);
    // A single task is about to be claimed by this thread: waking another one gains nothing.
    if (tasks != 1) wake();
  }

  void wake() {
    signal_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst)) syscall(SYS_futex, &signal_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  }

  void pause(unsigned& idle, uint32_t seen) {
    if (++idle < kSpins) return _mm_pause();
    release_tiles();
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    syscall(SYS_futex, &signal_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    idle = 0;
  }

  void work(size_t thread) {
    unsigned idle = 0;
    while (!stopping_.load(std::memory_order_acquire)) {
      const uint32_t seen = signal_.load(std::memory_order_acquire);
      if (claim_one(thread))
        idle = 0;
      else if (!stopping_.load(std::memory_order_acquire))
        pause(idle, seen);
    }
  }

  static uint64_t now() {
    return (uint64_t)std::chrono::steady_clock::now().time_since_epoch().count();
  }

  std::mutex turn_;
  const Phase* phases_ = nullptr;
  size_t count_ = 0, at_ = 0;
  uint64_t number_ = 0, since_ = 0;
  uint64_t times_[(size_t)Part::count] = {};
  alignas(64) std::atomic<uint32_t> finished_{0};
  alignas(64) std::atomic<uint32_t> signal_{0};
  std::atomic<uint32_t> sleepers_{0};
  std::atomic<bool> over_{true}, stopping_{false};
  std::vector<Lane> lane_;
  std::vector<std::thread> workers_;
};

}  // namespace tgi
