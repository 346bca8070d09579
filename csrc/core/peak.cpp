#include "peak.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "team.hpp"

namespace linattn {

double multiply_add_rate(const Kernels& kernels, int threads) {
  constexpr std::int64_t rounds = 20'000'000, flops_a_round = 12 * 2;
  double best = 0.0;
  std::atomic<double> sink{0.0};
  for (int run = 0; run < 5; ++run) {
    const auto start = std::chrono::steady_clock::now();
    Team::run(threads, [&](Team&, int) { sink = kernels.multiply_adds(rounds); });
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    const double flops = static_cast<double>(flops_a_round * rounds * kernels.lanes * threads);
    best = std::max(best, flops / spent.count());
  }
  return best;
}

}  // namespace linattn
