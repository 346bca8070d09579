// Streams in the caller's memory: queries that attend to the first keys of a sequence. Nothing is copied.
//
//   M_t = g_t M_(t-1) + a_t b_t'    with keys b, values a and gates g; a query that has seen n keys attends to M_n
#pragma once

#include <cstdint>
#include <vector>

#include "../common/buffer.hpp"
#include "../common/index.hpp"
#include "../kernels/table.hpp"
#include "tokens.hpp"

namespace linattn {

struct Streams {
  const Tokens& keys;
  const Tokens* values;           // null: the keys, and only the entries j <= k of M count, in the order of pairs
  const double* gates;            // one a key, sequence after sequence; null: 1
  const std::int64_t* sequences;  // of each query, the number of its sequence
  const std::int64_t* seen;       // and how many keys of it the query sees

  bool symmetric() const { return values == nullptr; }
  std::int64_t d_k() const { return keys.width(); }
  std::int64_t d_v() const { return values != nullptr ? values->width() : keys.width(); }
  std::int64_t entries() const { return symmetric() ? pair_count(d_k()) : d_v() * d_k(); }
};

// A few keys of one sequence with their values and gates, as rows of float64 with room for a vector past each.
class KeyBuffer {
 public:
  explicit KeyBuffer(const Streams& streams);

  static constexpr std::int64_t most = 32;

  // Keys first .. first + count of a sequence, at most `most`.
  KeyRows read(std::int64_t sequence, std::int64_t first, std::int64_t count);

 private:
  const Streams& streams_;
  std::int64_t d_k_stride_, d_v_stride_;
  Buffer keys_, values_;
};

// Sums what queries attend to into rows of samples. A query that follows one of its sequence goes on from there, and
// every other begins with the first key, so that bits do not depend on which queries are read together. Holds scratch
// memory: one per thread.
class StreamReader {
 public:
  StreamReader(const Kernels& kernels, const Streams& streams);

  // s (entries() rows of `stride`) = M of queries first .. first + count, one to a column.
  void read(std::int64_t first, std::int64_t count, double* s, std::int64_t stride);

 private:
  double* row(std::int64_t i) { return memories_.data() + i * row_size_; }
  // Makes current_ the row with M of a query; what has to be summed for it goes to row `slot`.
  void advance(std::int64_t query, std::int64_t slot);

  const Kernels& kernels_;
  const Streams& streams_;
  KeyBuffer keys_;
  std::int64_t row_size_;
  Buffer memories_;           // two banks of sample_quantum rows for M, and two rows more on the way there
  std::int64_t bank_ = 0;     // first row of the bank that these queries are written to
  std::int64_t current_ = 0;  // the row with M of the first seen_ keys of sequence_
  std::int64_t sequence_ = -1, seen_ = 0;
  std::vector<Sequence> columns_;
};

// How sums over queries were rounded: roundings of a summand, besides those for each key, and whether one underflowed.
struct SizeSummation {
  std::int64_t roundings;
  bool underflow;
};

// Upper bounds on sum w A[j,k]^2 c[l]^2 over queries c, A the sum of absolute values in the place of M: with
// alpha = sum of gated a_j^2 and beta = sum of gated b_k^2, A^2 <= alpha beta, so that the sum is at most
// sqrt(value_sizes[j][l] key_sizes[k][l]),
//
//   value_sizes (d_v x d_q) = sum w alpha_j^2 c_l^2    key_sizes (d_k x d_q) = sum w beta_k^2 c_l^2
//
// Each sum is zero before.
SizeSummation stream_sizes(const Streams& streams, const Tokens& queries, const double* weights, int threads,
                           double* value_sizes, double* key_sizes);

}  // namespace linattn
