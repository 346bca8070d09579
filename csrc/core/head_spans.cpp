#include "head_spans.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace linattn {

namespace {

// Smallest eigenvalue over the largest of a matrix that is not divided by.
constexpr double singular = 1e-12;

}  // namespace

// All v_h lie in the range of every B(c). Of one range, those with the smallest parts outside the others.
std::optional<Matrix> values_in_ranges(const std::vector<Form>& forms, std::int64_t d, std::int64_t H) {
  std::vector<Matrix> ranges;
  std::size_t base = 0;
  double farthest = -1;  // of the smallest eigenvalue of a range from zero
  for (const Form& form : forms) {
    const auto r = static_cast<std::int64_t>(form.values.size());
    const std::int64_t kept = std::min(r, 2 * H);
    Matrix range(kept, d);
    double smallest = kept == 2 * H ? HUGE_VAL : 0;
    for (std::int64_t i = 0; i < kept; ++i) {
      const std::int64_t from = i < H || kept < 2 * H ? i : r - 2 * H + i;
      std::copy_n(form.vectors[from], d, range[i]);
      smallest = std::min(smallest, std::abs(form.values[static_cast<std::size_t>(from)]));
    }
    if (smallest > farthest) base = ranges.size(), farthest = smallest;
    ranges.push_back(std::move(range));
  }
  Matrix basis = ranges[base];
  const std::int64_t r = basis.rows();
  if (r < H) return std::nullopt;
  const auto count = static_cast<std::int64_t>(ranges.size());
  Matrix outside(r, count * d);
  for (std::int64_t i = 0; i < count; ++i) {
    const Matrix& range = ranges[static_cast<std::size_t>(i)];
    for (std::int64_t v = 0; v < r; ++v) {
      double* const part = outside[v] + i * d;
      if (i == static_cast<std::int64_t>(base)) continue;
      std::copy_n(basis[v], d, part);
      for (std::int64_t w = 0; w < range.rows(); ++w) add_multiple(-dot(range[w], part, d), range[w], d, part);
    }
  }
  orthogonalise(outside, &basis);
  basis.keep_rows(r - H, H);
  return basis;
}

// The rows of p(N) span the v_h, p(t)^2 = det (t - N), N = B(c0)^-1 B(c).
std::optional<Matrix> values_by_pencils(const std::vector<Form>& forms, std::int64_t d, std::int64_t H) {
  const Form* base = nullptr;
  double farthest = 0, largest = 0;
  for (const Form& form : forms) {
    if (form.values.empty()) continue;
    const auto size = [](double a, double b) { return std::abs(a) < std::abs(b); };
    const auto [low, high] = std::minmax_element(form.values.begin(), form.values.end(), size);
    largest = std::max(largest, std::abs(*high));
    if (static_cast<std::int64_t>(form.values.size()) < d || std::abs(*low) <= farthest) continue;
    farthest = std::abs(*low);
    base = &form;
  }
  if (base == nullptr || farthest <= singular * largest) return std::nullopt;
  const auto trace = [d](const Matrix& N) {
    double sum = 0;
    for (std::int64_t i = 0; i < d; ++i) sum += N[i][i];
    return sum;
  };
  const auto scale = [](Matrix& N, double factor) {
    for (std::int64_t i = 0; i < N.size(); ++i) N[0][i] *= factor;
  };
  const auto brought_to_one = [&](Matrix& N) {
    const double length = norm(N);
    if (length > 0) scale(N, 1 / length);
  };
  Matrix rows(d, static_cast<std::int64_t>(forms.size() - 1) * d);  // of all p(N), as columns
  std::int64_t column = 0;
  for (const Form& form : forms) {
    if (&form == base) continue;
    Matrix N = form.matrix;
    solve(base->matrix, N);
    // Of mean eigenvalue zero and norm one: less cancels in p, and no power overflows
    const double mean = trace(N) / static_cast<double>(d);
    for (std::int64_t i = 0; i < d; ++i) N[i][i] -= mean;
    brought_to_one(N);
    // Newton's identities: k e_k = sum_i (-1)^(i-1) e_(k-i) s_i, s_i = tr N^i / 2
    std::vector<double> e{1.0}, s{0.0};
    std::vector<Matrix> powers(1, Matrix(d, d));
    for (std::int64_t i = 0; i < d; ++i) powers[0][i][i] = 1;
    for (std::size_t k = 1; k <= static_cast<std::size_t>(H); ++k) {
      powers.push_back(k == 1 ? N : product(powers.back(), N));
      s.push_back(trace(powers.back()) / 2);
      double sum = 0;
      for (std::size_t i = 1; i <= k; ++i) sum += (i % 2 == 1 ? 1 : -1) * e[k - i] * s[i];
      e.push_back(sum / static_cast<double>(k));
    }
    Matrix p(d, d);
    for (std::size_t k = 0; k < e.size(); ++k) {
      add_multiple((k % 2 == 0 ? 1 : -1) * e[k], powers[e.size() - 1 - k][0], d * d, p[0]);
    }
    brought_to_one(p);
    for (std::int64_t i = 0; i < d; ++i, ++column) {
      for (std::int64_t j = 0; j < d; ++j) rows[j][column] = p[i][j];
    }
  }
  Matrix span(d, d);
  for (std::int64_t i = 0; i < d; ++i) span[i][i] = 1;
  orthogonalise(rows, &span);
  span.keep_rows(0, H);
  return span;
}

