// What the core's tests share: how a check is counted, and problems whose samples are written out as loops.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "../../csrc/common/index.hpp"
#include "../../csrc/common/positions.hpp"
#include "../../csrc/core/tokens.hpp"

namespace linattn {

inline int passed = 0, failed = 0;

inline void check(bool condition, const char* what, const char* isa, std::int64_t d, std::int64_t sequences) {
  ++(condition ? passed : failed);
  if (!condition) std::printf("FAILED %s (%s, d = %ld, N = %ld)\n", what, isa, long(d), long(sequences));
}

inline bool close(const std::vector<double>& found, const std::vector<double>& expected, double tolerance) {
  double size = 0.0, error = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    size = std::max(size, std::abs(expected[i]));
    error = std::max(error, std::abs(found[i] - expected[i]));
  }
  return error <= tolerance * size;
}

// Numbers from the normal distribution.
inline std::vector<double> draw(std::int64_t size, std::mt19937& random) {
  std::normal_distribution<double> gauss;
  std::vector<double> numbers(static_cast<std::size_t>(size));
  for (double& x : numbers) x = gauss(random);
  return numbers;
}

struct Sample {
  std::vector<double> s, z;  // pairs of S, and the query
};

struct Problem {
  std::int64_t d, d_out = 2;
  std::vector<std::int64_t> offsets{0};
  std::vector<double> tokens, targets, weights;

  Problem(std::int64_t dimension, std::int64_t sequences, Positions positions, std::mt19937& random,
          std::uint64_t longest = 9, std::uint64_t shortest = 1)
      : d(dimension) {
    std::normal_distribution<double> gauss;
    for (std::int64_t i = 0; i < sequences; ++i) {
      offsets.push_back(offsets.back() + std::int64_t(shortest + random() % (longest - shortest + 1)));
      weights.push_back(std::abs(gauss(random)));
    }
    tokens.resize(std::size_t(offsets.back() * d));
    targets.resize(std::size_t((positions == Positions::last ? sequences : offsets.back()) * d_out));
    for (double& x : tokens) x = gauss(random);
    for (double& x : targets) x = gauss(random);
  }

  std::int64_t count() const { return std::int64_t(weights.size()); }
  const double* token(std::int64_t row) const { return tokens.data() + row * d; }

  Tokens sequences() const { return rows_of(tokens, d); }
  Tokens target_rows(Positions positions) const {
    if (positions != Positions::last) return rows_of(targets, d_out);
    return Tokens::dense({targets.data(), 1, d_out, 1}, Scalar::float64, count(), d_out, d_out);
  }

  // Query at row t of sequence i; it attends to the whole sequence, or to the prefix that ends with it.
  Sample sample(std::int64_t i, std::int64_t t, Positions positions) const {
    const std::int64_t end = positions == Positions::causal ? t + 1 : offsets[std::size_t(i) + 1];
    Sample sample{std::vector<double>(std::size_t(pair_count(d))), {token(t), token(t) + d}};
    for (std::int64_t row = offsets[std::size_t(i)]; row < end; ++row) {
      for (std::int64_t j = 0; j < d; ++j) {
        for (std::int64_t k = j; k < d; ++k) {
          sample.s[std::size_t(pair_index(j, k, d))] += token(row)[j] * token(row)[k];
        }
      }
    }
    return sample;
  }

  // body(sample, weight, row of the target) for every query.
  template <typename Body>
  void for_each_sample(Positions positions, const Body& body) const {
    for (std::int64_t i = 0; i < count(); ++i) {
      const std::int64_t last = offsets[std::size_t(i) + 1];
      for (std::int64_t t = positions == Positions::last ? last - 1 : offsets[std::size_t(i)]; t < last; ++t) {
        body(sample(i, t, positions), weights[std::size_t(i)], positions == Positions::last ? i : t);
      }
    }
  }

 private:
  Tokens rows_of(const std::vector<double>& rows, std::int64_t width) const {
    return Tokens::flat({rows.data(), offsets.back(), width, 1}, Scalar::float64, offsets.data(), count(), width);
  }
};

}  // namespace linattn
