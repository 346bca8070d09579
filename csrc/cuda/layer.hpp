// Applying a layer to tokens on the device.
#pragma once

#include "samples.hpp"

namespace linattn::cuda {

// Sizes of the data have all features; d_out is that of the layer.

// y = sum_h V_h S Q_h z        V (heads x d_out x d), Q (heads x d x d), out (samples or rows x d_out)
std::int64_t heads_workspace(const Sizes& sizes, std::int64_t heads);
void evaluate_heads(const Samples& data, const double* v, const double* q, std::int64_t heads, double* out,
                    double* workspace, cudaStream_t stream);

// y = C h        C (d_out x p)
std::int64_t coefficients_workspace(const Sizes& sizes);
void evaluate_coefficients(const Samples& data, const double* coefficients, double* out, double* workspace,
                           cudaStream_t stream);

}  // namespace linattn::cuda
