#include "token_residuals.hpp"

#include <algorithm>

#include "../common/block_sizes.hpp"

namespace linattn {

TokenResiduals::TokenResiduals(const Kernels& kernels, const Samples& data)
    : kernels_(kernels),
      data_(data),
      tokens_(kernels, data.tokens),
      targets_(kernels, *data.targets),
      maps_(data.d_out() * data.queries() * group_samples),
      sums_(data.d_out() * data.queries() * group_samples),
      z_(data.queries() * group_samples),
      residual_(data.d_out() * group_samples),
      error_(data.d_out() * group_samples) {}

void TokenResiduals::residual_maps(std::int64_t b, std::int64_t first, std::int64_t outputs, const double* maps,
                                   const PackedSamples& block, double* rows, double* squares) {
  const std::int64_t begin = b * block_samples, queries = data_.queries(), row_count = outputs * queries;
  const std::int64_t sequences = std::min(block_samples, data_.tokens.count() - begin);
  for (std::int64_t column = 0; column < sequences; column += group_samples) {
    const std::int64_t count = std::min(group_samples, sequences - column);
    tokens_.select(begin + column, count);
    targets_.select(begin + column, count);
    const std::int64_t width = tokens_.width();
    for (std::int64_t row = 0; row < row_count; ++row) {
      std::copy_n(maps + row * block.samples + column, width, maps_.data() + row * width);
    }
    std::fill_n(sums_.data(), row_count * width, 0.0);
    std::fill_n(error_.data(), outputs * width, 0.0);
    for (std::int64_t t = 0; t < tokens_.longest();) {
      const SequenceGroup::TokenRows z = tokens_.tokens_from(t), y = targets_.tokens_from(t);
      for (const std::int64_t start = t; t < std::min(z.last, y.last); ++t) {
        add_token(z.rows + (t - start) * data_.d() * width, y.rows + ((t - start) * data_.d_out() + first) * width,
                  width, outputs);
      }
    }
    for (std::int64_t row = 0; row < row_count; ++row) {
      std::copy_n(sums_.data() + row * width, width, rows + row * block.samples + column);
    }
    for (std::int64_t i = 0; i < outputs * width; ++i) {
      squares[i / width] += block.weights.data()[column + i % width] * error_.data()[i];
    }
  }
}

// One token of every sequence of the group; past the end of a sequence z and y are zero and add nothing.
void TokenResiduals::add_token(const double* z, const double* y, std::int64_t width, std::int64_t outputs) {
  const std::int64_t queries = data_.queries();
  const double* chosen = z;
  if (data_.selection != nullptr) {
    for (std::int64_t l = 0; l < queries; ++l) {
      std::copy_n(z + data_.selection->queries[static_cast<std::size_t>(l)] * width, width, z_.data() + l * width);
    }
    chosen = z_.data();
  }
  kernels_.contract(maps_.data(), outputs, queries, chosen, width, residual_.data());
  for (std::int64_t a = 0; a < outputs; ++a) {
    double* const r = residual_.data() + a * width;
    for (std::int64_t i = 0; i < width; ++i) {
      r[i] = y[a * width + i] - r[i];
      error_.data()[a * width + i] += r[i] * r[i];
    }
    for (std::int64_t l = 0; l < queries; ++l) {
      double* const sum = sums_.data() + (a * queries + l) * width;
      for (std::int64_t i = 0; i < width; ++i) sum[i] += r[i] * chosen[l * width + i];
    }
  }
}

}  // namespace linattn
