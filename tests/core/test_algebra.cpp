// Matrix products, triangular systems and the sums of softmax layers, against loops.
#include "../../csrc/common/buffer.hpp"
#include "../../csrc/core/matrix_product.hpp"
#include "../../csrc/core/triangular.hpp"
#include "../../csrc/softmax/query_sums.hpp"
#include "problem.hpp"
#include "tests.hpp"

namespace linattn {

namespace {

void test_matrix_product(const Kernels& kernels, std::int64_t rows, std::int64_t columns, std::int64_t inner,
                         std::mt19937& random) {
  const std::vector<double> a = draw(rows * inner, random), b = draw(columns * inner, random);
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
  std::vector<double> matrix(std::size_t(n * n));
  const std::vector<double> b = draw(rows * n, random);
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

// U'U = A to the bound that proofs rest on (docs/certificate.md), A^-1 A = I, and A x, for small systems in rows.
void test_small_system(const Kernels& kernels, std::int64_t n, double smallest, std::mt19937& random) {
  const std::int64_t stride = (n + most_lanes - 1) / most_lanes * most_lanes, k = 2 * n + 10;
  const Buffer rows(n * stride), factor(n * stride), inverse(n * stride), turned(n * stride), whole(n * stride);
  const Buffer reciprocals(stride), x(stride), y(stride);
  const std::vector<double> columns = draw(n * n, random);
  const auto at = [stride](const Buffer& of, std::int64_t i, std::int64_t j) -> double& {
    return of.data()[i * stride + j];
  };
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      for (std::int64_t l = 0; l + 1 < n; ++l) {  // of rank n - 1, but for what is added to the diagonal
        at(rows, i, j) += columns[std::size_t(l * n + i)] * columns[std::size_t(l * n + j)] / double(n);
      }
    }
    at(rows, i, i) += smallest;
  }
  std::copy_n(rows.data(), n * stride, factor.data());
  check(kernels.factor_small(factor.data(), n, stride, reciprocals.data()) == n, "small pivots", kernels.name, n, n);
  const long double gamma = k * 0x1p-53L / (1 - k * 0x1p-53L), c = gamma / (1 - gamma);
  bool within = true;
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = i; j < n; ++j) {
      long double sum = -at(rows, i, j);
      for (std::int64_t l = 0; l <= i; ++l) sum += static_cast<long double>(at(factor, l, i)) * at(factor, l, j);
      within = within && std::abs(sum) <= c * std::sqrt(static_cast<long double>(at(rows, i, i)) * at(rows, j, j));
    }
  }
  check(within, "bound on U'U - A", kernels.name, n, n);
  kernels.squared_inverse(factor.data(), reciprocals.data(), n, stride, inverse.data());
  const double norm = kernels.inverse_from_factor(inverse.data(), n, stride, turned.data(), whole.data());
  double expected = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    double sum = 0;
    for (std::int64_t j = 0; j < n; ++j) sum += std::abs(at(whole, i, j));
    expected = std::max(expected, sum);
    x.data()[i] = columns[std::size_t(i)];
  }
  check(std::abs(norm - expected) <= 1e-12 * expected, "norm of an inverse", kernels.name, n, n);
  kernels.symmetric_times(rows.data(), n, stride, x.data(), y.data());
  std::vector<double> product(std::size_t(n), 0.0), back(std::size_t(n), 0.0);
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < n; ++j) product[std::size_t(i)] += at(rows, i, j) * x.data()[j];
  }
  check(close({y.data(), y.data() + n}, product, 1e-12), "symmetric product", kernels.name, n, n);
  kernels.symmetric_times(whole.data(), n, stride, y.data(), turned.data());
  for (std::int64_t i = 0; i < n; ++i) back[std::size_t(i)] = turned.data()[i];
  check(close(back, {x.data(), x.data() + n}, 1e-10 * norm), "inverse", kernels.name, n, n);
}

void test_query_sums(const Kernels& kernels, std::int64_t count, std::int64_t d, std::int64_t p, std::int64_t d_out,
                     std::mt19937& random) {
  const std::vector<double> x = draw(count * d, random), A = draw(count * p, random),
                            G = draw(count * d_out * p, random);
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

}  // namespace

void test_algebra(const Kernels& kernels, std::mt19937& random) {
  for (const std::int64_t rows : {1, 7, 50, 100}) {
    for (const std::int64_t columns : {1, 5, 33}) {
      for (const std::int64_t inner : {0, 1, 16, 255, 600}) test_matrix_product(kernels, rows, columns, inner, random);
    }
  }
  for (const std::int64_t n : {1, 31, 33, 130, 300}) {
    for (const std::int64_t count : {1, 50}) test_triangular(kernels, n, count, random);
  }
  for (const std::int64_t n : {1, 6, 8, 18, 40, 75, 126}) {
    for (const double smallest : {1.0, 1e-4, 1e-9}) test_small_system(kernels, n, smallest, random);
  }
  for (const std::int64_t count : {1, 16, 255, 600, 1100}) {
    test_query_sums(kernels, count, 1, 1, 1, random);
    test_query_sums(kernels, count, 3, 6, 2, random);
    test_query_sums(kernels, count, 9, 11, 3, random);
  }
}

}  // namespace linattn
