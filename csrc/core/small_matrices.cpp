#include "small_matrices.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace linattn {

namespace {

constexpr double eps = std::numeric_limits<double>::epsilon();
constexpr int most_sweeps = 40;
constexpr std::int64_t tile = 4;  // rows and columns of a product that stay in registers

// out += A B for up to `tile` rows of A.
template <std::int64_t rows>
void add_rows(std::int64_t k, std::int64_t n, Strided A, Strided B, double* out, std::int64_t step) {
  std::int64_t j = 0;
  for (; j + tile <= n; j += tile) {
    double sums[rows][tile] = {};
    for (std::int64_t i = 0; i < k; ++i) {
      const double* const b = B.entries + i * B.row + j;
      for (std::int64_t r = 0; r < rows; ++r) {
        const double a = A.entries[r * A.row + i * A.column];
        for (std::int64_t c = 0; c < tile; ++c) sums[r][c] += a * b[c];
      }
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < tile; ++c) out[r * step + j + c] += sums[r][c];
    }
  }
  for (; j < n; ++j) {
    for (std::int64_t r = 0; r < rows; ++r) {
      double sum = 0;
      for (std::int64_t i = 0; i < k; ++i) sum += A.entries[r * A.row + i * A.column] * B.entries[i * B.row + j];
      out[r * step + j] += sum;
    }
  }
}

// a = c a - s b, b = s a + c b.
void rotate(double c, double s, std::int64_t n, double* __restrict a, double* __restrict b) {
  for (std::int64_t i = 0; i < n; ++i) {
    const double first = a[i], second = b[i];
    a[i] = c * first - s * second;
    b[i] = s * first + c * second;
  }
}

// Brings a vector to length one, orthogonal to the rows of `basis`. Twice, for where most of it cancels the first time
// leaves it orthogonal only to rounding over what is left.
void orthonormalise(const Matrix& basis, std::int64_t count, double* q) {
  const std::int64_t n = basis.columns();
  for (int time = 0; time < 2; ++time) {
    for (std::int64_t i = 0; i < count; ++i) add_multiple(-dot(basis[i], q, n), basis[i], n, q);
    const double length = std::sqrt(dot(q, q, n));
    for (std::int64_t i = 0; i < n; ++i) q[i] /= length;
  }
}

}  // namespace

void Matrix::keep_rows(std::int64_t first, std::int64_t count) {
  std::copy_n((*this)[first], count * columns_, entries_.data());
  rows_ = count;
  entries_.resize(static_cast<std::size_t>(size()));
}

double dot(const double* a, const double* b, std::int64_t n) {
  double sums[tile] = {};
  std::int64_t i = 0;
  for (; i + tile <= n; i += tile) {
    for (std::int64_t c = 0; c < tile; ++c) sums[c] += a[i + c] * b[i + c];
  }
  double sum = (sums[0] + sums[2]) + (sums[1] + sums[3]);
  for (; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

double norm(const Matrix& A) { return std::sqrt(dot(A[0], A[0], A.size())); }

void add_multiple(double factor, const double* __restrict x, std::int64_t n, double* __restrict y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] += factor * x[i];
}

void add_product(std::int64_t m, std::int64_t k, std::int64_t n, Strided A, Strided B, double* out, std::int64_t step) {
  for (; m >= tile; m -= tile, A.entries += tile * A.row, out += tile * step) add_rows<tile>(k, n, A, B, out, step);
  if (m == 1) add_rows<1>(k, n, A, B, out, step);
  if (m == 2) add_rows<2>(k, n, A, B, out, step);
  if (m == 3) add_rows<3>(k, n, A, B, out, step);
}

Matrix product(const Matrix& A, const Matrix& B) {
  Matrix out(A.rows(), B.columns());
  add_product(A.rows(), A.columns(), B.columns(), {A[0], A.columns()}, {B[0], B.columns()}, out[0], B.columns());
  return out;
}

Reduced reduced(Matrix A, double drop, std::int64_t most) {
  const std::int64_t m = A.rows(), n = A.columns();
  most = std::min({most, m, n});
  Reduced found{Matrix(most, m), Matrix(most, n)};
  std::vector<double> lengths(static_cast<std::size_t>(n));
  std::int64_t r = 0;
  for (; r < most; ++r) {
    std::fill(lengths.begin(), lengths.end(), 0.0);
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) lengths[static_cast<std::size_t>(j)] += A[i][j] * A[i][j];
    }
    const auto longest = std::max_element(lengths.begin(), lengths.end());
    const double left = std::accumulate(lengths.begin(), lengths.end(), 0.0);
    if (!(left > drop * drop) || !(*longest > 0)) break;
    double* const q = found.left[r];
    for (std::int64_t i = 0; i < m; ++i) q[i] = A[i][longest - lengths.begin()];
    const double unit = 1 / std::sqrt(*longest);
    for (std::int64_t i = 0; i < m; ++i) q[i] *= unit;
    orthonormalise(found.left, r, q);
    double* const row = found.right[r];
    for (std::int64_t i = 0; i < m; ++i) add_multiple(q[i], A[i], n, row);
    for (std::int64_t i = 0; i < m; ++i) add_multiple(-q[i], row, n, A[i]);
  }
  found.left.keep_rows(0, r);
  found.right.keep_rows(0, r);
  return found;
}

