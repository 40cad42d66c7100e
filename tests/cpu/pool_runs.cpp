// Runs a pool of argv[1] threads over random lists of phases, and counts tasks that ran another number of times than once, or in another
// phase than their own. Built with ThreadSanitizer by test_pool.py.
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <random>

#include "pool.h"

using namespace tgi;

struct Count {
  std::atomic<int> *ran, *phase, *wrong;
  int own_phase;
  void operator()(uint32_t task, Scratch&, uint64_t) const {
    ran[task]++;
    if (phase->load() != own_phase) (*wrong)++;
  }
};

struct GoOn {
  std::atomic<int>* phase;
  void operator()(uint32_t, Scratch&, uint64_t) const { (*phase)++; }
};

int main(int, char** argv) {
  constexpr int kRuns = 2000, kMostTasks = 40;
  std::mt19937 random(1);
  std::atomic<int> wrong{0};
  Pool pool(std::atoi(argv[1]));
  for (int run = 0; run < kRuns; run++) {
    std::atomic<int> phase{0}, ran[12][kMostTasks] = {};
    const GoOn go_on{&phase};
    std::deque<Count> works;
    std::vector<Phase> phases;
    for (size_t i = 0, count = 1 + random() % 12; i < count; i++) {
      works.push_back({ran[i], &phase, &wrong, (int)i});
      phases.push_back(phase_of(Part::other, works.back(), random() % (random() % 4 ? kMostTasks : 3)));
      phases.push_back(phase_of(Part::other, go_on, 1));
    }
    pool.run(phases);
    for (size_t i = 0; i < works.size(); i++)
      for (uint32_t task = 0; task < kMostTasks; task++) wrong += ran[i][task] != (task < phases[2 * i].tasks);
  }
  std::printf("%d\n", wrong.load());
}
