// A Gram by the kernel of csrc/cuda/sum_products.cu, in every order of threads, against plain loops: 66 rows and 300
// samples, so that there are two row tiles, two slabs and an incomplete panel. Exit code 0: right, 1: wrong, 2: the
// emulator refused. test_seeded_bugs.py compiles it with sources that it has spoilt.
#include <cmath>
#include <cstdio>
#include <exception>
#include <vector>

#include "../../csrc/common/index.hpp"
#include "../../csrc/cuda/sum_products.hpp"

using linattn::Pair;
using linattn::pair_at;
using linattn::pair_count;

namespace {

constexpr std::int64_t samples = 300, pairs = 11, columns = 6;

double number(std::int64_t i) { return std::sin(static_cast<double>(i) * 0.37); }

// Memory of exactly the right size, so that the address sanitizer sees every step beyond it.
std::vector<double> numbers(std::int64_t count, std::int64_t start) {
  std::vector<double> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) values[static_cast<std::size_t>(i)] = number(start + i);
  return values;
}

bool is_right(const std::vector<double>& gram, const std::vector<double>& s, const std::vector<double>& right) {
  for (std::int64_t i = 0; i < pair_count(pairs); ++i) {
    const Pair pair = pair_at(i, pairs);
    for (std::int64_t c = 0; c < columns; ++c) {
      double sum = 0.0;
      for (std::int64_t k = 0; k < samples; ++k) {
        const auto at = [](const std::vector<double>& values, std::int64_t place) {
          return values[static_cast<std::size_t>(place)];
        };
        sum += at(s, k * pairs + pair.j) * at(s, k * pairs + pair.k) * at(right, k * columns + c);
      }
      // Not "> 1e-12": NaN must not pass.
      if (!(std::fabs(gram[static_cast<std::size_t>(i * columns + c)] - sum) < 1e-12)) return false;
    }
  }
  return true;
}

}  // namespace

int main() {
  const std::vector<double> s = numbers(samples * pairs, 0), right = numbers(samples * columns, 7777);
  linattn::cuda::SumOfProducts sum;
  sum.a = sum.b = {s.data(), pairs};
  sum.right = {right.data(), columns};
  sum.row_kind = linattn::cuda::Rows::upper;
  sum.inner = pairs;
  sum.rows = pair_count(pairs);
  sum.columns = columns;
  sum.samples = samples;
  try {
    for (const auto order : {emulator::Order::forward, emulator::Order::reverse, emulator::Order::random}) {
      emulator::settings().order = order;
      std::vector<double> slabs(static_cast<std::size_t>(sum.slab_doubles()));
      std::vector<double> gram(static_cast<std::size_t>(sum.entries()));
      linattn::cuda::add_products(sum, true, slabs.data(), gram.data(), nullptr);
      if (!is_right(gram, s, right)) {
        std::puts("wrong");
        return 1;
      }
    }
  } catch (const std::exception& error) {
    std::puts(error.what());
    return 2;
  }
  std::puts("right");
  return 0;
}
