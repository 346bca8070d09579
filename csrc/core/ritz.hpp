// Lambda = D^-1 L L' D^-1, from its Cholesky factor, or its inverse, projected on a small space: the largest eigenvalue
// of the projection is close to that of the matrix, and not above it.
//
// The space is a block Krylov space, span(X, K X, .., K^(s-1) X), of `abreast` vectors X. One reading of L serves all
// of them, and eigenvalues that lie close together, as those next to lambda_min do, are found side by side. The basis
// V is orthonormal, block after block, and the projection is T = V' K V.
#pragma once

#include <cstdint>

#include "../kernels/table.hpp"

namespace linattn {

// x (count) = numbers in [-1, 1), the same every time.
void fill_with_noise(double* x, std::int64_t count);

// T (abreast steps x abreast steps) of K = Lambda^-1, or of K = Lambda. Blocks are left as they
// are from where the space does not grow any more, or numbers overflow.
void project_on_krylov_space(const Kernels& kernels, const double* factor, const double* scale, std::int64_t n,
                             bool inverse, std::int64_t steps, double* T);

}  // namespace linattn
