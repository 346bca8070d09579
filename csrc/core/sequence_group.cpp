#include "sequence_group.hpp"

#include <algorithm>
#include <cmath>

#include "../kernels/block_sizes.hpp"
#include "index.hpp"

namespace linattn {

namespace {

void gather(const Kernels& kernels, Scalar scalar, const std::vector<Sequence>& sequences, std::int64_t first,
            std::int64_t last, std::int64_t d, double* out, std::int64_t stride) {
  const auto kernel = scalar == Scalar::float32 ? kernels.gather_float32 : kernels.gather_float64;
  const auto count = static_cast<std::int64_t>(sequences.size());
  kernel(sequences.data(), count, first, last, d, padded(count), out, stride);
}

void clear_rows(double* rows, std::int64_t count, std::int64_t stride, std::int64_t width) {
  for (std::int64_t i = 0; i < count; ++i) std::fill_n(rows + i * stride, width, 0.0);
}

}  // namespace

void gather_rows(const Kernels& kernels, Scalar scalar, const std::vector<Sequence>& rows, std::int64_t d,
                 double* out, std::int64_t stride) {
  gather(kernels, scalar, rows, 0, 1, d, out, stride);
}

void require_finite_diagonal(const double* s, std::int64_t stride, std::int64_t d, std::int64_t column) {
  for (std::int64_t j = 0; j < d; ++j) {
    // A sum of squares: once it is infinite or NaN it stays so.
    if (!std::isfinite(s[pair_index(j, j, d) * stride + column])) throw NonFinite("tokens are not finite");
  }
}

SequenceGroup::SequenceGroup(const Kernels& kernels, const TokenBatch& tokens, const TokenBatch* targets)
    : kernels_(kernels),
      tokens_(tokens),
      targets_(targets),
      tokens_at_once_(std::max<std::int64_t>(1, group_tokens / (tokens.width() * group_samples))),
      rows_(tokens_at_once_ * tokens.width() * group_samples),
      target_rows_(targets != nullptr ? tokens_at_once_ * targets->width() * group_samples : 0) {}

void SequenceGroup::select(std::int64_t first, std::int64_t count) {
  first_ = first;
  longest_ = 0;
  sequences_.clear();
  target_sequences_.clear();
  for (std::int64_t i = first; i < first + count; ++i) {
    sequences_.push_back(tokens_[i]);
    if (targets_ != nullptr) target_sequences_.push_back((*targets_)[i]);
    longest_ = std::max(longest_, sequences_.back().length);
  }
}

SequenceGroup::Tokens SequenceGroup::tokens_from(std::int64_t t) {
  const std::int64_t last = std::min(t + tokens_at_once_, longest_);
  gather(kernels_, tokens_.scalar(), sequences_, t, last, tokens_.width(), rows_.data(), width());
  return {rows_.data(), t, last};
}

void SequenceGroup::second_moments(double* s, std::int64_t stride) {
  const std::int64_t d = tokens_.width();
  clear_rows(s, pair_count(d), stride, width());
  for (std::int64_t t = 0; t < longest_; t += tokens_at_once_) {
    const Tokens held = tokens_from(t);
    kernels_.second_moment(held.rows, held.last - held.first, d, width(), s, stride);
  }
  for (std::int64_t i = 0; i < count(); ++i) require_finite_diagonal(s, stride, d, i);
}

void SequenceGroup::moments_with_targets(double* s, double* maps, double* energy, std::int64_t stride) {
  const std::int64_t d = tokens_.width(), d_out = targets_->width();
  clear_rows(s, pair_count(d), stride, width());
  clear_rows(maps, d_out * d, stride, width());
  clear_rows(energy, d_out, stride, width());
  for (std::int64_t t = 0; t < longest_; t += tokens_at_once_) {
    const Tokens held = tokens_from(t);
    const std::int64_t length = held.last - held.first;
    gather(kernels_, targets_->scalar(), target_sequences_, held.first, held.last, d_out, target_rows_.data(), width());
    kernels_.second_moment(held.rows, length, d, width(), s, stride);
    kernels_.cross_moment(target_rows_.data(), held.rows, length, d_out, d, width(), maps, stride);
    for (std::int64_t row = 0; row < length * d_out; ++row) {
      const double* y = target_rows_.data() + row * width();
      double* total = energy + row % d_out * stride;
      for (std::int64_t i = 0; i < width(); ++i) total[i] += y[i] * y[i];
    }
  }
  for (std::int64_t i = 0; i < count(); ++i) require_finite_diagonal(s, stride, d, i);
}

void SequenceGroup::last_tokens(double* z, std::int64_t stride) {
  last_rows_.clear();
  for (const Sequence& sequence : sequences_) last_rows_.push_back(tokens_.row(sequence, sequence.length - 1));
  gather_rows(kernels_, tokens_.scalar(), last_rows_, tokens_.width(), z, stride);
}

}  // namespace linattn
