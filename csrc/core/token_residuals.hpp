// Residuals of every token that attends to its whole sequence (positions "all"), from the tokens themselves.
#pragma once

#include <cstdint>

#include "sample_store.hpp"
#include "sequence_group.hpp"

namespace linattn {

// Holds scratch memory: one per thread.
class TokenResiduals {
 public:
  TokenResiduals(const Kernels& kernels, const Samples& data);

  // For the sequences of block b and outputs first .. first + outputs, with maps[(a,l)] so that f = maps z:
  //   rows[(a,l)] = sum_t (y_t - f_t)[a] z_t[l]        squares[a] += sum w (y_t - f_t)[a]^2
  // Rows have block.samples columns; l are the chosen queries.
  void residual_maps(std::int64_t b, std::int64_t first, std::int64_t outputs, const double* maps,
                     const PackedSamples& block, double* rows, double* squares);

 private:
  void add_token(const double* z, const double* y, std::int64_t width, std::int64_t outputs);

  const Kernels& kernels_;
  const Samples& data_;
  SequenceGroup tokens_, targets_;
  Buffer maps_, sums_;           // outputs queries x width
  Buffer z_, residual_, error_;  // queries, outputs and outputs x width
};

}  // namespace linattn
