// What a sample has beside s: its query z, weight w and target y, from the tokens into rows of float64.
#pragma once

#include "../common/positions.hpp"
#include "tokens.hpp"

namespace linattn::cuda {

// Queries of samples first .. first + samples: the last token of a sequence, or a row (causal).
//   z[i, l] = z_l of sample i's query, l the chosen coordinates (null: all `queries` of them)        samples x queries
void gather_queries(const Tokens& tokens, Positions positions, const std::int64_t* coordinates, std::int64_t queries,
                    std::int64_t first, std::int64_t samples, double* z, cudaStream_t stream);

// w[i] = the weight of sample i's sequence, 1 where weights are null        samples
void gather_weights(const Tokens& tokens, Positions positions, const double* weights, std::int64_t first,
                    std::int64_t samples, double* w, cudaStream_t stream);

// out[i] = numbers[first + i]        count
void widen(const Numbers& numbers, std::int64_t first, std::int64_t count, double* out, cudaStream_t stream);

// products[i, (l,m)] = z[i, l] z[i, m], l <= m        samples x pair_count(queries)
void query_products(const double* z, std::int64_t queries, std::int64_t samples, double* products, cudaStream_t stream);

// squares[i, l] = z[i, l]^2; of "all", sum_t z_l^2 = S_ll from the packed S of the queries        samples x queries
void query_squares(const double* z, std::int64_t queries, std::int64_t samples, bool packed, double* squares,
                   cudaStream_t stream);

// out[i] = w[i] times the length of sequence first + i        sequences
void weigh_by_length(const Tokens& tokens, const double* w, std::int64_t first, std::int64_t sequences, double* out,
                     cudaStream_t stream);

}  // namespace linattn::cuda
