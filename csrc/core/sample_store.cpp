#include "sample_store.hpp"

#include <algorithm>
#include <utility>

namespace linattn {

namespace {

// Rows of the samples' queries: z of each chosen one, or for all positions S of each pair of them.
std::int64_t query_row_count(const Samples& data) {
  return data.positions == Positions::all ? pair_count(data.queries()) : data.queries();
}

}  // namespace

SampleStore::SampleStore(const Kernels& kernels, const Samples& data, bool keep)
    : kernels_(kernels),
      data_(data),
      filled_{data.tokens,    data.positions == Positions::all ? nullptr : data.targets,
              data.weights,   data.positions,
              data.selection, data.states,
              data.streams},
      keep_(keep),
      blocks_(BlockFiller(kernels, data, Precision::float64).blocks()),
      kept_(static_cast<std::size_t>(keep ? blocks_ : 0)) {}

SampleReader::SampleReader(SampleStore& store, bool rows)
    : store_(store),
      make_(rows || !store.complete_),
      filler_(store.kernels_, store.filled_, Precision::float64),
      block_(store.filled_, Precision::float64, Factors::none),
      carry_(store.data_.formed_pairs()),
      next_carry_(store.data_.formed_pairs()) {}

void SampleReader::seek(std::int64_t block) {
  next_ = block;
  if (make_) filler_.carry_into(block, carry_.data());
}

const PackedSamples& SampleReader::next() {
  const std::int64_t b = next_++;
  PackedSamples& packed = store_.keep_ ? store_.kept_[static_cast<std::size_t>(b)] : passing_;
  if (!make_) return packed;
  filler_.fill(block_, b);
  if (store_.data_.positions == Positions::causal) {
    carry_over(block_, filler_.block_size(b), store_.data_.formed_pairs(), carry_.data(), next_carry_.data());
  }
  filler_.complete(block_, block_.continues ? carry_.data() : nullptr);
  std::swap(carry_, next_carry_);
  pack(packed);
  return packed;
}

const float* SampleReader::narrow_s() const {
  PackedSamples& packed = store_.kept_[static_cast<std::size_t>(next_ - 1)];
  if (packed.narrow_s.data() == nullptr) {
    const std::int64_t size = store_.data_.pairs() * packed.samples;
    FloatBuffer rounded(size);
    for (std::int64_t i = 0; i < size; ++i) rounded.data()[i] = static_cast<float>(packed.s.data()[i]);
    packed.narrow_s = std::move(rounded);
  }
  return packed.narrow_s.data();
}

void SampleReader::pack(PackedSamples& packed) const {
  const Samples& data = store_.filled_;
  const bool all = data.positions == Positions::all;
  const std::int64_t samples = block_.samples, pairs = data.pairs(), d_out = data.d_out();
  const std::int64_t rows = query_row_count(data);
  if (packed.samples < samples) {
    packed.s = Buffer(pairs * samples);
    packed.queries = Buffer(rows * samples);
    packed.weights = Buffer(samples);
    packed.y = Buffer(d_out * samples);
  }
  packed.samples = samples;
  store_.kernels_.float64.pack_right_rows(block_.left(), block_stride, pairs, samples, nullptr, packed.s.data());
  const auto copy_row = [&](const Buffer& from, std::int64_t row, Buffer& to, std::int64_t i) {
    std::copy_n(from.data() + row * block_stride, samples, to.data() + i * samples);
  };
  for (std::int64_t i = 0; i < rows; ++i) {
    if (all) {
      copy_row(block_.s, filler_.query_rows()[static_cast<std::size_t>(i)], packed.queries, i);
    } else {
      const std::int64_t l = data.selection != nullptr ? data.selection->queries[static_cast<std::size_t>(i)] : i;
      copy_row(block_.z, l, packed.queries, i);
    }
  }
  copy_row(block_.weights, 0, packed.weights, 0);
  for (std::int64_t a = 0; a < d_out; ++a) copy_row(block_.y, a, packed.y, a);
}

}  // namespace linattn
