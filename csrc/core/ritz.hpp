// Estimates of the extreme eigenvalues of Lambda = D^-1 L L' D^-1 from its Cholesky factor: the largest eigenvalues of
// K = Lambda^-1 and of K = Lambda on a small space each, which are close to those of K, and not above them.
//
// The space is a block Krylov space, span(X, K X, .., K^(s-1) X), of `abreast` vectors X. One reading of L serves all
// of them, and eigenvalues that lie close together, as those next to lambda_min do, are found side by side. The basis
// V grows by Lanczos' recurrence, block after block,
//
//   K V_j = V_(j-1) B_(j-1)' + V_j A_j + V_(j+1) B_j
//
// so that the projection V' K V is block tridiagonal. Each block is made orthonormal, and orthogonal to the one before,
// to rounding. It loses orthogonality to earlier ones only where an eigenvalue has been found to rounding, which then
// is found once more.
#pragma once

#include <cstdint>

#include "../kernels/table.hpp"

namespace linattn {

// x (count) = numbers in [-1, 1), the same every time.
void fill_with_noise(double* x, std::int64_t count);

struct RitzValues {
  double of_inverse, of_matrix;  // the largest; NaN where numbers are not finite, 0 where there is no space
};

// `inverse_steps` and `forward_steps` are products with K, at most n / abreast. Same bits for every number of threads.
RitzValues ritz_values(const Kernels& kernels, const double* factor, const double* scale, std::int64_t n,
                       std::int64_t inverse_steps, std::int64_t forward_steps, int threads);

}  // namespace linattn
