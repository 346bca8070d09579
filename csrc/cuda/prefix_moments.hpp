// S of the prefix that ends with each row (positions "causal").
//
// Rows are cut into spans. Each span is summed from its last sequence start on, the sums are carried from span to span,
// and a second walk over each span writes the running sum of every row: three kernels, all parallel over spans or
// pairs.
#pragma once

#include "tokens.hpp"

namespace linattn::cuda {

constexpr std::int64_t span_rows = 32;  // tokens of a span

// Doubles of scratch memory for `rows` rows.
inline std::int64_t prefix_scratch(std::int64_t rows, std::int64_t pairs) {
  const std::int64_t spans = (rows + span_rows - 1) / span_rows;
  return spans * (pairs + 1);
}

// s[i, u] = sum over the tokens z of row first + i's sequence, up to that row, of z_j z_k      s: rows x pairs.count
//
// carry (pairs.count) has the sum of the sequence that row first continues, from the call for the rows before it, and
// is left for the call after; it is not read where first = 0.
void prefix_moments(const Tokens& tokens, const PairList& pairs, std::int64_t first, std::int64_t rows, double* carry,
                    double* scratch, double* s, cudaStream_t stream);

}  // namespace linattn::cuda
