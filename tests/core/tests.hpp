// The tests of the core, by subject; test_core.cpp runs them.
#pragma once

#include <random>

#include "../../csrc/kernels/table.hpp"

namespace linattn {

void test_team();  // threads that share out tasks

// Each for one instruction set.
void test_samples(const Kernels& kernels, std::mt19937& random);  // moments, normal equations and layers
void test_algebra(const Kernels& kernels,
                  std::mt19937& random);  // products, triangular systems, sums of softmax layers

}  // namespace linattn
