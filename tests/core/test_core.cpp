// The core without Python, against the definitions written as loops. Runs wherever the core compiles: on this
// machine, and for arm64 under an emulator.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "../../csrc/common/index.hpp"
#include "../../csrc/core/evaluation.hpp"
#include "../../csrc/core/matrix_product.hpp"
#include "../../csrc/core/moments.hpp"
#include "../../csrc/core/normal_equations.hpp"
#include "../../csrc/core/scan.hpp"
#include "../../csrc/core/triangular.hpp"
#include "../../csrc/kernels/isa.hpp"
#include "../../csrc/softmax/query_sums.hpp"

using namespace linattn;

namespace {

int passed = 0, failed = 0;

void check(bool condition, const char* what, const char* isa, std::int64_t d, std::int64_t sequences) {
  ++(condition ? passed : failed);
  if (!condition) std::printf("FAILED %s (%s, d = %ld, N = %ld)\n", what, isa, long(d), long(sequences));
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
};

bool close(const std::vector<double>& found, const std::vector<double>& expected, double tolerance) {
  double size = 0.0, error = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    size = std::max(size, std::abs(expected[i]));
    error = std::max(error, std::abs(found[i] - expected[i]));
  }
  return error <= tolerance * size;
}

// The numbers 0 .. count - 1.
std::vector<std::int64_t> all_numbers(std::int64_t count) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) numbers[std::size_t(i)] = i;
  return numbers;
}

// Every second pair and all but the first query, as far as there are any.
Selection some_features(std::int64_t d) {
  Selection selection;
  for (std::int64_t u = 0; u < pair_count(d); u += 2) selection.pairs.push_back(u);
  for (std::int64_t l = d > 1 ? 1 : 0; l < d; ++l) selection.queries.push_back(l);
  return selection;
}

// One pair, of which alone S is then formed, and the last query.
Selection one_pair(std::int64_t d, Positions positions) {
  Selection selection;
  selection.pairs = {pair_count(d) / 2};
  selection.queries = {d - 1};
  selection.form_few(d, positions, /*with_squares=*/true);
  return selection;
}

void test_moments(const Kernels& kernels, const Problem& problem, Positions positions, Precision precision,
                  const Selection* selection = nullptr) {
  const std::int64_t d = problem.d, d_out = problem.d_out;
  const Tokens tokens = Tokens::flat({problem.tokens.data(), problem.offsets.back(), d, 1}, Scalar::float64,
                                     problem.offsets.data(), problem.count(), d);
  const Tokens targets =
      positions == Positions::last
          ? Tokens::dense({problem.targets.data(), 1, d_out, 1}, Scalar::float64, problem.count(), d_out, d_out)
          : Tokens::flat({problem.targets.data(), problem.offsets.back(), d_out, 1}, Scalar::float64,
                         problem.offsets.data(), problem.count(), d_out);
  const Samples data{tokens, &targets, problem.weights.data(), positions, selection};
  const auto pairs = selection != nullptr ? selection->pairs : all_numbers(pair_count(d));
  const auto queries = selection != nullptr ? selection->queries : all_numbers(d);
  const auto q = static_cast<std::int64_t>(pairs.size()), k = static_cast<std::int64_t>(queries.size());

  std::vector<double> gram(std::size_t(gram_size(data))), cross(std::size_t(d_out * k * q)),
      energy(static_cast<std::size_t>(d_out)), sizes(selection != nullptr ? std::size_t(q * k) : 0);
  auto expected_gram = gram, expected_cross = cross, expected_energy = energy, expected_sizes = sizes;
  problem.for_each_sample(positions, [&](const Sample& x, double w, std::int64_t row) {
    const double* y = problem.targets.data() + row * d_out;
    const auto s = [&](std::int64_t u) { return x.s[std::size_t(pairs[std::size_t(u)])]; };
    const auto z = [&](std::int64_t l) { return x.z[std::size_t(queries[std::size_t(l)])]; };
    for (std::int64_t u = 0; u < q; ++u) {
      for (std::int64_t v = u; v < q; ++v) {
        for (Pair lm{0, 0}; lm.j < k; lm = next_pair(lm, k)) {
          const std::int64_t c = pair_index(lm.j, lm.k, k);
          const double entry = w * s(u) * s(v) * z(lm.j) * z(lm.k);
          if (!data.triples()) {
            expected_gram[std::size_t(pair_index(u, v, q) * pair_count(k) + c)] += entry;
          } else if (c >= v) {
            expected_gram[std::size_t(triple_start(u, v, q) + c - v)] += entry;
          }
        }
      }
    }
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const Pair pair = pair_at(pairs[i / std::size_t(k)], d);
      const double left = x.s[std::size_t(pair_index(pair.j, pair.j, d))],
                   right = x.s[std::size_t(pair_index(pair.k, pair.k, d))];
      expected_sizes[i] += w * left * right * std::pow(z(std::int64_t(i) % k), 2);
    }
    for (std::int64_t a = 0; a < d_out; ++a) {
      for (std::int64_t l = 0; l < k; ++l) {
        for (std::int64_t u = 0; u < q; ++u) expected_cross[std::size_t((a * k + l) * q + u)] += w * y[a] * z(l) * s(u);
      }
      expected_energy[std::size_t(a)] += w * y[a] * y[a];
    }
  });

  const auto accumulate = [&](int threads, std::vector<double>& g, std::vector<double>& c, std::vector<double>& e,
                              std::vector<double>& m) {
    return accumulate_moments(kernels, data, precision, threads, [](std::int64_t) {},
                              {g.data(), c.data(), e.data(), selection != nullptr ? m.data() : nullptr});
  };
  auto gram_3 = gram, cross_3 = cross, energy_3 = energy, sizes_3 = sizes;
  accumulate(2, gram, cross, energy, sizes);
  accumulate(3, gram_3, cross_3, energy_3, sizes_3);
  check(gram == gram_3 && cross == cross_3 && energy == energy_3 && sizes == sizes_3, "moments on three threads",
        kernels.name, d, problem.count());
  const double tolerance = precision == Precision::mixed ? 1e-5 : 1e-12;
  check(close(gram, expected_gram, tolerance), "gram", kernels.name, d, problem.count());
  check(close(cross, expected_cross, 1e-12), "cross", kernels.name, d, problem.count());
  check(close(energy, expected_energy, 1e-12), "energy", kernels.name, d, problem.count());
  check(close(sizes, expected_sizes, 1e-12), "sizes of summands", kernels.name, d, problem.count());
}

