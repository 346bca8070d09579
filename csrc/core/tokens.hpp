// Sequences of tokens that the caller owns: dense (N, n, d), flat rows with offsets, or a list of arrays.
// Nothing is copied; targets have the same forms as tokens and use the same type.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "../common/sequence.hpp"

namespace linattn {

class Tokens {
 public:
  // N sequences of n rows each, sequence_stride elements apart.
  static Tokens dense(Sequence first, Scalar scalar, std::int64_t count, std::int64_t width,
                      std::int64_t sequence_stride) {
    Tokens tokens(scalar, count, width);
    tokens.first_ = first;
    tokens.sequence_stride_ = sequence_stride;
    return tokens;
  }

  // Sequence i is rows offsets[i] .. offsets[i + 1] of one array; offsets (count + 1) stay with the caller.
  static Tokens flat(Sequence rows, Scalar scalar, const std::int64_t* offsets, std::int64_t count,
                     std::int64_t width) {
    Tokens tokens(scalar, count, width);
    tokens.first_ = rows;
    tokens.offsets_ = offsets;
    return tokens;
  }

  static Tokens list(std::vector<Sequence> sequences, Scalar scalar, std::int64_t width) {
    Tokens tokens(scalar, static_cast<std::int64_t>(sequences.size()), width);
    tokens.row_starts_.reserve(sequences.size() + 1);
    tokens.row_starts_.push_back(0);
    for (const Sequence& sequence : sequences) {
      tokens.row_starts_.push_back(tokens.row_starts_.back() + sequence.length);
    }
    tokens.sequences_ = std::move(sequences);
    return tokens;
  }

  std::int64_t count() const { return count_; }
  std::int64_t width() const { return width_; }
  Scalar scalar() const { return scalar_; }

  // All of one length, known without a look at each.
  bool is_dense() const { return sequences_.empty() && offsets_ == nullptr; }

  Sequence operator[](std::int64_t i) const {
    if (!sequences_.empty()) return sequences_[static_cast<std::size_t>(i)];
    if (offsets_ != nullptr) {
      return {advance(offsets_[i] * first_.row_stride), offsets_[i + 1] - offsets_[i], first_.row_stride,
              first_.column_stride};
    }
    return {advance(i * sequence_stride_), first_.length, first_.row_stride, first_.column_stride};
  }

  // Sequences first .. last, one after the other.
  void copy(std::int64_t first, std::int64_t last, Sequence* out) const {
    if (is_dense()) {  // most are, and short sequences many
      for (std::int64_t i = first; i < last; ++i) {
        *out++ = {advance(i * sequence_stride_), first_.length, first_.row_stride, first_.column_stride};
      }
    } else {
      for (std::int64_t i = first; i < last; ++i) *out++ = (*this)[i];
    }
  }

  // Row of sequence i's first token when all sequences are laid end to end.
  std::int64_t row_start(std::int64_t i) const {
    if (!sequences_.empty()) return row_starts_[static_cast<std::size_t>(i)];
    return offsets_ != nullptr ? offsets_[i] : i * first_.length;
  }

  std::int64_t rows() const { return row_start(count_); }

  // The sequence that holds a row.
  std::int64_t sequence_of(std::int64_t row) const {
    if (is_dense()) return row / first_.length;
    const std::int64_t* starts = sequences_.empty() ? offsets_ : row_starts_.data();
    return std::upper_bound(starts, starts + count_ + 1, row) - starts - 1;
  }

  // A sequence of the same rows without their first j coordinates.
  Sequence column(const Sequence& sequence, std::int64_t j) const {
    return {advance(sequence.data, j * sequence.column_stride), sequence.length, sequence.row_stride,
            sequence.column_stride};
  }

  // The single row t of a sequence, as a sequence of length one.
  Sequence row(const Sequence& sequence, std::int64_t t) const {
    return {advance(sequence.data, t * sequence.row_stride), 1, sequence.row_stride, sequence.column_stride};
  }

 private:
  Tokens(Scalar scalar, std::int64_t count, std::int64_t width) : scalar_(scalar), count_(count), width_(width) {}

  const void* advance(const void* data, std::int64_t elements) const {
    const std::int64_t size = scalar_ == Scalar::float32 ? 4 : 8;
    return static_cast<const char*>(data) + elements * size;
  }
  const void* advance(std::int64_t elements) const { return advance(first_.data, elements); }

  Scalar scalar_;
  std::int64_t count_, width_;
  Sequence first_{};
  std::int64_t sequence_stride_ = 0;
  const std::int64_t* offsets_ = nullptr;
  std::vector<Sequence> sequences_;
  std::vector<std::int64_t> row_starts_;
};

}  // namespace linattn
