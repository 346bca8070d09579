// Sequences side by side, one to a column: their tokens and second moments as rows of samples.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "../common/buffer.hpp"
#include "../kernels/table.hpp"
#include "tokens.hpp"

namespace linattn {

// A sequence whose tokens hold NaN or infinity, or whose second moment overflows.
struct NonFinite : std::domain_error {
  using std::domain_error::domain_error;
};

// Throws NonFinite unless `count` rows are finite in their first `columns` columns.
void require_finite_rows(const double* rows, std::int64_t stride, std::int64_t count, std::int64_t columns);

// Throws NonFinite unless the first `columns` columns of the diagonal of S, and with them every token, are finite.
void require_finite_diagonal(const double* s, std::int64_t stride, std::int64_t d, std::int64_t columns);

// out[j][i] = coordinate j of rows[i], each a sequence of length one; `out` has rows of `stride`.
void gather_rows(const Kernels& kernels, Scalar scalar, const std::vector<Sequence>& rows, std::int64_t d, double* out,
                 std::int64_t stride);

// Some of the sequences. Holds scratch memory: one per thread.
class SequenceGroup {
 public:
  // Targets, if any, have a row for every token. With chosen pairs, s below has a row for each and one more.
  SequenceGroup(const Kernels& kernels, const Tokens& tokens, const Tokens* targets = nullptr,
                std::vector<RowPair> chosen_pairs = {});

  // Takes sequences first .. first + count.
  void select(std::int64_t first, std::int64_t count);

  // s (q rows of `stride`) = S of each sequence. Throws NonFinite.
  void second_moments(double* s, std::int64_t stride);

  // The same, and with the targets y_t of a sequence: maps (d_out d rows) = sum_t y_t z_t', energy (d_out rows) =
  // sum_t y_t^2.
  void moments_with_targets(double* s, double* maps, double* energy, std::int64_t stride);

  // z (d rows of `stride`) = the last token of each sequence.
  void last_tokens(double* z, std::int64_t stride);

  // For at most group_samples sequences: token t, t + 1, .. of each, d rows of width() each, as many as are held at
  // once; valid until the next call. Zero past the end of a sequence.
  struct TokenRows {
    const double* rows;
    std::int64_t first, last;
  };
  TokenRows tokens_from(std::int64_t t);

  std::int64_t first() const { return first_; }
  std::int64_t width() const { return padded_samples(count()); }
  std::int64_t count() const { return count_; }
  std::int64_t longest() const { return longest_; }
  const Sequence& operator[](std::int64_t column) const { return sequences_[static_cast<std::size_t>(column)]; }

 private:
  SequenceColumns columns(const Tokens* targets) const;
  void require_finite(const double* s, std::int64_t stride) const;

  const Kernels& kernels_;
  const Tokens& tokens_;
  const Tokens* targets_;
  std::vector<RowPair> chosen_pairs_;
  std::int64_t tokens_at_once_, first_ = 0, count_ = 0, longest_ = 0;
  std::vector<Sequence> sequences_;  // those selected, then a vector of those that come next
  std::vector<Sequence> target_sequences_, last_rows_;
  Buffer scratch_, rows_;
};

}  // namespace linattn
