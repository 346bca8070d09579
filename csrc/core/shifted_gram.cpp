#include "shifted_gram.hpp"

#include <cmath>
#include <cstddef>
#include <memory>
#include <vector>

#include "triangular.hpp"

namespace linattn {

namespace {

// Features from which a matrix is factorised by halves, so that no more than half of it is held.
constexpr std::int64_t features_by_halves = 4096;

using Matrix = std::unique_ptr<double[]>;

// Not filled: every entry is written.
Matrix new_matrix(std::int64_t rows, std::int64_t columns) {
  return Matrix(new double[static_cast<std::size_t>(rows * columns)]);
}

// The diagonal of A; empty where an entry is not positive, or NaN.
std::vector<double> shifted_diagonal(const CompactGram& gram, const double* magnitudes, const double* scale,
                                     const Shift& shift) {
  const std::int64_t p = gram.features();
  std::vector<double> shifted(static_cast<std::size_t>(p));
  gram_diagonal(gram, shifted.data());
  double trace = 0;
  for (std::int64_t i = 0; i < p; ++i) {
    const double unit = scale[i];
    double& own = shifted[static_cast<std::size_t>(i)];
    // Scaled first, so that m is about one or more: otherwise lost m could be subnormal.
    own = own * unit * unit - (shift.lost * (magnitudes[i] * unit * unit) + shift.tau * unit * unit) * shift.rounding;
    if (!(own > 0)) return {};
    trace += own;
  }
  const double theta = shift.backward * trace + shift.margin;
  for (double& own : shifted) {
    own -= theta;
    if (!(own > 0)) return {};
  }
  return shifted;
}

// Whether Cholesky runs to completion on A, whose entries beside the diagonal are those of D G D.
class ShiftedGram {
 public:
  ShiftedGram(const Kernels& kernels, const CompactGram& gram, const std::vector<double>& scale,
              const std::vector<double>& shifted, int threads, const Monitor& monitor)
      : kernels_(kernels), gram_(gram), scale_(scale), shifted_(shifted), threads_(threads), monitor_(monitor) {}

  bool whole() {
    const PairRange all{0, gram_.pairs};
    const Matrix A = block(all, all);
    return factorised(A.get(), features(all));
  }

  // [A11 . ; A21 A22]:  L11 L11' = A11,  X = A21 L11'^-1,  then A22 - X X'; each is freed when it has been used.
  bool by_halves() {
    const PairRange upper{0, gram_.pairs / 2}, lower{upper.last, gram_.pairs};
    const std::int64_t n1 = features(upper), n2 = features(lower);
    Matrix A11 = block(upper, upper);
    if (!factorised(A11.get(), n1)) return false;
    const Matrix X = block(lower, upper);
    solve_triangular(kernels_, A11.get(), n1, Side::lower, X.get(), n2, threads_, monitor_);
    A11.reset();
    const Matrix A22 = block(lower, lower);
    subtract_square(kernels_, X.get(), n1, A22.get(), n2, threads_, monitor_);
    return factorised(A22.get(), n2);
  }

 private:
  std::int64_t features(PairRange of) const { return of.count() * gram_.queries; }

  // A block of A; one that begins on the diagonal has its shifted entries there.
  Matrix block(PairRange rows, PairRange columns) {
    Matrix matrix = new_matrix(features(rows), features(columns));
    dense_gram_block(gram_, 1.0, 0.0, scale_.data(), rows, columns, threads_, matrix.get());
    if (rows.first != columns.first) return matrix;
    const std::int64_t n = features(rows), first = rows.first * gram_.queries;
    for (std::int64_t i = 0; i < n; ++i) {
      matrix[static_cast<std::size_t>(i * (n + 1))] = shifted_[static_cast<std::size_t>(first + i)];
    }
    return matrix;
  }

  bool factorised(double* matrix, std::int64_t n) {
    if (factor_cholesky(kernels_, matrix, n, threads_, monitor_) != 0) return false;
    for (std::int64_t i = 0; i < n; ++i) {
      if (!std::isfinite(matrix[i * (n + 1)])) return false;
    }
    return true;
  }

  const Kernels& kernels_;
  const CompactGram& gram_;
  const std::vector<double>&scale_, &shifted_;
  int threads_;
  const Monitor& monitor_;
};

}  // namespace

bool exceeds(const Kernels& kernels, const CompactGram& gram, const double* diagonal, const double* magnitudes,
             const Shift& shift, int threads, const Monitor& monitor) {
  const std::int64_t p = gram.features();
  std::vector<double> scale(static_cast<std::size_t>(p));
  power_of_two_scale(diagonal, p, scale.data());
  const std::vector<double> shifted = shifted_diagonal(gram, magnitudes, scale.data(), shift);
  if (shifted.empty()) return false;
  ShiftedGram matrix(kernels, gram, scale, shifted, threads, monitor);
  return p < features_by_halves || gram.pairs < 2 ? matrix.whole() : matrix.by_halves();
}

}  // namespace linattn
