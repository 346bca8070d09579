// The moments that least squares needs, as in core/moments.hpp, of samples on the device.
#pragma once

#include "../common/sums.hpp"
#include "samples.hpp"

namespace linattn::cuda {

std::int64_t moments_workspace(const Sizes& sizes, bool with_gram);

// Adds the moments of the data to `sums`, whose cross and energy are null without targets.
void accumulate_moments(const Samples& data, const MomentSums& sums, double* workspace, cudaStream_t stream);

// Additions that a summand of the Gram goes through, at most: within a slab of samples, over slabs, over chunks.
std::int64_t summation_steps(const Sizes& sizes);

}  // namespace linattn::cuda
