// The moments that least squares needs. With h = s (x) z the cubic features of a sample, w its weight, y its target:
//
//   gram     last, causal: [(u,v), (l,m)] = sum w s_u s_v z_l z_m    pair_count(q) x pair_count(d)
//            all:          [(u,v,w')]     = sum w s_u s_v s_w'       q (q + 1) (q + 2) / 6
//   cross    [(a,l), u]    = sum w y_a z_l s_u                       d_out d x q
//   energy   [a]           = sum w y_a^2                             d_out
//
// These are all distinct entries of sum w h h' and sum w y h'. With a selection, u and v are chosen pairs and l and m
// chosen queries, and the Gram has rows (u,v) and columns (l,m) for all positions.
#pragma once

#include <cstdint>
#include <functional>

#include "kernels.hpp"
#include "sample_block.hpp"

namespace linattn {

struct MomentSums {
  double* gram;  // nullptr: not wanted
  double* cross;
  double* energy;
};

// Number of entries of `gram`.
std::int64_t gram_size(const Data& data);

// Called now and then from the calling thread with the number of samples done; throws to stop the work.
using Monitor = std::function<void(std::int64_t done)>;

// Adds the moments of the data to `sums`. Same bits for every number of threads. Throws NonFinite. Returns whether a
// result was rounded below the smallest normal number, where the error is no longer relative.
bool accumulate_moments(const Kernels& kernels, const Data& data, Precision precision, int threads,
                        const Monitor& monitor, const MomentSums& sums);

}  // namespace linattn