// The operator on coefficients against its definition, sample by sample, with samples kept and made anew.
void test_normal_equations(const Kernels& kernels, const Problem& problem, Positions positions, std::mt19937& random,
                           const Selection* selection = nullptr) {
  const std::int64_t d = problem.d, d_out = problem.d_out;
  const Tokens tokens = Tokens::flat({problem.tokens.data(), problem.offsets.back(), d, 1}, Scalar::float64,
                                     problem.offsets.data(), problem.count(), d);
  const Tokens targets =
      positions == Positions::last
          ? Tokens::dense({problem.targets.data(), 1, d_out, 1}, Scalar::float64, problem.count(), d_out, d_out)
          : Tokens::flat({problem.targets.data(), problem.offsets.back(), d_out, 1}, Scalar::float64,
                         problem.offsets.data(), problem.count(), d_out);
  const Samples data{tokens, &targets, problem.weights.data(), positions, selection};
  const auto pairs = selection != nullptr ? selection->pairs : all_numbers(pair_count(d));
  const auto queries = selection != nullptr ? selection->queries : all_numbers(d);
  const std::size_t q = pairs.size(), k = queries.size(), p = q * k, outputs = std::size_t(d_out);

  std::normal_distribution<double> gauss;
  std::vector<double> c(outputs * p);
  for (double& x : c) x = gauss(random);
  std::vector<double> normal(outputs * p), energy(outputs), gradient(outputs * p), error(outputs);
  std::vector<double> of_pairs(q * q), of_queries(k * k), diagonal(p);
  problem.for_each_sample(positions, [&](const Sample& x, double w, std::int64_t row) {
    std::vector<double> h(p);
    for (std::size_t i = 0; i < p; ++i) h[i] = x.s[std::size_t(pairs[i / k])] * x.z[std::size_t(queries[i % k])];
    for (std::size_t a = 0; a < outputs; ++a) {
      double f = 0.0;
      for (std::size_t i = 0; i < p; ++i) f += c[a * p + i] * h[i];
      const double r = problem.targets[std::size_t(row) * outputs + a] - f;
      energy[a] += w * f * f;
      error[a] += w * r * r;
      for (std::size_t i = 0; i < p; ++i) {
        normal[a * p + i] += w * f * h[i];
        gradient[a * p + i] += w * r * h[i];
      }
    }
    for (std::size_t i = 0; i < p; ++i) diagonal[i] += w * h[i] * h[i];
    for (std::size_t i = 0; i < q * q; ++i) {
      of_pairs[i] += w * x.s[std::size_t(pairs[i / q])] * x.s[std::size_t(pairs[i % q])];
    }
    for (std::size_t i = 0; i < k * k; ++i) {
      of_queries[i] += w * x.z[std::size_t(queries[i / k])] * x.z[std::size_t(queries[i % k])];
    }
  });

  const auto silent = [](std::int64_t) {};
  for (const bool keep : {false, true}) {
    SampleStore store(kernels, data, keep);
    auto found = normal, squares = energy, found_pairs = of_pairs, found_queries = of_queries,
         found_diagonal = diagonal;
    for (int round = 0; round < 2; ++round) {
      normal_product(store, c.data(), d_out, 2, silent, found.data(), squares.data());
      check(close(found, normal, 1e-12) && close(squares, energy, 1e-12), "normal product", kernels.name, d,
            problem.count());
      residual_gradient(store, c.data(), 2, silent, found.data(), squares.data());
      check(close(found, gradient, 1e-11) && close(squares, error, 1e-12), "gradient", kernels.name, d,
            problem.count());
      kronecker_factors(store, 2, silent, {found_pairs.data(), found_queries.data(), found_diagonal.data()});
      check(close(found_pairs, of_pairs, 1e-12) && close(found_queries, of_queries, 1e-12) &&
                close(found_diagonal, diagonal, 1e-12),
            "Kronecker factors", kernels.name, d, problem.count());
    }
  }
}

