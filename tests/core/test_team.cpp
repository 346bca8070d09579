// Threads that share out tasks, some of which are late.
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "../../csrc/common/team.hpp"
#include "problem.hpp"
#include "tests.hpp"

namespace linattn {

namespace {

// Each for_each() finds what the one before has written, and writes every number once.
void test_order(int threads) {
  constexpr std::int64_t rounds = 20, count = 7;
  std::vector<std::int64_t> written(count, 0);
  bool in_order = true;
  Team::run(threads, [&](Team& team, int) {
    for (std::int64_t round = 0; round < rounds; ++round) {
      team.for_each(0, [](std::int64_t) {});
      team.for_each(count, [&](std::int64_t i) { ++written[std::size_t(i)]; });
      team.for_each(1, [&](std::int64_t) {
        for (const std::int64_t each : written) in_order = in_order && each == round + 1;
      });
    }
  });
  check(in_order && written[count - 1] == rounds, "tasks of a team", "any", threads, rounds);
}

// The calling thread comes to the end of its body although the others have not come to their first task; they then
// pass over what is done.
void test_late_threads(int threads) {
  std::atomic<bool> at_the_end{false};
  std::atomic<int> gave_up{0}, tasks{0};
  Team::run(threads, [&](Team& team, int rank) {
    const auto last = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (rank > 0 && !at_the_end) {
      if (std::chrono::steady_clock::now() > last) {
        ++gave_up;
        break;
      }
      std::this_thread::yield();
    }
    for (int round = 0; round < 3; ++round) team.for_each(5, [&](std::int64_t) { ++tasks; });
    if (rank == 0) at_the_end = true;
  });
  check(gave_up == 0 && tasks == 15, "late threads of a team", "any", threads, 5);
}

// A task that throws ends the call with its exception, wherever the others are.
void test_failure(int threads) {
  std::string told;
  try {
    Team::run(threads, [&](Team& team, int) {
      team.for_each(10, [](std::int64_t) {});
      team.for_each(10, [](std::int64_t i) {
        if (i == 6) throw std::runtime_error("six");
      });
      team.for_each(10, [&](std::int64_t) { told = "went on"; });
    });
  } catch (const std::runtime_error& error) {
    told += error.what();
  }
  check(told == "six", "failure of a task of a team", "any", threads, 10);
}

}  // namespace

void test_team() {
  for (int repeat = 0; repeat < 50; ++repeat) {
    for (const int threads : {1, 2, 3, 8}) {
      test_order(threads);
      test_failure(threads);
    }
  }
  for (const int threads : {2, 5}) test_late_threads(threads);
}

}  // namespace linattn
