// Looks for NaN and infinity before long work, at the speed of memory.
#pragma once

#include <cstdint>

#include "tokens.hpp"

namespace linattn {

bool are_finite(const double* values, std::int64_t count, int threads);

// The lowest index of a sequence with a value that is not finite, or -1.
std::int64_t first_non_finite(const Tokens& tokens, int threads);

}  // namespace linattn
