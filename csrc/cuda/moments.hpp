// The moments that least squares needs, as in core/moments.hpp, of a batch on the device.
#pragma once

#include "samples.hpp"

namespace linattn::cuda {

struct MomentSums {
  double* gram;    // gram_entries(); null: not wanted
  double* cross;   // d_out x queries x pairs; null without targets
  double* energy;  // d_out; null without targets
};

std::int64_t moments_workspace(const Sizes& sizes, bool with_gram);

// Adds the moments of the data to `sums`.
void accumulate_moments(const Data& data, const MomentSums& sums, double* workspace, cudaStream_t stream);

// Additions that a summand of the Gram goes through, at most: within a slab of samples, over slabs, over chunks.
std::int64_t summation_steps(const Sizes& sizes);

}  // namespace linattn::cuda
