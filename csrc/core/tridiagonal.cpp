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

// What stands in for a pivot that is as good as zero.
constexpr double tiny = std::numeric_limits<double>::min();

// The least eigenvalue of sign * T, for the squares of what is beside the diagonal a; it is in [low, high].
double least_eigenvalue(const std::vector<double>& a, const std::vector<double>& squares, double sign, double low,
                        double high) {
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
    for (std::size_t row = 1; row < a.size(); ++row) {
      const double square = squares[row - 1], own = sign * a[row];
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

// A matrix with entries of at most one, by a power of two, so that squares neither overflow nor underflow.
struct Shrunk {
  Shrunk(const double* a, const double* b, std::int64_t n) : diagonal(a, a + n), squares(static_cast<std::size_t>(n)) {
    double most = 0;
    const auto look_at = [&](double entry) {
      most = std::max(most, std::abs(entry));
      finite = finite && std::isfinite(entry);
    };
    std::for_each(a, a + n, look_at);
    std::for_each(b, b + n - 1, look_at);
    if (!finite || most == 0) return;
    exponent = std::ilogb(most) + 1;
    for (std::int64_t i = 0; i < n; ++i) {
      const auto entry = [&](std::int64_t j) { return j < 0 || j >= n - 1 ? 0.0 : std::ldexp(b[j], -exponent); };
      double& own = diagonal[static_cast<std::size_t>(i)];
      own = std::ldexp(own, -exponent);
      squares[static_cast<std::size_t>(i)] = entry(i) * entry(i);
      const double beside = std::abs(entry(i - 1)) + std::abs(entry(i));  // Gershgorin
      low = std::min(low, own - beside);
      high = std::max(high, own + beside);
    }
    const double little = 16 * std::numeric_limits<double>::epsilon();  // by which rounding may put one outside
    low -= little;
    high += little;
  }

  double smallest() const { return found(least_eigenvalue(diagonal, squares, 1.0, low, high)); }
  double largest() const { return found(-least_eigenvalue(diagonal, squares, -1.0, -high, -low)); }

  std::vector<double> diagonal, squares;
  bool finite = true;
  int exponent = 0;
  double low = 0, high = 0;  // between which the eigenvalues are

 private:
  double found(double eigenvalue) const {
    return finite ? std::ldexp(eigenvalue, exponent) : std::numeric_limits<double>::quiet_NaN();
  }
};

}  // namespace

Extremes extreme_eigenvalues(const double* a, const double* b, std::int64_t n) {
  const Shrunk matrix(a, b, n);
  return {matrix.smallest(), matrix.largest()};
}

double largest_eigenvalue(const double* a, const double* b, std::int64_t n) { return Shrunk(a, b, n).largest(); }

}  // namespace linattn
