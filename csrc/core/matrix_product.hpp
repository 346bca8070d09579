// out = A B' of two ordinary matrices, with the kernels and on the threads of everything else here.
//
// A BLAS would do, but its threads keep a processor busy for a while after each call, waiting for the next one. Between
// the passes of an iteration that costs as much as a pass.
#pragma once

#include <cstdint>

#include "../kernels/table.hpp"

namespace linattn {

// a (rows x inner), b (columns x inner) and out (rows x columns), all row-major. Same bits for every number of threads.
void multiply_transposed(const Kernels& kernels, const double* a, std::int64_t rows, const double* b,
                         std::int64_t columns, std::int64_t inner, int threads, double* out);

}  // namespace linattn
