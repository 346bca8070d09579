// The core without Python, against the definitions written as loops. Runs wherever the core compiles: on this
// machine, and for arm64 under an emulator.
#include "../../csrc/core/scan.hpp"
#include "../../csrc/kernels/isa.hpp"
#include "problem.hpp"
#include "tests.hpp"

namespace linattn {

namespace {

void test_indices() {
  for (std::int64_t d = 1; d < 40; ++d) {
    std::int64_t index = 0, triple = 0;
    for (Pair pair{0, 0}; pair.j < d; pair = next_pair(pair, d), ++index) {
      const Pair back = pair_at(index, d);
      check(pair_index(pair.j, pair.k, d) == index && back.j == pair.j && back.k == pair.k, "pairs", "any", d, 0);
      check(triple_start(pair.j, pair.k, d) == triple, "triples", "any", d, 0);
      triple += d - pair.k;
    }
  }
}

void test_scan(std::mt19937& random) {
  Problem problem(3, 50, Positions::all, random);
  const Tokens tokens = problem.sequences();
  check(first_non_finite(tokens, 2) == -1, "scan of finite tokens", "any", 3, 50);
  problem.tokens[std::size_t(problem.offsets[17] * 3 + 1)] = std::nan("");
  check(first_non_finite(tokens, 2) == 17, "scan", "any", 3, 50);
}

}  // namespace

}  // namespace linattn

int main() {
  std::mt19937 random(1);
  linattn::test_indices();
  linattn::test_scan(random);
  linattn::test_team();
  for (const linattn::InstructionSet& set : linattn::instruction_sets()) {
    if (!set.supported) continue;
    linattn::test_samples(*set.kernels, random);
    linattn::test_algebra(*set.kernels, random);
    std::printf("%s: done\n", set.kernels->name);
  }
  std::printf("%d passed, %d failed\n", linattn::passed, linattn::failed);
  return linattn::failed == 0 ? 0 : 1;
}
