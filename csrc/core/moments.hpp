// The moments that least squares needs. With h = s (x) z the cubic features of a sample, w its weight, y its target:
//
//   gram     last, causal: [(u,v), (l,m)] = sum w s_u s_v z_l z_m    pair_count(q) x pair_count(d)
//            all:          [(u,v,w')]     = sum w s_u s_v s_w'       q (q + 1) (q + 2) / 6
//   cross    [(a,l), u]    = sum w y_a z_l s_u                       d_out d x q
//   energy   [a]           = sum w y_a^2                             d_out
//
// These are all distinct entries of sum w h h' and sum w y h'. With a selection, u and v are chosen pairs and l and m
// chosen queries, and the Gram has rows (u,v) and columns (l,m) for all positions. It may then lack the entries that
// say how large the summands of the others are, which are formed on their own, in the same order and with the same
// roundings:
//
//   sizes    [(j,k), l]    = sum w S_jj S_kk z_l^2   (all: S_ll in the place of z_l^2)
#pragma once

#include <cstdint>
#include <memory>

#include "../common/monitor.hpp"
#include "../common/sums.hpp"
#include "../kernels/table.hpp"
#include "sample_block.hpp"
#include "sample_store.hpp"

namespace linattn {

// What a bound on the error of the sums rests on.
struct Summation {
  // Roundings that a summand of the Gram goes through once S, z and w are at hand, at most: in float64, and in float32.
  std::int64_t wide, narrow;
  // Whether a result was rounded below the smallest normal number, where the error is no longer relative.
  bool underflow;
};

// Number of entries of `gram`.
std::int64_t gram_size(const Samples& data);

// Adds the moments of the data to `sums`. Same bits for every number of threads. Throws NonFinite. A store of the same
// samples, if there is one, keeps them for passes to come.
Summation accumulate_moments(const Kernels& kernels, const Samples& data, Precision precision, int threads,
                             const Monitor& monitor, const MomentSums& sums, SampleStore* store = nullptr);

// The same in float64 for one problem after the other: `data` stays, and its tokens and targets are replaced by others
// of the same shapes. What is set up for a problem serves the next. Works on the thread that makes it.
class SerialMoments {
 public:
  SerialMoments(const Kernels& kernels, const Samples& data);
  ~SerialMoments();
  void add(const MomentSums& sums);
  // squared_error (d_out) = sum w (y - C h)^2 over the problem that was added last, for C (d_out x p).
  void squared_error(const double* C, double* squared_error);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace linattn
