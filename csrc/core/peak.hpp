// What the machine can do at best, for benchmarks to compare with.
#pragma once

#include "../kernels/table.hpp"

namespace linattn {

// Floating-point operations a second (a multiply-add counts as two) on `threads` threads, in one run
// of about a tenth of a second.
double multiply_add_rate(const Kernels& kernels, int threads);

}  // namespace linattn
