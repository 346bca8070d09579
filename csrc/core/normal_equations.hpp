// The normal equations as an operator on coefficients C (m x p), without a p x p matrix. With h = s (x) z the features
// of a sample, w its weight and y its target, and f = C h:
//
//   Kronecker factors   sum w s s',  sum w z z',  and the diagonal sum w s_u^2 z_l^2 of the Gram
//   normal product      sum w f h'          and sum w f^2
//   gradient            sum w (y - f) h'    and sum w (y - f)^2
//
// A block of samples is read once for f and its transposed product, while it is in the cache:
//
//   maps[(a,l)] = sum_u C[a,(u,l)] s_u        f_a = sum_l maps[(a,l)] z_l        out[a,(u,l)] += sum w f_a z_l s_u
//
// For all positions a block's sample is a sequence. The sum over its queries of f z' is maps S, so that the normal
// product needs no work per token; residuals are taken token by token, because maps S would lose digits that y - f has.
#pragma once

#include <cstdint>

#include "../common/monitor.hpp"
#include "../common/sums.hpp"
#include "sample_store.hpp"

namespace linattn {

// Features are numbered pair * queries + query everywhere below. Same bits for every number of threads; results are
// overwritten. Throws NonFinite.

void kronecker_factors(SampleStore& store, int threads, const Monitor& monitor, const KroneckerSums& sums);

// C (m x p): product (m x p), energy (m).
void normal_product(SampleStore& store, const double* coefficients, std::int64_t m, int threads, const Monitor& monitor,
                    double* product, double* energy);

// The same with products in float32, where errors of about 1e-7 of what they are summed from do no harm: coefficients
// and s are rounded, sums within a block are float32, totals float64. Of kept samples, after a first pass.
void narrow_product(SampleStore& store, const double* coefficients, std::int64_t m, int threads, const Monitor& monitor,
                    double* product, double* energy);

// C (d_out x p), of data with targets: gradient (d_out x p), squared_error (d_out).
void residual_gradient(SampleStore& store, const double* coefficients, int threads, const Monitor& monitor,
                       double* gradient, double* squared_error);

}  // namespace linattn