void test_matrix_product(const Kernels& kernels, std::int64_t rows, std::int64_t columns, std::int64_t inner,
                         std::mt19937& random) {
  std::normal_distribution<double> gauss;
  std::vector<double> a(std::size_t(rows * inner)), b(std::size_t(columns * inner));
  for (double& x : a) x = gauss(random);
  for (double& x : b) x = gauss(random);
  std::vector<double> expected(std::size_t(rows * columns)), found(expected.size(), 7.0);
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      double& sum = expected[std::size_t(i * columns + j)];
      for (std::int64_t k = 0; k < inner; ++k) sum += a[std::size_t(i * inner + k)] * b[std::size_t(j * inner + k)];
    }
  }
  for (const int threads : {1, 2}) {
    multiply_transposed(kernels, a.data(), rows, b.data(), columns, inner, threads, found.data());
    check(close(found, expected, 1e-12), "matrix product", kernels.name, rows, columns);
  }
}

// L L' = A, the first pivot that is not positive, L x = b and L'x = b; the same bits on one thread and on three.
void test_triangular(const Kernels& kernels, std::int64_t n, std::int64_t rows, std::mt19937& random) {
  std::normal_distribution<double> gauss;
  const Monitor monitor = [](std::int64_t) {};
  const auto at = [n](std::int64_t i, std::int64_t j) { return std::size_t(i * n + j); };
  std::vector<double> matrix(std::size_t(n * n)), b(std::size_t(rows * n));
  for (double& x : b) x = gauss(random);
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < i; ++j) matrix[at(i, j)] = matrix[at(j, i)] = gauss(random) / double(n);
    matrix[at(i, i)] = 2;
  }
  std::vector<double> first;
  for (const int threads : {1, 3}) {
    std::vector<double> factor = matrix;
    check(factor_cholesky(kernels, factor.data(), n, threads, monitor) == 0, "Cholesky", kernels.name, n, rows);
    for (std::int64_t i = 0; i < n; ++i) std::fill(&factor[at(i, i)] + 1, factor.data() + (i + 1) * n, 0.0);
    std::vector<double> product(matrix.size()), results;
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        for (std::int64_t k = 0; k <= std::min(i, j); ++k) product[at(i, j)] += factor[at(i, k)] * factor[at(j, k)];
      }
    }
    check(close(product, matrix, 1e-13), "L L'", kernels.name, n, rows);
    results = factor;
    for (const Side side : {Side::lower, Side::transposed}) {
      std::vector<double> x = b, back(b.size());
      solve_triangular(kernels, factor.data(), n, side, x.data(), rows, threads, monitor);
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t i = 0; i < n; ++i) {
          for (std::int64_t k = 0; k < n; ++k) {
            back[at(r, i)] += (side == Side::lower ? factor[at(i, k)] : factor[at(k, i)]) * x[at(r, k)];
          }
        }
      }
      check(close(back, b, 1e-12), "triangular system", kernels.name, n, rows);
      results.insert(results.end(), x.begin(), x.end());
    }
    if (first.empty()) first = results;
    check(results == first, "bits of a triangular system", kernels.name, n, rows);
    for (const std::int64_t place : {std::int64_t(0), n / 2, n - 1}) {
      std::vector<double> wrong = matrix;
      wrong[at(place, place)] = -1;
      check(factor_cholesky(kernels, wrong.data(), n, threads, monitor) == place + 1, "pivot", kernels.name, n, rows);
    }
  }
}