std::vector<double> orthogonalise(Matrix& A, Matrix* along) {
  const std::int64_t r = A.rows(), n = A.columns();
  std::vector<double> squares(static_cast<std::size_t>(r));
  const double tolerance = eps * std::sqrt(static_cast<double>(n));
  bool rotated = true;
  for (int sweep = 0; rotated && sweep < most_sweeps; ++sweep) {
    rotated = false;
    double total = 0;
    for (std::int64_t i = 0; i < r; ++i) total += squares[static_cast<std::size_t>(i)] = dot(A[i], A[i], n);
    for (std::int64_t i = 0; i < r; ++i) {
      for (std::int64_t j = i + 1; j < r; ++j) {
        double &a = squares[static_cast<std::size_t>(i)], &b = squares[static_cast<std::size_t>(j)];
        const double inner = dot(A[i], A[j], n);
        // Orthogonal to rounding, or both no more than rounding themselves
        if (inner * inner <= tolerance * tolerance * std::abs(a) * std::abs(b)) continue;
        if (std::abs(inner) <= eps * eps * total) continue;
        const double slope = (b - a) / (2 * inner);
        const double t = std::copysign(1 / (std::abs(slope) + std::sqrt(1 + slope * slope)), slope);
        const double c = 1 / std::sqrt(1 + t * t);
        rotate(c, c * t, n, A[i], A[j]);
        if (along != nullptr) rotate(c, c * t, along->columns(), (*along)[i], (*along)[j]);
        a -= t * inner;
        b += t * inner;
        rotated = true;
      }
    }
  }
  for (std::int64_t i = 0; i < r; ++i) squares[static_cast<std::size_t>(i)] = dot(A[i], A[i], n);
  for (std::int64_t i = 0; i < r; ++i) {
    const std::int64_t longest = std::max_element(squares.begin() + i, squares.end()) - squares.begin();
    if (longest == i) continue;
    std::swap(squares[static_cast<std::size_t>(i)], squares[static_cast<std::size_t>(longest)]);
    std::swap_ranges(A[i], A[i] + n, A[longest]);
    if (along != nullptr) std::swap_ranges((*along)[i], (*along)[i] + along->columns(), (*along)[longest]);
  }
  for (double& each : squares) each = std::sqrt(each);
  return squares;
}

std::vector<double> eigendecompose(Matrix& K) {
  // Shifted, its eigenvalues are positive and not small, so that they are lengths of rows along the eigenvectors
  const std::int64_t n = K.rows();
  const double shift = 2 * norm(K);
  for (std::int64_t i = 0; i < n; ++i) K[i][i] += shift;
  std::vector<double> values = orthogonalise(K);
  for (std::int64_t i = 0; i < n; ++i) {
    double& value = values[static_cast<std::size_t>(i)];
    for (std::int64_t j = 0; value > 0 && j < n; ++j) K[i][j] /= value;
    value -= shift;
  }
  return values;
}

bool factor_cholesky(Matrix& A) {
  for (std::int64_t i = 0; i < A.rows(); ++i) {
    for (std::int64_t j = 0; j < i; ++j) A[i][j] = (A[i][j] - dot(A[i], A[j], j)) / A[j][j];
    const double pivot = A[i][i] - dot(A[i], A[i], i);
    if (!(pivot > 0)) return false;
    A[i][i] = std::sqrt(pivot);
  }
  return true;
}

void solve_cholesky(const Matrix& L, Matrix& X) {
  const std::int64_t n = X.rows(), k = X.columns();
  const auto divided = [&](std::int64_t i) {
    for (std::int64_t c = 0; c < k; ++c) X[i][c] /= L[i][i];
  };
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < i; ++j) add_multiple(-L[i][j], X[j], k, X[i]);
    divided(i);
  }
  for (std::int64_t i = n; i-- > 0;) {
    divided(i);
    for (std::int64_t j = 0; j < i; ++j) add_multiple(-L[i][j], X[i], k, X[j]);
  }
}

void solve(Matrix A, Matrix& X) {
  const std::int64_t n = A.rows(), k = X.columns();
  for (std::int64_t i = 0; i < n; ++i) {
    std::int64_t pivot = i;
    for (std::int64_t r = i + 1; r < n; ++r) {
      if (std::abs(A[r][i]) > std::abs(A[pivot][i])) pivot = r;
    }
    std::swap_ranges(A[i], A[i] + (pivot == i ? 0 : n), A[pivot]);
    std::swap_ranges(X[i], X[i] + (pivot == i ? 0 : k), X[pivot]);
    for (std::int64_t r = i + 1; r < n; ++r) {
      const double factor = A[r][i] / A[i][i];
      add_multiple(-factor, A[i] + i, n - i, A[r] + i);
      add_multiple(-factor, X[i], k, X[r]);
    }
  }
  for (std::int64_t i = n; i-- > 0;) {
    for (std::int64_t c = 0; c < k; ++c) X[i][c] /= A[i][i];
    for (std::int64_t r = 0; r < i; ++r) add_multiple(-A[r][i], X[i], k, X[r]);
  }
}

}  // namespace linattn
