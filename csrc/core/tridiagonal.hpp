// The extreme eigenvalues of a symmetric tridiagonal matrix, by Sturm counts.
//
//   q_1 = a_1 - x    q_i = a_i - x - b_(i-1)^2 / q_(i-1)      as many q_i < 0 as eigenvalues < x
//
// Several x are counted side by side, so that divisions do not wait for each other; all eigenvalues, as LAPACK finds
// them, would take many times as long.
#pragma once

#include <cstdint>

namespace linattn {

struct Extremes {
  double smallest, largest;
};

// Of the diagonal a (n) and what is beside it, b (n - 1), to rounding relative to the largest entries. NaN where these
// are not finite.
Extremes extreme_eigenvalues(const double* a, const double* b, std::int64_t n);

// The largest one alone.
double largest_eigenvalue(const double* a, const double* b, std::int64_t n);

}  // namespace linattn
