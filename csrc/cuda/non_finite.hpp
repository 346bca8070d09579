// NaN and infinity among tokens.
#pragma once

#include "tokens.hpp"

namespace linattn::cuda {

// index[0] = number of the first sequence that has NaN or infinity, or -1
void first_non_finite(const Tokens& tokens, std::int64_t* index, cudaStream_t stream);

}  // namespace linattn::cuda
