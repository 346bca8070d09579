#include "sample_block.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "../common/index.hpp"

namespace linattn {

namespace {

// out[i] = weights * rows[i], for `count` rows of block_stride.
void scale_rows(const double* rows, std::int64_t count, const double* weights, std::int64_t samples, double* out) {
  for (std::int64_t row = 0; row < count; ++row) {
    for (std::int64_t i = 0; i < samples; ++i) {
      out[row * block_stride + i] = weights[i] * rows[row * block_stride + i];
    }
  }
}

// out[i] = rows[chosen[i]], rows of block_stride.
void copy_rows(const double* rows, const std::vector<std::int64_t>& chosen, std::int64_t samples, double* out) {
  for (const std::int64_t row : chosen) {
    std::copy_n(rows + row * block_stride, samples, out);
    out += block_stride;
  }
}

// The pairs that are formed, as coordinates; empty where S is formed as a whole.
std::vector<RowPair> formed_coordinates(const Samples& data) {
  std::vector<RowPair> coordinates;
  if (!data.forms_few()) return coordinates;
  for (const std::int64_t number : data.selection->formed) {
    const Pair pair = pair_at(number, data.d());
    coordinates.push_back({static_cast<std::int32_t>(pair.j), static_cast<std::int32_t>(pair.k)});
  }
  return coordinates;
}

// The least e with |entries| < 2^e, of each row of block_stride.
void find_exponents(const double* rows, std::int64_t samples, std::vector<int>& exponents) {
  for (int& exponent : exponents) {
    double largest = 0.0;
    for (std::int64_t i = 0; i < samples; ++i) largest = std::max(largest, std::abs(rows[i]));
    std::frexp(largest, &exponent);
    rows += block_stride;
  }
}

}  // namespace

double shrinking(int exponent) { return std::ldexp(1.0, -std::clamp(exponent, -1000, 1000)); }
double scale_of(int exponent) { return std::ldexp(1.0, std::clamp(exponent, -1000, 1000)); }

// ------------------------------------------------------------------------------------------------ SampleBlock

SampleBlock::SampleBlock(const Samples& data, Precision precision, Factors form)
    : selected(data.selection != nullptr),
      factors(form),
      s((data.formed_pairs() + (data.forms_few() ? 1 : 0)) * block_stride),
      weights(block_stride),
      y(data.d_out() * block_stride),
      energy(static_cast<std::size_t>(data.d_out())) {
  const std::int64_t d = data.d(), d_out = data.d_out();
  const std::int64_t pairs = data.pairs(), columns = data.triples() ? pairs : pair_count(data.queries());
  const bool all = data.positions == Positions::all, mixed = precision == Precision::mixed;
  targets = Buffer((all ? d_out * d : d_out) * block_stride);
  if (!all) {
    z = Buffer(d * block_stride);
    weighted_z = Buffer(d * block_stride);
  }
  if (selected) chosen_s = Buffer(pairs * block_stride);
  if (factors == Factors::rows) query_rows = Buffer(columns * block_stride);
  if (factors != Factors::packed) return;
  if (!all) left_groups = Buffer((pairs + sample_quantum) * block_samples);
  pair_columns = Buffer(pairs * block_samples);
  if (selected) size_columns = Buffer(data.queries() * block_samples);
  if (all) {
    weighted_s = Buffer(data.formed_pairs() * block_stride);
    if (selected) {
      chosen_weighted_s = Buffer(pairs * block_stride);
      chosen_queries = Buffer(columns * block_stride);
      chosen_targets = Buffer(d_out * data.queries() * block_stride);
    }
  }
  if (mixed) {
    left_exponents.resize(static_cast<std::size_t>(pairs));
    narrow_columns = FloatBuffer(columns * block_samples);
    column_scale.resize(static_cast<std::size_t>(columns));
  } else if (!data.triples()) {
    query_columns = Buffer(columns * block_samples);
  }
}

// ------------------------------------------------------------------------------------------------ BlockFiller

BlockFiller::BlockFiller(const Kernels& kernels, const Samples& data, Precision precision)
    : kernels_(kernels),
      data_(data),
      precision_(precision),
      group_(kernels, data.tokens, data.positions == Positions::all ? data.targets : nullptr, formed_coordinates(data)),
      formed_(formed_coordinates(data)) {
  if (data.states != nullptr) states_.emplace(kernels, *data.states);
  if (data.streams != nullptr) streams_.emplace(kernels, *data.streams);
  const std::int64_t queries = data.queries();
  const auto chosen = [&](std::int64_t i) {
    return data.selection != nullptr ? data.selection->queries[static_cast<std::size_t>(i)] : i;
  };
  query_pairs_.reserve(static_cast<std::size_t>(pair_count(queries)));
  for (Pair pair{0, 0}; pair.j < queries; pair = next_pair(pair, queries)) {
    const std::int64_t l = chosen(pair.j), m = chosen(pair.k);
    query_pairs_.push_back({static_cast<std::int32_t>(l), static_cast<std::int32_t>(m)});
    if (data.positions == Positions::all) column_rows_.push_back(data.row_of(pair_index(l, m, data.d())));
  }
  if (data.selection != nullptr) {
    for (const std::int64_t pair : data.selection->pairs) pair_rows_.push_back(data.row_of(pair));
    for (const std::int64_t l : data.selection->queries) {
      const bool all = data.positions == Positions::all;
      const auto right = static_cast<std::int32_t>(all ? data.row_of(pair_index(l, l, data.d())) : l);
      square_pairs_.push_back({all ? 0 : right, right});
    }
  }
}

std::int64_t BlockFiller::blocks() const { return (data_.samples() + block_samples - 1) / block_samples; }

std::int64_t BlockFiller::block_size(std::int64_t b) const {
  return std::min(block_samples, data_.samples() - b * block_samples);
}

void BlockFiller::fill(SampleBlock& block, std::int64_t b) {
  const std::int64_t first = b * block_samples, count = block_size(b);
  block.samples = padded_samples(count);
  std::fill_n(block.weights.data(), block.samples, 0.0);
  switch (data_.positions) {
    case Positions::last:
      fill_last(block, first, count);
      break;
    case Positions::all:
      fill_all(block, first, count);
      break;
    case Positions::causal:
      fill_causal(block, first, count);
      break;
  }
  weigh(block);
}

void BlockFiller::weights_of(std::int64_t first, std::int64_t count, double* weights) const {
  if (data_.weights != nullptr) {
    std::copy_n(data_.weights + first, count, weights);
  } else {
    std::fill_n(weights, count, 1.0);
  }
}

void BlockFiller::fill_last(SampleBlock& block, std::int64_t first, std::int64_t count) {
  group_.select(first, count);
  group_.last_tokens(block.z.data(), block_stride);
  if (states_ || streams_) {
    if (states_) states_->read(first, count, block.s.data(), block_stride);
    if (streams_) streams_->read(first, count, block.s.data(), block_stride);
    require_finite_rows(block.s.data(), block_stride, data_.formed_pairs(), count);
    require_finite_rows(block.z.data(), block_stride, data_.d(), count);
  } else {
    group_.second_moments(block.s.data(), block_stride);
  }
  if (data_.targets != nullptr) {
    target_rows_.resize(static_cast<std::size_t>(count));
    data_.targets->copy(first, first + count, target_rows_.data());
    gather_rows(kernels_, data_.targets->scalar(), target_rows_, data_.d_out(), block.y.data(), block_stride);
  }
  weights_of(first, count, block.weights.data());
}

void BlockFiller::fill_all(SampleBlock& block, std::int64_t first, std::int64_t count) {
  group_.select(first, count);
  if (data_.targets == nullptr) {
    group_.second_moments(block.s.data(), block_stride);
  } else {
    group_.moments_with_targets(block.s.data(), block.targets.data(), block.y.data(), block_stride);
  }
  weights_of(first, count, block.weights.data());
}

// Columns are consecutive tokens, sequence after sequence; S is a running sum that starts anew with each sequence.
void BlockFiller::fill_causal(SampleBlock& block, std::int64_t first, std::int64_t count) {
  const Tokens& tokens = data_.tokens;
  token_rows_.clear();
  target_rows_.clear();
  block.sequence_ends.clear();
  std::int64_t i = tokens.sequence_of(first), t = first - tokens.row_start(i);
  block.continues = t > 0;
  for (std::int64_t column = 0; column < count; ++i, t = 0) {
    const Sequence sequence = tokens[i];
    const std::int64_t end = std::min(count, column + sequence.length - t);
    const double weight = data_.weights != nullptr ? data_.weights[i] : 1.0;
    for (; column < end; ++column, ++t) {
      token_rows_.push_back(tokens.row(sequence, t));
      if (data_.targets != nullptr) target_rows_.push_back(data_.targets->row((*data_.targets)[i], t));
      block.weights.data()[column] = weight;
    }
    block.sequence_ends.push_back(end);
  }
  block.first_end = block.sequence_ends.front();
  gather_rows(kernels_, tokens.scalar(), token_rows_, data_.d(), block.z.data(), block_stride);
  if (data_.targets != nullptr) {
    gather_rows(kernels_, data_.targets->scalar(), target_rows_, data_.d_out(), block.y.data(), block_stride);
  }
  std::int64_t start = 0;
  for (const std::int64_t end : block.sequence_ends) {
    if (data_.forms_few()) {
      kernels_.chosen_prefixes(block.z.data(), block_stride, formed_.data(), data_.formed_pairs(), start, end,
                               block.s.data());
    } else {
      kernels_.prefix_moments(block.z.data(), data_.d(), block_stride, start, end, block.s.data());
    }
    start = end;
  }
  for (std::int64_t pair = 0; pair < data_.formed_pairs(); ++pair) {
    std::fill(block.s.data() + pair * block_stride + count, block.s.data() + pair * block_stride + block.samples, 0.0);
  }
}

// Weighted copies, and energy = sum w y^2.
void BlockFiller::weigh(SampleBlock& block) {
  const double* w = block.weights.data();
  const bool all = data_.positions == Positions::all;
  if (!all) {
    scale_rows(block.z.data(), data_.d(), w, block.samples, block.weighted_z.data());
    scale_rows(block.y.data(), data_.d_out(), w, block.samples, block.targets.data());
  }
  for (std::size_t a = 0; a < block.energy.size(); ++a) {
    const double* y = block.y.data() + static_cast<std::int64_t>(a) * block_stride;
    double sums[sample_quantum] = {};  // side by side: they do not wait for one another
    for (std::int64_t i = 0; i < block.samples; i += sample_quantum) {
      for (std::int64_t j = i; j < i + sample_quantum; ++j) sums[j - i] += all ? w[j] * y[j] : w[j] * y[j] * y[j];
    }
    block.energy[a] = std::accumulate(sums, sums + sample_quantum, 0.0);
  }
}

void BlockFiller::complete(SampleBlock& block, const double* carry) {
  const std::int64_t pairs = data_.formed_pairs();
  if (data_.positions == Positions::causal) {
    for (std::int64_t pair = 0; carry != nullptr && pair < pairs; ++pair) {
      double* row = block.s.data() + pair * block_stride;
      for (std::int64_t i = 0; i < block.first_end; ++i) row[i] += carry[pair];
    }
    if (data_.forms_few()) {
      require_finite_rows(block.s.data(), block_stride, pairs, block.samples);
      require_finite_rows(block.z.data(), block_stride, data_.d(), block.samples);
    } else {
      for (const std::int64_t end : block.sequence_ends) {
        require_finite_diagonal(block.s.data() + end - 1, block_stride, data_.d(), 1);
      }
    }
  }
  if (block.selected) copy_rows(block.s.data(), pair_rows_, block.samples, block.chosen_s.data());
}

void BlockFiller::finish(SampleBlock& block, const double* carry) {
  complete(block, carry);
  if (data_.positions == Positions::all) {
    scale_rows(block.s.data(), data_.formed_pairs(), block.weights.data(), block.samples, block.weighted_s.data());
    if (block.selected) choose_weighted(block);
  }
  if (block.factors == Factors::rows) {
    multiply_queries(block);
  } else {
    pack(block);
  }
}

void BlockFiller::multiply_queries(SampleBlock& block) {
  double* out = block.query_rows.data();
  for (const auto& [l, m] : query_pairs_) {
    const double *left = block.weighted_z.data() + l * block_stride, *right = block.z.data() + m * block_stride;
    for (std::int64_t i = 0; i < block.samples; ++i) out[i] = left[i] * right[i];
    out += block_stride;
  }
}

void BlockFiller::choose_weighted(SampleBlock& block) {
  copy_rows(block.weighted_s.data(), pair_rows_, block.samples, block.chosen_weighted_s.data());
  copy_rows(block.weighted_s.data(), column_rows_, block.samples, block.chosen_queries.data());
  for (std::int64_t a = 0; a < data_.d_out(); ++a) {
    copy_rows(block.targets.data() + a * data_.d() * block_stride, data_.selection->queries, block.samples,
              block.chosen_targets.data() + a * data_.queries() * block_stride);
  }
}

void BlockFiller::pack(SampleBlock& block) {
  const std::int64_t pairs = data_.pairs(), columns = static_cast<std::int64_t>(query_pairs_.size());
  const bool all = data_.positions == Positions::all, mixed = precision_ == Precision::mixed;
  if (mixed) {
    pack_narrow(block);
  } else if (!all) {
    kernels_.float64.pack_right_products(block.weighted_z.data(), block.z.data(), block_stride, query_pairs_.data(),
                                         columns, block.samples, nullptr, block.query_columns.data());
  } else if (block.selected) {
    kernels_.float64.pack_right_rows(block.chosen_queries.data(), block_stride, columns, block.samples, nullptr,
                                     block.query_columns.data());
  }
  if (block.selected) {
    kernels_.float64.pack_right_products(all ? block.weights.data() : block.weighted_z.data(),
                                         all ? block.s.data() : block.z.data(), block_stride, square_pairs_.data(),
                                         data_.queries(), block.samples, nullptr, block.size_columns.data());
  }
  if (!all) kernels_.pack_groups(block.left(), block_stride, pairs, block.samples, block.left_groups.data());
  if (data_.targets != nullptr || (data_.triples() && !mixed)) {
    kernels_.float64.pack_right_rows(all ? block.left_weighted() : block.left(), block_stride, pairs, block.samples,
                                     nullptr, block.pair_columns.data());
  }
}

void BlockFiller::pack_narrow(SampleBlock& block) {
  const std::size_t columns = block.column_scale.size();
  find_exponents(block.left(), block.samples, block.left_exponents);
  std::vector<int> exponents(columns);
  if (data_.positions == Positions::all) {
    find_exponents(block.selected ? block.chosen_queries.data() : block.weighted_s.data(), block.samples, exponents);
  } else {
    std::vector<int> z(static_cast<std::size_t>(data_.d())), weighted(z);
    find_exponents(block.z.data(), block.samples, z);
    find_exponents(block.weighted_z.data(), block.samples, weighted);
    for (std::size_t i = 0; i < columns; ++i) {
      exponents[i] =
          weighted[static_cast<std::size_t>(query_pairs_[i].x)] + z[static_cast<std::size_t>(query_pairs_[i].y)];
    }
  }
  std::vector<double> shrink(columns);
  for (std::size_t i = 0; i < columns; ++i) {
    shrink[i] = shrinking(exponents[i]);
    block.column_scale[i] = scale_of(exponents[i]);
  }
  const auto count = static_cast<std::int64_t>(columns);
  if (data_.positions == Positions::all) {
    kernels_.float32.pack_right_rows(block.selected ? block.chosen_queries.data() : block.weighted_s.data(),
                                     block_stride, count, block.samples, shrink.data(), block.narrow_columns.data());
  } else {
    kernels_.float32.pack_right_products(block.weighted_z.data(), block.z.data(), block_stride, query_pairs_.data(),
                                         count, block.samples, shrink.data(), block.narrow_columns.data());
  }
}

bool BlockFiller::carry_into(std::int64_t b, double* carry) const {
  if (data_.positions != Positions::causal) return false;
  const std::int64_t first = b * block_samples, i = data_.tokens.sequence_of(first);
  const std::int64_t before = first - data_.tokens.row_start(i);
  if (before == 0) return false;
  Sequence prefix = data_.tokens[i];
  prefix.length = before;
  const Tokens tokens = Tokens::list({prefix}, data_.tokens.scalar(), data_.d());
  SequenceGroup group(kernels_, tokens, nullptr, formed_);
  group.select(0, 1);
  const Buffer s((data_.formed_pairs() + 1) * sample_quantum);
  group.second_moments(s.data(), sample_quantum);
  for (std::int64_t pair = 0; pair < data_.formed_pairs(); ++pair) carry[pair] = s.data()[pair * sample_quantum];
  return true;
}

void carry_over(const SampleBlock& block, std::int64_t size, std::int64_t pairs, const double* carried, double* next) {
  const bool unfinished = block.continues && block.first_end == size;
  for (std::int64_t pair = 0; pair < pairs; ++pair) {
    next[pair] = block.s.data()[pair * block_stride + size - 1] + (unfinished ? carried[pair] : 0.0);
  }
}

}  // namespace linattn