void test_layer(const Kernels& kernels, const Problem& problem, Positions positions, std::int64_t heads,
                std::int64_t d_out, std::mt19937& random) {
  const std::int64_t d = problem.d;
  std::normal_distribution<double> gauss;
  std::vector<double> v(std::size_t(heads * d_out * d)), q(std::size_t(heads * d * d));
  for (double& x : v) x = gauss(random);
  for (double& x : q) x = gauss(random);
  std::vector<double> expected;
  problem.for_each_sample(positions, [&](const Sample& x, double, std::int64_t) {
    for (std::int64_t a = 0; a < d_out; ++a) {
      double y = 0.0;
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t j = 0; j < d; ++j) {
          for (std::int64_t k = 0; k < d; ++k) {
            const std::int64_t pair = j <= k ? pair_index(j, k, d) : pair_index(k, j, d);
            for (std::int64_t l = 0; l < d; ++l) {
              y += v[std::size_t((h * d_out + a) * d + j)] * x.s[std::size_t(pair)] *
                   q[std::size_t((h * d + k) * d + l)] * x.z[std::size_t(l)];
            }
          }
        }
      }
      expected.push_back(y);
    }
  });
  const Tokens tokens = Tokens::flat({problem.tokens.data(), problem.offsets.back(), d, 1}, Scalar::float64,
                                     problem.offsets.data(), problem.count(), d);
  std::vector<double> found(expected.size());
  evaluate(
      kernels, layer_from_heads(kernels, v.data(), q.data(), heads, d_out, d), tokens, positions, d_out, 2,
      [](std::int64_t) {}, found.data());
  check(close(found, expected, 1e-12), "heads", kernels.name, d, problem.count());
}

void test_query_sums(const Kernels& kernels, std::int64_t count, std::int64_t d, std::int64_t p, std::int64_t d_out,
                     std::mt19937& random) {
  std::normal_distribution<double> gauss;
  const auto draw = [&](std::int64_t size) {
    std::vector<double> numbers(static_cast<std::size_t>(size));
    for (double& x : numbers) x = gauss(random);
    return numbers;
  };
  const std::vector<double> x = draw(count * d), A = draw(count * p), G = draw(count * d_out * p);
  const Queries queries{x.data(), A.data(), G.data(), count, d, p, d_out};
  std::vector<double> squares(std::size_t(pair_count(p) * pair_count(d)), 1.0),
      cross(std::size_t(p * d * d_out * p), 2.0);
  std::vector<double> expected_squares = squares, expected_cross = cross, squares_3 = squares, cross_3 = cross;
  for (std::int64_t b = 0; b < count; ++b) {
    const double *xb = x.data() + b * d, *Ab = A.data() + b * p, *Gb = G.data() + b * d_out * p;
    for (std::int64_t u = 0; u < p; ++u) {
      for (std::int64_t v = u; v < p; ++v) {
        double square = 0.0;
        for (std::int64_t a = 0; a < d_out; ++a) square += Gb[a * p + u] * Gb[a * p + v];
        for (std::int64_t l = 0; l < d; ++l) {
          for (std::int64_t m = l; m < d; ++m) {
            expected_squares[std::size_t(pair_index(u, v, p) * pair_count(d) + pair_index(l, m, d))] +=
                square * xb[l] * xb[m];
          }
        }
      }
      for (std::int64_t l = 0; l < d; ++l) {
        for (std::int64_t i = 0; i < d_out * p; ++i) {
          expected_cross[std::size_t((u * d + l) * d_out * p + i)] += Ab[u] * xb[l] * Gb[i];
        }
      }
    }
  }
  add_query_sums(kernels, queries, 1, [](std::int64_t) {}, squares.data(), cross.data());
  add_query_sums(kernels, queries, 3, [](std::int64_t) {}, squares_3.data(), cross_3.data());
  check(close(squares, expected_squares, 1e-12), "squares of queries", kernels.name, d, count);
  check(close(cross, expected_cross, 1e-12), "cross sums of queries", kernels.name, d, count);
  check(squares == squares_3 && cross == cross_3, "query sums on three threads", kernels.name, d, count);
}

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
  const Tokens tokens = Tokens::flat({problem.tokens.data(), problem.offsets.back(), 3, 1}, Scalar::float64,
                                     problem.offsets.data(), problem.count(), 3);
  check(first_non_finite(tokens, 2) == -1, "scan of finite tokens", "any", 3, 50);
  problem.tokens[std::size_t(problem.offsets[17] * 3 + 1)] = std::nan("");
  check(first_non_finite(tokens, 2) == 17, "scan", "any", 3, 50);
}

}  // namespace