std::optional<Matrix> spanned(const double* points, std::int64_t d, const std::vector<Matrix>& bases, std::size_t base,
                              std::vector<Matrix> near) {
  const Matrix& U0 = bases[base];
  const double* const x0 = points + static_cast<std::int64_t>(base) * d;
  const std::int64_t H = U0.rows(), n = U0.columns();
  for (Matrix& each : near) {  // N(e_j)
    for (std::int64_t h = 0; h < H; ++h) {
      for (int time = 0; time < 2; ++time) {
        for (std::int64_t g = 0; g < H; ++g) add_multiple(-dot(each[h], U0[g], n), U0[g], n, each[h]);
      }
    }
  }
  Matrix matrix(d * H, d * H), right(d * H, H), G(H, H), at(H, n), weights(H, H), pulled(H, H);
  for (std::size_t m = 0; m <= bases.size(); ++m) {
    const bool last = m == bases.size();  // X(x0) = I, as one more point whose weights are one
    const double* const x = last ? x0 : points + static_cast<std::int64_t>(m) * d;
    at = Matrix(H, n);
    for (std::int64_t j = 0; j < d && !last; ++j)
      add_multiple(x[j], near[static_cast<std::size_t>(j)][0], H * n, at[0]);
    for (std::int64_t g = 0; g < H && !last; ++g) {
      for (std::int64_t h = 0; h < H; ++h) G[g][h] = dot(bases[m][g], U0[h], n);
    }
    for (std::int64_t g = 0; g < H; ++g) {
      for (std::int64_t h = 0; h < H; ++h) {
        weights[g][h] = pulled[g][h] = g == h ? 1.0 : 0.0;
        if (last) continue;
        pulled[g][h] = 0;
        for (std::int64_t i = 0; i < H; ++i) {
          weights[g][h] -= G[i][g] * G[i][h];
          pulled[g][h] += G[i][g] * dot(bases[m][i], at[h], n);
        }
      }
    }
    for (std::int64_t j = 0; j < d; ++j) {
      for (std::int64_t g = 0; g < H; ++g) {
        add_multiple(x[j], pulled[g], H, right[j * H + g]);
        for (std::int64_t i = 0; i <= j; ++i) add_multiple(x[j] * x[i], weights[g], H, matrix[j * H + g] + i * H);
      }
    }
  }
  if (!factor_cholesky(matrix)) return std::nullopt;
  solve_cholesky(matrix, right);
  Matrix F(H, d * n);
  for (std::int64_t j = 0; j < d; ++j) {
    Matrix& N = near[static_cast<std::size_t>(j)];
    for (std::int64_t h = 0; h < H; ++h) {
      for (std::int64_t g = 0; g < H; ++g) add_multiple(right[j * H + g][h], U0[g], n, N[h]);
      std::copy_n(N[h], n, F[h] + j * n);
    }
  }
  return F;
}

}  // namespace linattn
