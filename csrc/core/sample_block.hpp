// Blocks of samples in the form the matrix product wants: one row per quantity, one column per sample.
//
//   last, causal   a sample is a query z with its S and target y: gram = sum w (s s') (x) (z z'), cross = sum w y z s
//   states         the same, with the memory that is given in the place of S
//   streams        the same, with the memory that is summed from keys and values
//   all            a sample is a sequence; the sum over its queries of z z' is S itself, so with the map
//                  M = sum_t y_t z_t':  gram = third moment sum w s s s,  cross = sum w M s
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "../common/block_sizes.hpp"
#include "../common/buffer.hpp"
#include "../kernels/table.hpp"
#include "samples.hpp"
#include "sequence_group.hpp"

namespace linattn {

enum class Precision { float64, mixed };

// The power of two that brings numbers below 2^exponent to at most one, for float32, and its inverse. Where they are
// too large or too small for it, it is the nearest that is a number.
double shrinking(int exponent);
double scale_of(int exponent);

// In which form a block has the factors of the Gram and of the cross moment: not at all (only what complete() leaves,
// the rows of the samples themselves), packed, or as rows.
enum class Factors { none, packed, rows };

struct SampleBlock {
  SampleBlock(const Samples& data, Precision precision, Factors factors = Factors::packed);

  // Left rows of the Gram's products, and of the cross moment (all).
  const double* left() const { return (selected ? chosen_s : s).data(); }
  const double* left_weighted() const { return (selected ? chosen_weighted_s : weighted_s).data(); }
  const double* left_targets() const { return (selected ? chosen_targets : targets).data(); }

  bool selected;
  Factors factors;
  std::int64_t samples = 0;  // columns in use, a multiple of sample_quantum
  Buffer s;                  // formed_pairs() rows of block_stride, and one more (forms_few)
  Buffer weights;            // one row: w, zero in columns without a sample
  Buffer z, weighted_z;      // d rows (last, causal)
  Buffer y;                  // d_out rows: y, or sum_t y_t^2 (all)
  Buffer targets;            // left rows of the cross moment: w y (d_out rows), or M (all, d_out d rows)
  Buffer weighted_s;         // q rows (all)
  // Rows of a selection.
  Buffer chosen_s, chosen_weighted_s, chosen_queries, chosen_targets;
  Buffer left_groups;    // left rows once more, in groups (last, causal)
  Buffer query_columns;  // packed w z_l z_m, l <= m, or w s_lm (all): right factor of the Gram
  Buffer query_rows;     // the same as rows (Factors::rows)
  Buffer pair_columns;   // packed s, or w s (all): right factor of the cross moment, and of triples
  Buffer size_columns;   // packed w z_l^2, or w s_ll (all), of chosen queries: right factor of the sizes of summands
  std::vector<double> energy;  // d_out: sum of w y^2 over the block

  // Mixed precision: the right factor of the Gram in float32, and what keeps both factors within its range.
  FloatBuffer narrow_columns;
  std::vector<double> column_scale;  // of narrow_columns
  std::vector<int> left_exponents;   // entries of left row i are below 2^left_exponents[i]

  // Causal: does the first column continue a sequence of the block before, and where does that sequence end here?
  bool continues = false;
  std::int64_t first_end = 0;
  std::vector<std::int64_t> sequence_ends;  // columns after the last one of each sequence
};

// Fills blocks; block b holds samples b * block_samples and on. Holds scratch memory: one per thread.
class BlockFiller {
 public:
  BlockFiller(const Kernels& kernels, const Samples& data, Precision precision);

  std::int64_t blocks() const;
  std::int64_t block_size(std::int64_t b) const;

  // Everything but S of a sequence that began in an earlier block, and what depends on it.
  void fill(SampleBlock& block, std::int64_t b);

  // carry (formed_pairs()): S of that sequence at the end of the block before; null where there is none. The samples
  // are whole then, left() included. Throws NonFinite.
  void complete(SampleBlock& block, const double* carry);

  // The same, and makes the factors of the Gram and of the cross moment.
  void finish(SampleBlock& block, const double* carry);

  // Rows of s that hold the pairs (l, m), l <= m, of chosen queries.
  const std::vector<std::int64_t>& query_rows() const { return column_rows_; }

  // carry for block b, computed from the tokens before it; false when block b starts with a sequence.
  bool carry_into(std::int64_t b, double* carry) const;

 private:
  void fill_last(SampleBlock& block, std::int64_t first, std::int64_t count);
  void fill_all(SampleBlock& block, std::int64_t first, std::int64_t count);
  void fill_causal(SampleBlock& block, std::int64_t first, std::int64_t count);
  // Of sequences first .. first + count.
  void weights_of(std::int64_t first, std::int64_t count, double* weights) const;
  void weigh(SampleBlock& block);
  void choose_weighted(SampleBlock& block);
  void multiply_queries(SampleBlock& block);
  void pack(SampleBlock& block);
  void pack_narrow(SampleBlock& block);

  const Kernels& kernels_;
  const Samples& data_;
  Precision precision_;
  SequenceGroup group_;
  std::optional<StateReader> states_;
  std::optional<StreamReader> streams_;
  std::vector<RowPair> formed_;            // coordinates of the pairs that are formed (forms_few)
  std::vector<RowPair> query_pairs_;       // of z: (l, m), l <= m, both chosen
  std::vector<RowPair> square_pairs_;      // of z: (l, l), chosen; or of the weights and s (all)
  std::vector<std::int64_t> pair_rows_;    // of s: the chosen pairs
  std::vector<std::int64_t> column_rows_;  // of s: the pairs of query_pairs_ (all)
  std::vector<Sequence> token_rows_, target_rows_;
};

// What block b + 1 must add to the S of its first sequence, from block b (filled, of `size` samples) and what was
// carried into that: the last column, which is whole only once the carry has been added.
void carry_over(const SampleBlock& block, std::int64_t size, std::int64_t pairs, const double* carried, double* next);

}  // namespace linattn
