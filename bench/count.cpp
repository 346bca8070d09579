// One accumulation of fixed size, for counting its instructions under callgrind:  count POSITIONS PRECISION D N n
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "../csrc/core/moments.hpp"
#include "../csrc/kernels/isa.hpp"

using namespace linattn;

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  const Positions positions = positions_from(argv[1]);
  const std::string precision = argv[2];
  const std::int64_t d = std::atoll(argv[3]), count = std::atoll(argv[4]), length = std::atoll(argv[5]);
  std::vector<double> tokens(std::size_t(count * length * d));
  std::uint64_t state = 1;
  for (double& x : tokens) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    x = double(state >> 11) / double(1ULL << 53) - 0.5;
  }
  const Tokens batch = Tokens::dense({tokens.data(), length, d, 1}, Scalar::float64, count, d, length * d);
  const Samples data{batch, nullptr, nullptr, positions};
  std::vector<double> gram(std::size_t(gram_size(data)));
  accumulate_moments(kernels(), data, precision == "mixed" ? Precision::mixed : Precision::float64, 1,
                     [](std::int64_t) {}, {gram.data(), nullptr, nullptr});
  std::printf("%s %g\n", kernels().name, gram[0]);
}
