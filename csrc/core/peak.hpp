// What the machine can do at best, for benchmarks to compare with.
#pragma once

#include "kernels.hpp"

namespace linattn {

// Floating-point operations a second (a multiply-add counts as two) on `threads` threads: the best of several short runs.
double multiply_add_rate(const Kernels& kernels, int threads);

}  // namespace linattn
