// The normal equations as an operator on coefficients, as in core/normal_equations.hpp, of samples on the device.
#pragma once

#include "../common/sums.hpp"
#include "samples.hpp"

namespace linattn::cuda {

// Everywhere below, `kept` are samples that keep_samples left, or null: then they are formed again. The result has the
// same bits.
std::int64_t keep_workspace(const Sizes& sizes);
void keep_samples(const Samples& data, double* kept, double* workspace, cudaStream_t stream);

std::int64_t kronecker_workspace(const Sizes& sizes, bool kept);
void kronecker_factors(const Samples& data, const double* kept, const KroneckerSums& sums, double* workspace,
                       cudaStream_t stream);

// C (m x p): product (m x p) = sum w (C h) h', energy (m) = sum w (C h)^2.
std::int64_t normal_workspace(const Sizes& sizes, std::int64_t m, bool kept);
void normal_product(const Samples& data, const double* kept, const double* coefficients, std::int64_t m,
                    double* product, double* energy, double* workspace, cudaStream_t stream);

// C (d_out x p): gradient (d_out x p) = sum w (y - C h) h', squared_error (d_out) = sum w (y - C h)^2.
std::int64_t gradient_workspace(const Sizes& sizes, bool kept);
void residual_gradient(const Samples& data, const double* kept, const double* coefficients, double* gradient,
                       double* squared_error, double* workspace, cudaStream_t stream);

}  // namespace linattn::cuda
