#include "kept_rows.hpp"

#include <algorithm>

#include "../common/index.hpp"

namespace linattn {

namespace {

std::int64_t blocks_of(std::int64_t samples) { return (samples + block_samples - 1) / block_samples; }

void append(std::vector<RowPair>& pairs, std::int64_t x, std::int64_t y) {
  pairs.push_back({static_cast<std::int32_t>(x), static_cast<std::int32_t>(y)});
}

// From (outputs, q, d) to (outputs, d, q), or back.
void turn(const double* from, std::int64_t outputs, std::int64_t rows, std::int64_t columns, double* to) {
  for (std::int64_t a = 0; a < outputs; ++a, from += rows * columns, to += rows * columns) {
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < columns; ++j) to[j * rows + i] = from[i * columns + j];
    }
  }
}

}  // namespace

// s_u s_v, w z_l, that times z_m and the product of both, the additions within a block, and one for each block.
std::int64_t roundings_of_rows(std::int64_t samples) { return 4 + block_samples - 1 + blocks_of(samples); }

KeptRows::KeptRows(const Kernels& kernels, const Samples& data)
    : kernels_(kernels),
      data_(data),
      filler_(kernels, data, Precision::float64),
      by_query_(data.d_out() * data.d() * data.pairs()),
      sums_(data.d_out() * data.d() * data.pairs()),
      maps_(data.d_out() * data.d() * block_stride),
      answers_(data.d_out() * block_stride) {
  const std::int64_t q = data.pairs(), blocks = blocks_of(data.samples());
  pairs_.reserve(static_cast<std::size_t>(pair_count(q)));
  for (Pair pair{0, 0}; pair.j < q; pair = next_pair(pair, q)) append(pairs_, pair.j, pair.k);
  for (std::int64_t a = 0; a < data.d_out(); ++a) {
    for (std::int64_t l = 0; l < data.d(); ++l) append(targets_, a, l);
  }
  blocks_.reserve(static_cast<std::size_t>(blocks));
  for (std::int64_t b = 0; b < blocks; ++b) blocks_.emplace_back(data, Precision::float64, Factors::rows);
}

void KeptRows::sum(const MomentSums& sums) {
  const std::int64_t q = data_.pairs();
  Buffer carry(q), next(q);
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    SampleBlock& block = blocks_[b];
    filler_.fill(block, static_cast<std::int64_t>(b));
    if (data_.positions == Positions::causal) {
      carry_over(block, filler_.block_size(static_cast<std::int64_t>(b)), q, carry.data(), next.data());
    }
    filler_.finish(block, block.continues ? carry.data() : nullptr);
    std::swap(carry, next);
    kernels_.multiply_rows(block.s.data(), block.s.data(), pairs_.data(), pair_count(q), block.query_rows.data(),
                           pair_count(data_.d()), block.samples, sums.gram);
    kernels_.multiply_rows(block.targets.data(), block.z.data(), targets_.data(), data_.d_out() * data_.d(),
                           block.s.data(), q, block.samples, sums.cross);
    for (std::size_t a = 0; a < block.energy.size(); ++a) sums.energy[a] += block.energy[a];
  }
}

double KeptRows::residuals(const double* C, double* gradient) {
  const std::int64_t q = data_.pairs(), d = data_.d(), d_out = data_.d_out();
  turn(C, d_out, q, d, by_query_.data());
  std::fill_n(sums_.data(), d_out * d * q, 0.0);
  double total = 0;
  for (const SampleBlock& block : blocks_) {
    kernels_.apply(by_query_.data(), d_out * d, q, block.s.data(), block_stride, maps_.data());
    kernels_.contract(maps_.data(), d_out, d, block.z.data(), block_stride, answers_.data());
    for (std::int64_t a = 0; a < d_out; ++a) {
      const double* const y = block.y.data() + a * block_stride;
      double* const r = answers_.data() + a * block_stride;  // w (y - C h)
      double sums[sample_quantum] = {};
      for (std::int64_t i = 0; i < block.samples; i += sample_quantum) {
        for (std::int64_t j = i; j < i + sample_quantum; ++j) {
          const double left = y[j] - r[j];
          r[j] = block.weights.data()[j] * left;
          sums[j - i] += r[j] * left;
        }
      }
      for (const double each : sums) total += each;
    }
    if (gradient == nullptr) continue;
    kernels_.multiply_rows(answers_.data(), block.z.data(), targets_.data(), d_out * d, block.s.data(), q,
                           block.samples, sums_.data());
  }
  if (gradient != nullptr) turn(sums_.data(), d_out, d, q, gradient);
  return total;
}

}  // namespace linattn