int main() {
  std::mt19937 random(1);
  test_indices();
  test_scan(random);
  for (const InstructionSet& set : instruction_sets()) {
    if (!set.supported) continue;
    for (const Positions positions : {Positions::last, Positions::all, Positions::causal}) {
      for (const std::int64_t d : {1, 2, 3, 4, 5, 7, 9}) {
        for (const std::int64_t sequences : {1, 20, 300}) {
          if (d > 5 && sequences > 20) continue;
          const Problem problem(d, sequences, positions, random);
          test_moments(*set.kernels, problem, positions, Precision::float64);
          test_moments(*set.kernels, problem, positions, Precision::mixed);
          const Selection selection = some_features(problem.d);
          test_moments(*set.kernels, problem, positions, Precision::float64, &selection);
          test_moments(*set.kernels, problem, positions, Precision::mixed, &selection);
          const Selection few = one_pair(problem.d, positions);
          test_moments(*set.kernels, problem, positions, Precision::float64, &few);
          test_moments(*set.kernels, problem, positions, Precision::mixed, &few);
          test_normal_equations(*set.kernels, problem, positions, random);
          test_normal_equations(*set.kernels, problem, positions, random, &selection);
          test_normal_equations(*set.kernels, problem, positions, random, &few);
          test_layer(*set.kernels, problem, positions, 3, 2, random);
          test_layer(*set.kernels, problem, positions, 5, 1, random);
        }
      }
      // Long enough for S to be formed from vectors of coordinates.
      for (const std::int64_t d : {4, 6, 8, 12, 16, 33}) {
        const Problem problem(d, 19, positions, random, 30, 8);
        for (const std::int64_t d_out : {1, 2, 3}) test_layer(*set.kernels, problem, positions, 4, d_out, random);
        if (d < 9) test_moments(*set.kernels, problem, positions, Precision::float64);
      }
    }
    // More pairs than maps are formed from at a time, and more rows of them than a panel has.
    for (const Positions positions : {Positions::last, Positions::all, Positions::causal}) {
      test_normal_equations(*set.kernels, Problem(17, 20, positions, random), positions, random);
    }
    for (const std::int64_t rows : {1, 7, 50, 100}) {
      for (const std::int64_t columns : {1, 5, 33}) {
        for (const std::int64_t inner : {0, 1, 16, 255, 600}) {
          test_matrix_product(*set.kernels, rows, columns, inner, random);
        }
      }
    }
    for (const std::int64_t n : {1, 31, 33, 130, 300}) {
      for (const std::int64_t count : {1, 50}) test_triangular(*set.kernels, n, count, random);
    }
    for (const std::int64_t count : {1, 16, 255, 600, 1100}) {
      test_query_sums(*set.kernels, count, 1, 1, 1, random);
      test_query_sums(*set.kernels, count, 3, 6, 2, random);
      test_query_sums(*set.kernels, count, 9, 11, 3, random);
    }
    // Sequences that go on over several blocks.
    const Selection selection = some_features(3), few = one_pair(3, Positions::causal);
    for (const Selection* chosen : {static_cast<const Selection*>(nullptr), &selection, &few}) {
      const Problem problem(3, 4, Positions::causal, random, 3000);
      test_moments(*set.kernels, problem, Positions::causal, Precision::float64, chosen);
      test_normal_equations(*set.kernels, problem, Positions::causal, random, chosen);
    }
    std::printf("%s: done\n", set.kernels->name);
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
