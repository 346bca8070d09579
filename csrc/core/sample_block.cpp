#include "sample_block.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "../kernels/block_sizes.hpp"
#include "index.hpp"

namespace linattn {

namespace {

std::int64_t padded(std::int64_t count) { return (count + sample_quantum - 1) / sample_quantum * sample_quantum; }

void gather(const Kernels& kernels, Scalar scalar, const std::vector<Sequence>& sequences, std::int64_t first,
            std::int64_t last, std::int64_t d, std::int64_t width, double* out, std::int64_t stride) {
  const auto kernel = scalar == Scalar::float32 ? kernels.gather_float32 : kernels.gather_float64;
  kernel(sequences.data(), static_cast<std::int64_t>(sequences.size()), first, last, d, width, out, stride);
}

}  // namespace

void gather_single_rows(const Kernels& kernels, Scalar scalar, const std::vector<Sequence>& rows, std::int64_t d,
                        std::int64_t width, double* out, std::int64_t stride) {
  gather(kernels, scalar, rows, 0, 1, d, width, out, stride);
}

void require_finite_diagonal(const double* s, std::int64_t stride, std::int64_t d, std::int64_t width,
                             std::int64_t first_sequence) {
  for (std::int64_t j = 0; j < d; ++j) {
    const double* row = s + pair_index(j, j, d) * stride;
    for (std::int64_t lane = 0; lane < width; ++lane) {
      // A sum of squares: once it is infinite or NaN it stays so.
      if (!std::isfinite(row[lane])) {
        throw NonFinite("sequence " + std::to_string(first_sequence + lane) + " is not finite");
      }
    }
  }
}

// ---------------------------------------------------------------------------------------------- SequenceGroup

SequenceGroup::SequenceGroup(const Kernels& kernels, const TokenBatch& tokens)
    : kernels_(kernels),
      tokens_(tokens),
      tokens_at_once_(std::max<std::int64_t>(1, group_tokens / (tokens.width() * group_samples))),
      rows_(tokens_at_once_ * tokens.width() * group_samples) {
  sequences_.reserve(group_samples);
}

void SequenceGroup::select(std::int64_t first, std::int64_t count, std::int64_t width) {
  first_ = first;
  width_ = width;
  longest_ = 0;
  sequences_.clear();
  for (std::int64_t i = first; i < first + count; ++i) {
    sequences_.push_back(tokens_[i]);
    longest_ = std::max(longest_, sequences_.back().length);
  }
}

void SequenceGroup::second_moments(double* s, std::int64_t stride) {
  const std::int64_t d = tokens_.width();
  for (std::int64_t pair = 0; pair < pair_count(d); ++pair) std::fill_n(s + pair * stride, width_, 0.0);
  for (std::int64_t t = 0; t < longest_; t += tokens_at_once_) {
    const std::int64_t last = std::min(t + tokens_at_once_, longest_);
    gather(kernels_, tokens_.scalar(), sequences_, t, last, d, width_, rows_.data(), width_);
    kernels_.second_moment(rows_.data(), last - t, d, width_, s, stride);
  }
  require_finite_diagonal(s, stride, d, count(), first_);
}

void SequenceGroup::last_tokens(double* z, std::int64_t stride) {
  std::vector<Sequence> rows;
  rows.reserve(group_samples);
  for (const Sequence& sequence : sequences_) rows.push_back(tokens_.row(sequence, sequence.length - 1));
  gather_single_rows(kernels_, tokens_.scalar(), rows, tokens_.width(), width_, z, stride);
}

void SequenceGroup::tokens_at(std::int64_t t, double* z) {
  gather(kernels_, tokens_.scalar(), sequences_, t, t + 1, tokens_.width(), width_, z, width_);
}

// ------------------------------------------------------------------------------------------------ SampleBlock

SampleBlock::SampleBlock(std::int64_t d, std::int64_t d_out)
    : s(pair_count(d) * block_samples),
      z(d * block_samples),
      weighted_z(d * block_samples),
      y(d_out * block_samples),
      weighted_y(d_out * block_samples),
      query_columns(pair_count(d) * block_samples),
      pair_columns(pair_count(d) * block_samples),
      energy(static_cast<std::size_t>(d_out)) {}

BlockFiller::BlockFiller(const Kernels& kernels, const TokenBatch& tokens, const TokenBatch* targets,
                         const double* weights)
    : kernels_(kernels), tokens_(tokens), targets_(targets), weights_(weights), group_(kernels, tokens) {
  const std::int64_t d = tokens.width();
  query_pairs_.reserve(static_cast<std::size_t>(pair_count(d)));
  for (Pair pair{0, 0}; pair.j < d; pair = next_pair(pair, d)) {
    query_pairs_.push_back({static_cast<std::int32_t>(pair.j), static_cast<std::int32_t>(pair.k)});
  }
  target_rows_.reserve(group_samples);
}

void BlockFiller::fill(SampleBlock& block, std::int64_t first, std::int64_t count) {
  block.samples = padded(count);
  for (std::int64_t column = 0; column < count; column += group_samples) {
    const std::int64_t in_group = std::min(group_samples, count - column);
    const std::int64_t width = padded(in_group);
    group_.select(first + column, in_group, width);
    group_.second_moments(block.s.data() + column, block_samples);
    group_.last_tokens(block.z.data() + column, block_samples);
    if (targets_ != nullptr) {
      target_rows_.clear();
      for (std::int64_t i = 0; i < in_group; ++i) target_rows_.push_back((*targets_)[first + column + i]);
      gather_single_rows(kernels_, targets_->scalar(), target_rows_, targets_->width(), width,
                         block.y.data() + column, block_samples);
    }
  }
  weigh(block, first, count);
  pack(block);
}

// weighted = w x (columns without a sample are zero already), energy = sum w y^2.
void BlockFiller::weigh(SampleBlock& block, std::int64_t first, std::int64_t count) const {
  const auto scale = [&](const double* row, double* weighted) {
    std::copy_n(row, block.samples, weighted);
    if (weights_ == nullptr) return;
    for (std::int64_t i = 0; i < count; ++i) weighted[i] *= weights_[first + i];
  };
  for (std::int64_t l = 0; l < tokens_.width(); ++l) {
    scale(block.z.data() + l * block_samples, block.weighted_z.data() + l * block_samples);
  }
  for (std::size_t a = 0; a < block.energy.size(); ++a) {
    const double* y = block.y.data() + static_cast<std::int64_t>(a) * block_samples;
    double* weighted = block.weighted_y.data() + static_cast<std::int64_t>(a) * block_samples;
    scale(y, weighted);
    double energy = 0.0;
    for (std::int64_t i = 0; i < count; ++i) energy += weighted[i] * y[i];
    block.energy[a] = energy;
  }
}

void BlockFiller::pack(SampleBlock& block) const {
  const std::int64_t pairs = pair_count(tokens_.width());
  kernels_.pack_products(block.weighted_z.data(), block.z.data(), block_samples, query_pairs_.data(), pairs,
                         kernels_.tile_columns, block.samples, block.query_columns.data());
  if (targets_ != nullptr) {
    kernels_.pack_rows(block.s.data(), block_samples, pairs, kernels_.tile_columns, block.samples,
                       block.pair_columns.data());
  }
}

}  // namespace linattn
