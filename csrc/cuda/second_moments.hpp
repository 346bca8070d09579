// S of whole sequences (positions "last" and "all").
#pragma once

#include "tokens.hpp"

namespace linattn::cuda {

// s[i, u] = sum over the tokens z of sequence first + i of z_j z_k, (j, k) = pairs[u]        s: sequences x pairs.count
void second_moments(const Tokens& tokens, const PairList& pairs, std::int64_t first, std::int64_t sequences, double* s,
                    cudaStream_t stream);

}  // namespace linattn::cuda
