#include "head_factors.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace linattn {

namespace {

constexpr double eps = std::numeric_limits<double>::epsilon();
// What is added to a diagonal before a factorisation, relative to the trace.
constexpr double lifted = 100 * eps;
// Entries equal up to rounding tie, and the first of them decides on the sign of a head.
constexpr double same_size = 1 - 1e-8;

// r r', (Hd x Hd): F_h . F_g at j = i, otherwise F_h[i] . F_g[j]; lifted where heads that repeat leave zeros.
Matrix block_of(const Matrix& F, std::int64_t d) {
  const std::int64_t H = F.rows(), n = F.columns() / d;
  Matrix block(H * d, H * d);
  double trace = 0;
  for (std::int64_t h = 0; h < H; ++h) {
    for (std::int64_t g = 0; g <= h; ++g) {
      const double whole = dot(F[h], F[g], d * n);
      for (std::int64_t j = 0; j < d; ++j) {
        for (std::int64_t i = 0; i < d; ++i) block[h * d + j][g * d + i] = dot(F[h] + i * n, F[g] + j * n, n);
        block[h * d + j][g * d + j] = whole;
      }
      if (h == g) trace += whole * static_cast<double>(d);
    }
  }
  const double lift = lifted * trace + std::numeric_limits<double>::min();
  for (std::int64_t i = 0; i < H * d; ++i) block[i][i] += lift;
  return block;
}

// For one output and orthonormal F_h: of all G that give the same output, the smallest, whose products F_g' G_h are
// symmetric in g and h. See smallest_queries in span.py.
void make_smallest(Factors& heads) {
  const std::int64_t H = heads.F.rows(), d = heads.F.columns();
  const Factors before = heads;
  for (std::int64_t h = 0; h < H; ++h) {
    for (std::int64_t g = 0; g < H; ++g) {
      Matrix half(1, d);  // of F_g' G_h - F_h' G_g
      for (std::int64_t i = 0; i < d; ++i) {
        add_multiple(0.5 * before.F[g][i], before.G[h] + i * d, d, half[0]);
        add_multiple(-0.5 * before.F[h][i], before.G[g] + i * d, d, half[0]);
      }
      for (std::int64_t i = 0; i < d; ++i) add_multiple(-before.F[g][i], half[0], d, heads.G[h] + i * d);
    }
  }
}

}  // namespace

Coefficients Coefficients::transposed() const {
  Coefficients other{d, k, n, Matrix(entries.rows(), entries.columns())};
  for (std::int64_t u = 0; u < entries.rows(); ++u) {
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j < k; ++j) other.entries[u][j * n + i] = entries[u][i * k + j];
    }
  }
  return other;
}

Coefficients remainder(const Coefficients& E, const Factors& heads) {
  Coefficients left = E;
  const std::int64_t H = heads.F.rows(), d = E.d, n = E.n, k = E.k;
  Matrix minus = heads.F;
  for (std::int64_t i = 0; i < minus.size(); ++i) minus[0][i] = -minus[0][i];
  const auto subtract = [&](std::int64_t i, std::int64_t j, double* out) {
    add_product(n, H, k, {minus[0] + i * n, 1, d * n}, {heads.G[0] + j * k, d * k}, out, k);
  };
  for (std::int64_t i = 0; i < d; ++i) {
    for (std::int64_t j = i; j < d; ++j) {
      subtract(i, j, left.at(i, j));
      if (i != j) subtract(j, i, left.at(i, j));
    }
  }
  return left;
}

bool complete(const Coefficients& E, Factors& heads) {
  const std::int64_t H = heads.F.rows(), d = E.d, n = E.n, k = E.k;
  Matrix factor = block_of(heads.F, d);
  if (!factor_cholesky(factor)) return false;
  const auto add_solution = [&](const Coefficients& target) {
    Matrix right(H * d, k);  // (h, j): sum_i F_h[i] E[(i,j)]
    for (std::int64_t j = 0; j < d; ++j) {
      for (std::int64_t i = 0; i < d; ++i) {
        add_product(H, n, k, {heads.F[0] + i * n, d * n}, {target.at(i, j), k}, right[j], d * k);
      }
    }
    solve_cholesky(factor, right);
    add_multiple(1.0, right[0], right.size(), heads.G[0]);
  };
  heads.G = Matrix(H, d * k);
  add_solution(E);
  add_solution(remainder(E, heads));  // the factor is not quite that of the block
  return true;
}

Factors in_normal_form(const Factors& heads, bool one_output) {
  const std::int64_t H = heads.F.rows();
  Matrix columns(heads.F.columns(), H);
  for (std::int64_t h = 0; h < H; ++h) {
    for (std::int64_t i = 0; i < columns.rows(); ++i) columns[i][h] = heads.F[h][i];
  }
  Reduced parts = reduced(std::move(columns), 0.0, H);  // F = left' right
  Factors normal{std::move(parts.left), product(parts.right, heads.G)};
  if (one_output && H > 1) make_smallest(normal);
  const std::vector<double> sizes = orthogonalise(normal.G, &normal.F);
  const double rounding = 10 * static_cast<double>(H) * eps * sizes.front();
  const auto above = [rounding](double size) { return size > rounding; };
  const auto count = std::max<std::int64_t>(1, std::count_if(sizes.begin(), sizes.end(), above));
  normal.F.keep_rows(0, count);
  normal.G.keep_rows(0, count);
  for (std::int64_t h = 0; h < count; ++h) {
    const double root = std::sqrt(sizes[static_cast<std::size_t>(h)]);
    for (std::int64_t i = 0; i < normal.F.columns(); ++i) normal.F[h][i] *= root;
    for (std::int64_t i = 0; i < normal.G.columns(); ++i) normal.G[h][i] /= root;
  }
  return normal;
}

Matrix with_signs(Factors& heads, std::int64_t d) {
  const std::int64_t n = heads.F.columns() / d;
  Matrix V(heads.F.rows(), heads.F.columns());
  for (std::int64_t h = 0; h < V.rows(); ++h) {
    double* const v = V[h];
    double largest = 0;
    for (std::int64_t a = 0; a < n; ++a) {
      for (std::int64_t j = 0; j < d; ++j) {
        v[a * d + j] = heads.F[h][j * n + a];
        largest = std::max(largest, std::abs(v[a * d + j]));
      }
    }
    const double* first = v;
    while (std::abs(*first) < same_size * largest) ++first;
    if (!(*first < 0)) continue;
    for (std::int64_t i = 0; i < V.columns(); ++i) v[i] = -v[i];
    for (std::int64_t i = 0; i < heads.G.columns(); ++i) heads.G[h][i] = -heads.G[h][i];
  }
  return V;
}

}  // namespace linattn
