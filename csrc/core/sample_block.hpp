// Blocks of samples in the form the matrix product wants: one row per quantity, one column per sample.
//
//   last, causal   a sample is a query z with its S and target y: gram = sum w (s s') (x) (z z'), cross = sum w y z s
//   all            a sample is a sequence; the sum over its queries of z z' is S itself, so with the map
//                  M = sum_t y_t z_t':  gram = third moment sum w s s s,  cross = sum w M s
#pragma once

#include <cstdint>
#include <vector>

#include "../common/block_sizes.hpp"
#include "../common/buffer.hpp"
#include "../common/index.hpp"
#include "../common/kernels.hpp"
#include "../common/positions.hpp"
#include "sequence_group.hpp"
#include "tokens.hpp"

namespace linattn {

enum class Precision { float64, mixed };

// Features that take part: numbers of pairs and of query coordinates, both ascending.
struct Selection {
  std::vector<std::int64_t> pairs, queries;
  // Pairs of S that are formed, ascending: those above, for all positions those of two queries, and for sizes of
  // summands the squares (j, j) of their coordinates. Empty: S as a whole.
  std::vector<std::int64_t> formed;

  // Where few are needed, forms only those: the tiles that form S as a whole are up to three times as fast a pair.
  void form_few(std::int64_t d, Positions positions, bool with_squares);
};

// What the moments are taken of. Targets may be absent (d_out = 0), and so may weights (one a sequence) and a selection
// (all features).
struct Data {
  const TokenBatch& tokens;
  const TokenBatch* targets;
  const double* weights;
  Positions positions;
  const Selection* selection = nullptr;

  std::int64_t d() const { return tokens.width(); }
  std::int64_t d_out() const { return targets != nullptr ? targets->width() : 0; }
  std::int64_t pairs() const {
    return selection != nullptr ? static_cast<std::int64_t>(selection->pairs.size()) : pair_count(d());
  }
  std::int64_t queries() const {
    return selection != nullptr ? static_cast<std::int64_t>(selection->queries.size()) : d();
  }
  bool forms_few() const { return selection != nullptr && !selection->formed.empty(); }
  // Rows of s.
  std::int64_t formed_pairs() const {
    return forms_few() ? static_cast<std::int64_t>(selection->formed.size()) : pair_count(d());
  }
  // The row of s that holds a pair.
  std::int64_t row_of(std::int64_t pair) const;
  // The Gram is the third moment of s, symmetric in all three.
  bool triples() const { return positions == Positions::all && selection == nullptr; }
  std::int64_t samples() const { return positions == Positions::causal ? tokens.rows() : tokens.count(); }
};

// The power of two that brings numbers below 2^exponent to at most one, for float32, and its inverse. Where they are
// too large or too small for it, it is the nearest that is a number.
double shrinking(int exponent);
double scale_of(int exponent);

struct SampleBlock {
  // Without `products`, only what complete() leaves: the rows of the samples themselves.
  SampleBlock(const Data& data, Precision precision, bool products = true);

  // Left rows of the Gram's products, and of the cross moment (all).
  const double* left() const { return (selected ? chosen_s : s).data(); }
  const double* left_weighted() const { return (selected ? chosen_weighted_s : weighted_s).data(); }
  const double* left_targets() const { return (selected ? chosen_targets : targets).data(); }

  bool selected;
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
  BlockFiller(const Kernels& kernels, const Data& data, Precision precision);

  std::int64_t blocks() const;
  std::int64_t block_size(std::int64_t b) const;

  // Everything but S of a sequence that began in an earlier block, and what depends on it.
  void fill(SampleBlock& block, std::int64_t b);

  // carry (formed_pairs()): S of that sequence at the end of the block before; null where there is none. The samples
  // are whole then, left() included. Throws NonFinite.
  void complete(SampleBlock& block, const double* carry);

  // The same, and packs the factors of the Gram and of the cross moment.
  void finish(SampleBlock& block, const double* carry);

  // Rows of s that hold the pairs (l, m), l <= m, of chosen queries.
  const std::vector<std::int64_t>& query_rows() const { return column_rows_; }

  // carry for block b, computed from the tokens before it; false when block b starts with a sequence.
  bool carry_into(std::int64_t b, double* carry) const;

 private:
  void fill_last(SampleBlock& block, std::int64_t first, std::int64_t count);
  void fill_all(SampleBlock& block, std::int64_t first, std::int64_t count);
  void fill_causal(SampleBlock& block, std::int64_t first, std::int64_t count);
  void weigh(SampleBlock& block);
  void choose_weighted(SampleBlock& block);
  void pack(SampleBlock& block);
  void pack_narrow(SampleBlock& block);

  const Kernels& kernels_;
  const Data& data_;
  Precision precision_;
  SequenceGroup group_;
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
