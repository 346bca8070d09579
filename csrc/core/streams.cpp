#include "streams.hpp"

#include <algorithm>
#include <atomic>

#include "floating_point.hpp"
#include "slabs.hpp"

namespace linattn {

namespace {

// Doubles from one row to the next, with a vector to spare.
std::int64_t row_doubles(std::int64_t width) { return (width + 2 * most_lanes - 1) / most_lanes * most_lanes; }

template <typename T>
void copy_rows(const Sequence& sequence, std::int64_t first, std::int64_t count, std::int64_t width, double* out,
               std::int64_t stride) {
  for (std::int64_t t = first; t < first + count; ++t) {
    const T* const row = static_cast<const T*>(sequence.data) + t * sequence.row_stride;
    if (sequence.column_stride == 1) {
      std::copy_n(row, width, out);
    } else {
      for (std::int64_t j = 0; j < width; ++j) out[j] = static_cast<double>(row[j * sequence.column_stride]);
    }
    out += stride;
  }
}

// Rows first .. first + count of a sequence, in float64.
void copy_rows(const Tokens& tokens, std::int64_t sequence, std::int64_t first, std::int64_t count, double* out,
               std::int64_t stride) {
  if (tokens.scalar() == Scalar::float32) {
    copy_rows<float>(tokens[sequence], first, count, tokens.width(), out, stride);
  } else {
    copy_rows<double>(tokens[sequence], first, count, tokens.width(), out, stride);
  }
}

}  // namespace

// -------------------------------------------------------------------------------------------------- KeyBuffer

KeyBuffer::KeyBuffer(const Streams& streams)
    : streams_(streams),
      d_k_stride_(row_doubles(streams.d_k())),
      d_v_stride_(row_doubles(streams.d_v())),
      keys_(most * d_k_stride_),
      values_(streams.symmetric() ? 0 : most * d_v_stride_) {}

KeyRows KeyBuffer::read(std::int64_t sequence, std::int64_t first, std::int64_t count) {
  copy_rows(streams_.keys, sequence, first, count, keys_.data(), d_k_stride_);
  if (!streams_.symmetric()) copy_rows(*streams_.values, sequence, first, count, values_.data(), d_v_stride_);
  const double* gates = streams_.gates;
  if (gates != nullptr) gates += streams_.keys.row_start(sequence) + first;
  return {keys_.data(),
          streams_.symmetric() ? keys_.data() : values_.data(),
          gates,
          streams_.d_k(),
          streams_.d_v(),
          d_k_stride_,
          d_v_stride_,
          count,
          streams_.symmetric()};
}

// ----------------------------------------------------------------------------------------------- StreamReader

StreamReader::StreamReader(const Kernels& kernels, const Streams& streams)
    : kernels_(kernels),
      streams_(streams),
      keys_(streams),
      row_size_(row_doubles(streams.entries())),
      memories_((2 * sample_quantum + 2) * row_size_),
      columns_(sample_quantum) {}

void StreamReader::advance(std::int64_t query, std::int64_t slot) {
  const std::int64_t sequence = streams_.sequences[query], seen = streams_.seen[query];
  if (sequence != sequence_ || seen < seen_) {
    sequence_ = sequence;
    seen_ = 0;
    current_ = slot;
    std::fill_n(row(slot), row_size_, 0.0);
    if (seen > 0) {  // a row apart from the one that it ends up in
      current_ = 2 * sample_quantum;
      std::fill_n(row(current_), row_size_, 0.0);
    }
  }
  while (seen_ < seen) {
    const std::int64_t count = std::min(seen - seen_, KeyBuffer::most);
    const std::int64_t between = current_ == 2 * sample_quantum ? current_ + 1 : 2 * sample_quantum;
    const std::int64_t next = seen_ + count == seen ? slot : between;
    kernels_.running_memory(keys_.read(sequence, seen_, count), row(current_), row(next));
    current_ = next;
    seen_ += count;
  }
}

void StreamReader::read(std::int64_t first, std::int64_t count, double* s, std::int64_t stride) {
  const std::int64_t entries = streams_.entries();
  for (std::int64_t start = 0; start < count; start += sample_quantum) {
    const std::int64_t together = std::min(sample_quantum, count - start);
    bank_ = sample_quantum - bank_;  // what queries before these have seen stays where it is
    for (std::int64_t i = 0; i < together; ++i) {
      advance(first + start + i, bank_ + i);
      columns_[static_cast<std::size_t>(i)] = {row(current_), 1, entries, 1};
    }
    kernels_.gather_float64(columns_.data(), together, 0, 1, entries, sample_quantum, s + start, stride);
  }
}

// ------------------------------------------------------------------------------------------ sizes of summands

namespace {

// Running sums of gated squares of keys and values, and the sums over a block of queries.
class SizeWorker {
 public:
  SizeWorker(const Streams& streams, const Tokens& queries, const double* weights, std::atomic<bool>& underflow)
      : watch_(underflow),
        streams_(streams),
        queries_(queries),
        weights_(weights),
        keys_(streams),
        alpha_(streams.d_v()),
        beta_(streams.d_k()),
        query_(queries.width()),
        block_((streams.d_v() + streams.d_k()) * queries.width()) {}

