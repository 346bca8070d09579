#include "shifted_gram.hpp"

#include <cmath>
#include <memory>
#include <vector>

#include "triangular.hpp"

namespace linattn {

bool exceeds(const Kernels& kernels, const CompactGram& gram, const double* diagonal, const double* magnitudes,
             const Shift& shift, int threads, const Monitor& monitor) {
  const std::int64_t p = gram.features();
  std::vector<double> scale(static_cast<std::size_t>(p));
  power_of_two_scale(diagonal, p, scale.data());
  const std::unique_ptr<double[]> matrix(new double[static_cast<std::size_t>(p * p)]);
  dense_gram(gram, 1.0, 0.0, scale.data(), threads, matrix.get());
  double trace = 0;
  for (std::int64_t i = 0; i < p; ++i) {
    const double unit = scale[static_cast<std::size_t>(i)];
    double& own = matrix[static_cast<std::size_t>(i * (p + 1))];
    // Scaled first, so that m is about one or more: otherwise lost m could be subnormal.
    own -= (shift.lost * (magnitudes[i] * unit * unit) + shift.tau * unit * unit) * shift.rounding;
    if (!(own > 0)) return false;  // NaN too
    trace += own;
  }
  const double theta = shift.backward * trace + shift.margin;
  for (std::int64_t i = 0; i < p; ++i) {
    double& own = matrix[static_cast<std::size_t>(i * (p + 1))];
    own -= theta;
    if (!(own > 0)) return false;
  }
  if (factor_cholesky(kernels, matrix.get(), p, threads, monitor) != 0) return false;
  for (std::int64_t i = 0; i < p; ++i) {
    if (!std::isfinite(matrix[static_cast<std::size_t>(i * (p + 1))])) return false;
  }
  return true;
}

}  // namespace linattn
