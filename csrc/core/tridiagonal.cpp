#include "tridiagonal.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace linattn {

namespace {

constexpr std::int64_t together = 8;  // shifts x that are counted side by side
// Width of an interval, relative to its end, that is narrow enough: far below what the eigenvalue is used for.
constexpr double narrow = 1e-12;
constexpr int most_sweeps = 40;

// The least eigenvalue of sign * T, for the squares b2 of what is beside the diagonal; it is in [low, high].
double least_eigenvalue(const double* a, const std::vector<double>& b2, std::int64_t n, double sign, double low,
                        double high, double tiny) {
  const double size = std::max(std::abs(low), std::abs(high));
  for (int sweep = 0; sweep < most_sweeps; ++sweep) {
    const double width = high - low;
    if (width <= narrow * std::max(std::abs(low), std::abs(high)) ||
        width <= std::numeric_limits<double>::epsilon() * size) {
      break;
    }
    double x[together], q[together], below[together];
    for (std::int64_t i = 0; i < together; ++i) {
      x[i] = low + width * (static_cast<double>(i + 1) / (together + 1));
      q[i] = sign * a[0] - x[i];
      below[i] = q[i] < 0 ? 1 : 0;
    }
    for (std::int64_t row = 1; row < n; ++row) {
      const double square = b2[static_cast<std::size_t>(row - 1)], own = sign * a[row];
      for (std::int64_t i = 0; i < together; ++i) {
        const double before = std::abs(q[i]) < tiny ? -tiny : q[i];
        q[i] = own - x[i] - square / before;
        below[i] += q[i] < 0 ? 1 : 0;
      }
    }
    double next_low = low, next_high = high;
    for (std::int64_t i = 0; i < together && next_high == high; ++i) (below[i] > 0 ? next_high : next_low) = x[i];
    if (next_low == low && next_high == high) break;  // no number lies between
    low = next_low;
    high = next_high;
  }
  return low + (high - low) / 2;
}

}  // namespace

Extremes extreme_eigenvalues(const double* a, const double* b, std::int64_t n) {
  double low = std::numeric_limits<double>::infinity(), high = -low, largest = 0;
  std::vector<double> b2(static_cast<std::size_t>(n));
  bool finite = true;
  for (std::int64_t i = 0; i < n; ++i) {  // Gershgorin
    const double beside = (i > 0 ? std::abs(b[i - 1]) : 0.0) + (i + 1 < n ? std::abs(b[i]) : 0.0);
    low = std::min(low, a[i] - beside);
    high = std::max(high, a[i] + beside);
    b2[static_cast<std::size_t>(i)] = i + 1 < n ? b[i] * b[i] : 0.0;
    largest = std::max(largest, b2[static_cast<std::size_t>(i)]);
    finite = finite && std::isfinite(a[i]) && std::isfinite(b2[static_cast<std::size_t>(i)]);
  }
  if (!finite) return {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::quiet_NaN()};
  const double tiny = std::max(1.0, largest) * std::numeric_limits<double>::min();
  // Rounding may put an eigenvalue outside by a little
  const double little = 4 * std::numeric_limits<double>::epsilon() * std::max(std::abs(low), std::abs(high));
  low -= little;
  high += little;
  return {least_eigenvalue(a, b2, n, 1.0, low, high, tiny), -least_eigenvalue(a, b2, n, -1.0, -high, -low, tiny)};
}

}  // namespace linattn