  // value_sizes and key_sizes, one after the other, += those of block b.
  void add(std::int64_t b, double* sizes) {
    const std::int64_t d_q = queries_.width(), entries = (streams_.d_v() + streams_.d_k()) * d_q;
    const std::int64_t first = b * block_samples, end = std::min(queries_.count(), first + block_samples);
    std::fill_n(block_.data(), entries, 0.0);
    for (std::int64_t i = first; i < end; ++i) {
      advance(streams_.sequences[i], streams_.seen[i]);
      copy_rows(queries_, i, 0, 1, query_.data(), d_q);
      const double weight = weights_ != nullptr ? weights_[i] : 1.0;
      for (std::int64_t l = 0; l < d_q; ++l) query_.data()[l] *= query_.data()[l];
      double* const keys = add_outer(alpha_, streams_.d_v(), weight, block_.data());
      add_outer(beta_, streams_.d_k(), weight, keys);
    }
    for (std::int64_t i = 0; i < entries; ++i) sizes[i] += block_.data()[i];
  }

 private:
  void advance(std::int64_t sequence, std::int64_t seen) {
    if (sequence != sequence_ || seen < seen_) {
      sequence_ = sequence;
      seen_ = 0;
      std::fill_n(alpha_.data(), streams_.d_v(), 0.0);
      std::fill_n(beta_.data(), streams_.d_k(), 0.0);
    }
    while (seen_ < seen) {
      const KeyRows rows = keys_.read(sequence, seen_, std::min(seen - seen_, KeyBuffer::most));
      for (std::int64_t t = 0; t < rows.count; ++t) {
        const double gate = rows.gates != nullptr ? rows.gates[t] : 1.0;
        add_squares(rows.values + t * rows.d_v_stride, rows.d_v, gate, alpha_.data());
        add_squares(rows.keys + t * rows.d_k_stride, rows.d_k, gate, beta_.data());
      }
      seen_ += rows.count;
    }
  }

  static void add_squares(const double* x, std::int64_t width, double gate, double* sums) {
    for (std::int64_t j = 0; j < width; ++j) sums[j] = gate * sums[j] + x[j] * x[j];
  }

  // out[j][l] += weight sums[j]^2 c_l^2; returns its end.
  double* add_outer(const Buffer& sums, std::int64_t rows, double weight, double* out) const {
    const std::int64_t d_q = queries_.width();
    for (std::int64_t j = 0; j < rows; ++j) {
      const double factor = weight * sums.data()[j] * sums.data()[j];
      for (std::int64_t l = 0; l < d_q; ++l) out[l] += factor * query_.data()[l];
      out += d_q;
    }
    return out;
  }

  const UnderflowWatch watch_;
  const Streams& streams_;
  const Tokens& queries_;
  const double* weights_;
  KeyBuffer keys_;
  Buffer alpha_, beta_, query_, block_;
  std::int64_t sequence_ = -1, seen_ = 0;
};

}  // namespace

SizeSummation stream_sizes(const Streams& streams, const Tokens& queries, const double* weights, int threads,
                           double* value_sizes, double* key_sizes) {
  constexpr std::int64_t blocks_in_slab = 16;
  const std::int64_t of_values = streams.d_v() * queries.width(), of_keys = streams.d_k() * queries.width();
  std::atomic<bool> underflow{false};
  SlabSums partial;
  const std::int64_t slabs = sum_over_slabs(
      queries.count(), blocks_in_slab, threads, [](std::int64_t) {}, partial,
      {{value_sizes, of_values}, {key_sizes, of_keys}},
      [&] { return SizeWorker(streams, queries, weights, underflow); },
      [](SizeWorker& worker, std::int64_t b, bool, double* own) { worker.add(b, own); });
  const std::int64_t blocks = (queries.count() + block_samples - 1) / block_samples;
  return {block_samples + slab_additions(blocks, slabs), underflow};
}

}  // namespace linattn
