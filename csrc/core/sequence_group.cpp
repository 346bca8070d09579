#include "sequence_group.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "../common/block_sizes.hpp"
#include "../common/index.hpp"
#include "finite.hpp"

namespace linattn {

namespace {

void gather(const Kernels& kernels, Scalar scalar, const std::vector<Sequence>& sequences, std::int64_t count,
            std::int64_t first, std::int64_t last, std::int64_t d, double* out, std::int64_t stride) {
  const auto kernel = scalar == Scalar::float32 ? kernels.gather_float32 : kernels.gather_float64;
  kernel(sequences.data(), count, first, last, d, padded_samples(count), out, stride);
}

}  // namespace

void gather_rows(const Kernels& kernels, Scalar scalar, const std::vector<Sequence>& rows, std::int64_t d, double* out,
                 std::int64_t stride) {
  gather(kernels, scalar, rows, static_cast<std::int64_t>(rows.size()), 0, 1, d, out, stride);
}

void require_finite_rows(const double* rows, std::int64_t stride, std::int64_t count, std::int64_t columns) {
  for (std::int64_t row = 0; row < count; ++row) {
    if (!all_finite(rows + row * stride, columns)) throw NonFinite("tokens are not finite");
  }
}

void require_finite_diagonal(const double* s, std::int64_t stride, std::int64_t d, std::int64_t columns) {
  // Sums of squares: once one is infinite or NaN it stays so.
  for (std::int64_t j = 0; j < d; ++j) require_finite_rows(s + pair_index(j, j, d) * stride, stride, 1, columns);
}

SequenceGroup::SequenceGroup(const Kernels& kernels, const Tokens& tokens, const Tokens* targets,
                             std::vector<RowPair> chosen_pairs)
    : kernels_(kernels),
      tokens_(tokens),
      targets_(targets),
      chosen_pairs_(std::move(chosen_pairs)),
      tokens_at_once_(chunk_tokens(tokens.width(), 0)),
      scratch_(sequence_scratch(tokens.width(), targets != nullptr ? targets->width() : 0)) {}

void SequenceGroup::select(std::int64_t first, std::int64_t count) {
  first_ = first;
  count_ = count;
  const std::int64_t known = std::min(first + count + kernels_.lanes, tokens_.count());
  sequences_.resize(static_cast<std::size_t>(known - first));
  tokens_.copy(first, known, sequences_.data());
  longest_ = 0;
  for (std::int64_t i = 0; i < count; ++i) longest_ = std::max(longest_, (*this)[i].length);
  if (targets_ == nullptr) return;
  target_sequences_.resize(static_cast<std::size_t>(count));
  targets_->copy(first, first + count, target_sequences_.data());
}

SequenceGroup::TokenRows SequenceGroup::tokens_from(std::int64_t t) {
  if (rows_.data() == nullptr) rows_ = Buffer(tokens_at_once_ * tokens_.width() * group_samples);
  const std::int64_t last = std::min(t + tokens_at_once_, longest_);
  gather(kernels_, tokens_.scalar(), sequences_, count_, t, last, tokens_.width(), rows_.data(), width());
  return {rows_.data(), t, last};
}

SequenceColumns SequenceGroup::columns(const Tokens* targets) const {
  const bool with_targets = targets != nullptr;
  return {sequences_.data(),
          with_targets ? target_sequences_.data() : nullptr,
          tokens_.scalar(),
          with_targets ? targets->scalar() : tokens_.scalar(),
          count_,
          tokens_.width(),
          with_targets ? targets->width() : 0,
          static_cast<std::int64_t>(sequences_.size()),
          chosen_pairs_.empty() ? nullptr : chosen_pairs_.data(),
          static_cast<std::int64_t>(chosen_pairs_.size())};
}

void SequenceGroup::second_moments(double* s, std::int64_t stride) {
  kernels_.sequence_moments(columns(nullptr), width(), scratch_.data(), s, nullptr, nullptr, stride);
  require_finite(s, stride);
}

void SequenceGroup::moments_with_targets(double* s, double* maps, double* energy, std::int64_t stride) {
  kernels_.sequence_moments(columns(targets_), width(), scratch_.data(), s, maps, energy, stride);
  require_finite(s, stride);
}

void SequenceGroup::require_finite(const double* s, std::int64_t stride) const {
  const auto chosen = static_cast<std::int64_t>(chosen_pairs_.size());
  if (chosen > 0) return require_finite_rows(s, stride, chosen + 1, count());
  require_finite_diagonal(s, stride, tokens_.width(), count());
}

void SequenceGroup::last_tokens(double* z, std::int64_t stride) {
  last_rows_.resize(static_cast<std::size_t>(count_));
  for (std::int64_t i = 0; i < count_; ++i) {
    last_rows_[static_cast<std::size_t>(i)] = tokens_.row((*this)[i], (*this)[i].length - 1);
  }
  gather_rows(kernels_, tokens_.scalar(), last_rows_, tokens_.width(), z, stride);
}

}  // namespace linattn
