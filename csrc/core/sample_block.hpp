// Blocks of samples in the form the matrix product wants: one row per quantity, one column per sample.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "buffer.hpp"
#include "kernels.hpp"
#include "tokens.hpp"

namespace linattn {

// A sequence whose tokens hold NaN or infinity, or whose second moment overflows.
struct NonFinite : std::domain_error {
  using std::domain_error::domain_error;
};

// Turns up to group_samples sequences at a time into rows of samples. Holds scratch memory: one per thread.
class SequenceGroup {
 public:
  SequenceGroup(const Kernels& kernels, const TokenBatch& tokens);

  // Takes sequences first .. first + count; the others of `width` columns are empty.
  void select(std::int64_t first, std::int64_t count, std::int64_t width);

  // s (q rows of `stride`) = S of each sequence. Throws NonFinite.
  void second_moments(double* s, std::int64_t stride);

  // z (d rows of `stride`) = the last token of each sequence.
  void last_tokens(double* z, std::int64_t stride);

  // z (d rows of width) = token t of each sequence, zero past its end.
  void tokens_at(std::int64_t t, double* z);

  std::int64_t width() const { return width_; }
  std::int64_t count() const { return static_cast<std::int64_t>(sequences_.size()); }
  std::int64_t longest() const { return longest_; }
  const Sequence& operator[](std::int64_t lane) const { return sequences_[static_cast<std::size_t>(lane)]; }

 private:
  const Kernels& kernels_;
  const TokenBatch& tokens_;
  std::int64_t tokens_at_once_, width_ = 0, longest_ = 0, first_ = 0;
  std::vector<Sequence> sequences_;
  Buffer rows_;
};

// Throws NonFinite unless the diagonal of every S, and with it every token, is finite.
void require_finite_diagonal(const double* s, std::int64_t stride, std::int64_t d, std::int64_t width,
                             std::int64_t first_sequence);

// rows[j][lane] = coordinate j of the only row of each sequence.
void gather_single_rows(const Kernels& kernels, Scalar scalar, const std::vector<Sequence>& rows, std::int64_t d,
                        std::int64_t width, double* out, std::int64_t stride);

// One weighted sample per column, and its packed forms. With w the weight, s the pairs of S, z the last token:
struct SampleBlock {
  SampleBlock(std::int64_t d, std::int64_t d_out);

  std::int64_t samples = 0;        // columns in use, a multiple of sample_quantum
  Buffer s;                        // q x block_samples
  Buffer z, weighted_z;            // d x block_samples: z and w z
  Buffer y, weighted_y;            // d_out x block_samples: y and w y
  Buffer query_columns;            // packed w z_l z_m, l <= m: the right factor of the Gram
  Buffer pair_columns;             // packed s: the right factor of the cross moment
  std::vector<double> energy;      // d_out: sum of w y^2 over the block
};

// Fills blocks from tokens and targets; positions = last. Targets may be absent (d_out = 0), and so may weights.
class BlockFiller {
 public:
  BlockFiller(const Kernels& kernels, const TokenBatch& tokens, const TokenBatch* targets, const double* weights);

  // block <- sequences first .. first + count, count <= block_samples.
  void fill(SampleBlock& block, std::int64_t first, std::int64_t count);

 private:
  void pack(SampleBlock& block) const;
  void weigh(SampleBlock& block, std::int64_t first, std::int64_t count) const;

  const Kernels& kernels_;
  const TokenBatch& tokens_;
  const TokenBatch* targets_;
  const double* weights_;
  SequenceGroup group_;
  std::vector<RowPair> query_pairs_;
  std::vector<Sequence> target_rows_;
};

}  // namespace linattn
