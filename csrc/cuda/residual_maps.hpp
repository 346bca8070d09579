// What every token of a sequence says about a layer, as one map a sequence (positions "all").
#pragma once

#include "tokens.hpp"

namespace linattn::cuda {

// With r_t = y_t - maps_i z_t, or r_t = y_t where maps are null, over the tokens t of sequence first + i:
//
//   sums[i, (a,l)]  = sum_t r_t[a] z_t[l]        sequences x (d_out queries)
//   squares[i, a]   = sum_t r_t[a]^2             sequences x d_out
//
// maps: sequences x (d_out queries); l are the chosen coordinates (null: all). targets: rows x d_out.
void residual_maps(const Tokens& tokens, const Numbers& targets, std::int64_t d_out, const std::int64_t* coordinates,
                   std::int64_t queries, const double* maps, std::int64_t first, std::int64_t sequences, double* sums,
                   double* squares, cudaStream_t stream);

}  // namespace linattn::cuda
