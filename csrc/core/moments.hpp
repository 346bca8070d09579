// The moments that least squares needs, for positions = last. With h = s (x) z the cubic features of a sample,
// w its weight and y its target:
//
//   gram   [(u,v), (l,m)] = sum w s_u s_v z_l z_m    pair_count(q) x pair_count(d): every distinct entry of sum w h h'
//   cross  [(a,l), u]     = sum w y_a z_l s_u        d_out d x q
//   energy [a]            = sum w y_a^2              d_out
#pragma once

#include <cstdint>
#include <functional>

#include "kernels.hpp"
#include "tokens.hpp"

namespace linattn {

struct MomentSums {
  double* gram;  // nullptr: not wanted
  double* cross;
  double* energy;
};

// Called now and then from the calling thread with the number of sequences done; throws to stop the work.
using Monitor = std::function<void(std::int64_t done)>;

// Adds the moments of the batch to `sums`. Same bits for every number of threads. Throws NonFinite.
void accumulate_moments(const Kernels& kernels, const TokenBatch& tokens, const TokenBatch* targets,
                        const double* weights, int threads, const Monitor& monitor, const MomentSums& sums);

}  // namespace linattn
