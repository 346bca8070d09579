// Few samples, kept as rows: their sums, and residuals of coefficients on them. In float64, on one thread.
//
//   gram, cross, energy   as in moments.hpp, last and causal
//   gradient              sum w (y - C h) h'        squared error   sum w (y - C h)^2
//
// Nothing is packed, which is faster where the columns of the Gram are few (kernels/row_products.hpp).
#pragma once

#include <cstdint>
#include <vector>

#include "../common/buffer.hpp"
#include "../common/sums.hpp"
#include "../kernels/table.hpp"
#include "sample_block.hpp"

namespace linattn {

// All features of tokens, whose targets are given; the data stays with the caller.
class KeptRows {
 public:
  KeptRows(const Kernels& kernels, const Samples& data);

  // Reads the samples, and adds their moments to sums that are zero. Throws NonFinite.
  void sum(const MomentSums& sums);
  // For C (d_out x p): gradient (d_out x p), null where it is not wanted, and the squared error, of all outputs.
  double residuals(const double* C, double* gradient);

 private:
  const Kernels& kernels_;
  const Samples& data_;
  BlockFiller filler_;
  std::vector<SampleBlock> blocks_;
  std::vector<RowPair> pairs_;    // rows (u, v) of the Gram
  std::vector<RowPair> targets_;  // rows (a, l) of the cross moment: of y and z
  Buffer by_query_, sums_;        // C and its gradient as (d_out d, q)
  Buffer maps_, answers_;         // d_out d and d_out rows of a block
};

// Roundings that a summand of the Gram goes through in so many samples, at most, once S, z and w are at hand.
std::int64_t roundings_of_rows(std::int64_t samples);

}  // namespace linattn
