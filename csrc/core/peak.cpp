#include "peak.hpp"

#include <atomic>
#include <chrono>

#include "../common/team.hpp"

namespace linattn {

double multiply_add_rate(const Kernels& kernels, int threads) {
  constexpr std::int64_t rounds = 40'000'000, flops_a_round = independent_vectors * 2;
  std::atomic<double> sink{0.0};
  const auto start = std::chrono::steady_clock::now();
  Team::run(threads, [&](Team& team, int) {
    team.for_each(threads, [&](std::int64_t) { sink = kernels.multiply_adds(rounds); });
  });
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
  return static_cast<double>(flops_a_round * rounds * kernels.lanes * threads) / spent.count();
}

}  // namespace linattn
