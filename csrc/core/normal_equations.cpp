#include "normal_equations.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <type_traits>
#include <vector>

#include "../common/block_sizes.hpp"
#include "../common/index.hpp"
#include "slabs.hpp"
#include "token_residuals.hpp"

namespace linattn {

namespace {

// Rows of maps at a time: 64 x 256 doubles = 128 KiB, a quarter of L2; but always whole outputs.
constexpr std::int64_t rows_at_once = 64;
// Rows of the left factor at a time.
constexpr std::int64_t left_rows = 96;
// Bytes of the right factor that all rows are multiplied with before the next ones: a quarter or half of L2.
constexpr std::int64_t right_bytes = std::int64_t{256} << 10;

std::int64_t outputs_at_once(const Samples& data) { return std::max<std::int64_t>(1, rows_at_once / data.queries()); }

template <typename T>
const ProductKernels<T>& products(const Kernels& kernels) {
  if constexpr (std::is_same_v<T, float>) {
    return kernels.float32;
  } else {
    return kernels.float64;
  }
}

// Coefficients (m x pairs x queries) packed as the left factor of maps, outputs_at_once() at a time.
template <typename T>
class PackedMatrix {
 public:
  PackedMatrix(const Kernels& kernels, const Samples& data, const double* coefficients, std::int64_t m)
      : at_once_(outputs_at_once(data)),
        size_(round_up(at_once_ * data.queries()) * data.pairs()),
        packed_((m + at_once_ - 1) / at_once_ * size_) {
    for (std::int64_t a = 0; a < m; a += at_once_) {
      products<T>(kernels).pack_matrix(coefficients + a * data.pairs() * data.queries(), std::min(at_once_, m - a),
                                       data.pairs(), data.queries(), packed_.data() + a / at_once_ * size_);
    }
  }

  // For the outputs from `first` on, a multiple of outputs_at_once().
  const T* from(std::int64_t first) const { return packed_.data() + first / at_once_ * size_; }

 private:
  static std::int64_t round_up(std::int64_t rows) {
    return (rows + sample_quantum - 1) / sample_quantum * sample_quantum;  // no vector is longer
  }

  std::int64_t at_once_, size_;
  AlignedBuffer<T> packed_;
};

// out[a][u][l] = sums[u][(a, l)], for outputs that were summed together: those of a group.
void by_output(const double* sums, std::int64_t m, std::int64_t group, std::int64_t pairs, std::int64_t queries,
               double* out) {
  for (std::int64_t first = 0; first < m; first += group) {
    const std::int64_t outputs = std::min(group, m - first);
    for (std::int64_t u = 0; u < pairs; ++u) {
      for (std::int64_t a = first; a < first + outputs; ++a, sums += queries) {
        std::copy_n(sums, queries, out + (a * pairs + u) * queries);
      }
    }
  }
}

// Product rows against packed columns. One per thread.
template <typename T>
class LeftFactor {
 public:
  explicit LeftFactor(const Kernels& kernels)
      : kernels_(products<T>(kernels)),
        vector_(kernels.lanes * static_cast<std::int64_t>(sizeof(double) / sizeof(T))),
        packed_(left_rows * block_samples) {}

  // Scales that bring row i, divided by row_scale[i], within the range of T; null for none. They stay with the caller.
  void set_scales(const double* shrink, const double* row_scale) {
    shrink_ = shrink;
    row_scale_ = row_scale;
  }

  // sums[column][i] += sum over samples of left[x(i)] right[y(i)] times the columns; rows(i) gives x and y.
  template <typename Rows>
  void add(const double* left, const double* right, std::int64_t stride, std::int64_t count, const Rows& rows,
           const T* columns, std::int64_t column_count, std::int64_t samples, double* sums) {
    for (std::int64_t first = 0; first < count; first += left_rows) {
      const std::int64_t taken = std::min(left_rows, count - first);
      for (std::int64_t i = 0, panel; i < taken; i += panel) {
        panel = panel_rows(taken - i);
        pack(left, right, stride, first + i, panel, rows, samples, packed_.data() + i * samples);
      }
      multiply(first, taken, columns, column_count, samples, sums, count);
    }
  }

  // sums[i][column] likewise, for the columns from i on.
  template <typename Rows>
  void add_triangle(const double* left, const double* right, std::int64_t stride, std::int64_t count, const Rows& rows,
                    const T* columns, std::int64_t samples, double* sums) {
    const std::int64_t at_once = left_rows / kernels_.tile_rows * kernels_.tile_rows;
    for (std::int64_t first = 0; first < count; first += at_once) {
      const std::int64_t taken = std::min(at_once, count - first);
      pack(left, right, stride, first, taken, rows, samples, packed_.data());
      for (std::int64_t i = 0; i < taken; ++i) {
        targets_[i] = sums + (first + i) * count;
        first_columns_[i] = first + i;
      }
      kernels_.multiply(packed_.data(), taken, columns, count, samples, nullptr, nullptr, first_columns_, targets_);
    }
  }

 private:
  static const double* offset(const double* scales, std::int64_t first) {
    return scales != nullptr ? scales + first : nullptr;
  }

  // Rows of the next panel. A tile and a third are two tiles of two thirds: a single vector of rows keeps a processor
  // waiting.
  std::int64_t panel_rows(std::int64_t left) const {
    const std::int64_t tile = kernels_.tile_rows;
    if (tile == 3 * vector_ && left > tile && left <= tile + vector_) return 2 * vector_;
    return std::min(tile, left);
  }

  template <typename Rows>
  void pack(const double* left, const double* right, std::int64_t stride, std::int64_t first, std::int64_t count,
            const Rows& rows, std::int64_t samples, T* out) {
    for (std::int64_t i = 0; i < count; ++i) pairs_[i] = rows(first + i);
    kernels_.pack_left_products(left, right, stride, nullptr, pairs_, count, samples, offset(shrink_, first), out);
  }

  // Columns in parts that stay in L2 while panels of rows pass by; the last part first, which the product before this
  // one has just read.
  void multiply(std::int64_t first, std::int64_t taken, const T* columns, std::int64_t column_count,
                std::int64_t samples, double* sums, std::int64_t stride) {
    const std::int64_t wanted = right_bytes / (static_cast<std::int64_t>(sizeof(T)) * samples);
    const std::int64_t at_once = std::max<std::int64_t>(1, wanted / kernels_.tile_columns) * kernels_.tile_columns;
    for (std::int64_t j = (column_count - 1) / at_once * at_once; j >= 0; j -= at_once) {
      for (std::int64_t i = 0, panel; i < taken; i += panel) {
        panel = panel_rows(taken - i);
        kernels_.multiply_to_columns(packed_.data() + i * samples, panel, columns + j * samples,
                                     std::min(at_once, column_count - j), samples, offset(row_scale_, first + i),
                                     sums + j * stride + first + i, stride);
      }
    }
  }

  const ProductKernels<T>& kernels_;
  std::int64_t vector_;  // numbers in it
  AlignedBuffer<T> packed_;
  RowPair pairs_[left_rows];
  double* targets_[left_rows];
  std::int64_t first_columns_[left_rows];
  const double *shrink_ = nullptr, *row_scale_ = nullptr;
};

RowPair row_pair(std::int64_t x, std::int64_t y) {
  return {static_cast<std::int32_t>(x), static_cast<std::int32_t>(y)};
}

// One pass of coefficients over blocks of samples, with products of type T. One per thread.
template <typename T>
class Pass {
  static constexpr bool narrow = std::is_same_v<T, float>;

 public:
  // m outputs. With residuals, f is replaced by y - f.
  Pass(SampleStore& store, const PackedMatrix<T>& matrix, std::int64_t m, bool residuals)
      : kernels_(store.kernels()),
        data_(store.data()),
        matrix_(matrix),
        m_(m),
        residuals_(residuals),
        all_(data_.positions == Positions::all),
        reader_(store, /*rows=*/false),
        left_(kernels_),
        map_sums_(round_up(outputs_at_once(data_) * data_.queries()) * block_samples),
        maps_(outputs_at_once(data_) * data_.queries() * block_samples),
        rows_(outputs_at_once(data_) * (all_ ? data_.queries() : 1) * block_samples) {
    if (all_ && residuals_) tokens_.emplace(kernels_, data_);
    if (narrow) {
      const std::int64_t rows = round_up(outputs_at_once(data_) * data_.queries());
      shrink_ = Buffer(rows);
      row_scale_ = Buffer(rows);
      left_.set_scales(shrink_.data(), row_scale_.data());
    }
  }

  SampleReader& reader() { return reader_; }

  // sums (pairs x queries of each group of outputs) and squares (m) += what the next block, number b, has.
  void add(std::int64_t b, double* sums, double* squares) {
    const PackedSamples& block = reader_.next();
    const T* const s = s_of(block);
    const std::int64_t queries = data_.queries(), pairs = data_.pairs(), at_once = outputs_at_once(data_);
    for (std::int64_t a = 0; a < m_; a += at_once) {
      const std::int64_t outputs = std::min(at_once, m_ - a);
      products<T>(kernels_).apply_packed(matrix_.from(a), outputs * queries, s, pairs, block.samples, map_sums_.data(),
                                         maps_.data());
      double* const to = sums + a * queries * pairs;
      if (all_) {
        if (residuals_) {
          tokens_->residual_maps(b, a, outputs, maps_.data(), block, rows_.data(), squares + a);
        } else {
          answer_sequences(block, outputs, squares + a);
        }
        if (narrow) find_scales(outputs, queries, block, largest(block.weights.data(), block.samples));
        left_.add(
            rows_.data(), block.weights.data(), block.samples, outputs * queries,
            [](std::int64_t i) { return row_pair(i, 0); }, s, pairs, block.samples, to);
      } else {
        answer_samples(block, a, outputs, squares + a);
        if (narrow) find_scales(outputs, 1, block, 1.0);
        left_.add(
            rows_.data(), block.queries.data(), block.samples, outputs * queries,
            [queries](std::int64_t i) { return row_pair(i / queries, i % queries); }, s, pairs, block.samples, to);
      }
    }
  }

 private:
  const T* s_of(const PackedSamples& block) const {
    if constexpr (narrow) {
      return reader_.narrow_s();
    } else {
      return block.s.data();
    }
  }

  static std::int64_t round_up(std::int64_t rows) { return padded_samples(rows); }

  static double largest(const double* row, std::int64_t count) {
    double found = 0.0;
    for (std::int64_t i = 0; i < count; ++i) found = std::max(found, std::abs(row[i]));
    return found;
  }

  // Powers of two for the rows of each output, `rows` of rows_ an output, so that these times `factor` are at most one.
  void find_scales(std::int64_t outputs, std::int64_t rows, const PackedSamples& block, double factor) {
    for (std::int64_t a = 0; a < outputs; ++a) {
      int exponent = 0;
      std::frexp(largest(rows_.data() + a * rows * block.samples, rows * block.samples) * factor, &exponent);
      std::fill_n(shrink_.data() + a * data_.queries(), data_.queries(), shrinking(exponent));
      std::fill_n(row_scale_.data() + a * data_.queries(), data_.queries(), scale_of(exponent));
    }
  }

  // rows (a) = w f_a or w (y_a - f_a)
  void answer_samples(const PackedSamples& block, std::int64_t first, std::int64_t outputs, double* squares) {
    kernels_.contract(maps_.data(), outputs, data_.queries(), block.queries.data(), block.samples, rows_.data());
    const double* w = block.weights.data();
    for (std::int64_t a = 0; a < outputs; ++a) {
      double* row = rows_.data() + a * block.samples;
      if (residuals_) {
        const double* y = block.y.data() + (first + a) * block.samples;
        for (std::int64_t i = 0; i < block.samples; ++i) row[i] = y[i] - row[i];
      }
      double sum = 0.0;
      for (std::int64_t i = 0; i < block.samples; ++i) {
        const double weighted = w[i] * row[i];
        sum += weighted * row[i];
        row[i] = weighted;
      }
      squares[a] += sum;
    }
  }

  // rows (a,m) = sum_l maps[(a,l)] S_lm
  void answer_sequences(const PackedSamples& block, std::int64_t outputs, double* squares) {
    const std::int64_t queries = data_.queries(), samples = block.samples;
    kernels_.apply_symmetric(block.queries.data(), queries, maps_.data(), outputs, samples, rows_.data());
    const double* w = block.weights.data();
    for (std::int64_t row = 0; row < outputs * queries; ++row) {
      const double *map = maps_.data() + row * samples, *answer = rows_.data() + row * samples;
      double sum = 0.0;
      for (std::int64_t i = 0; i < samples; ++i) sum += w[i] * map[i] * answer[i];
      squares[row / queries] += sum;
    }
  }

  const Kernels& kernels_;
  const Samples& data_;
  const PackedMatrix<T>& matrix_;
  std::int64_t m_;
  bool residuals_, all_;
  SampleReader reader_;
  LeftFactor<T> left_;
  Buffer map_sums_, maps_, rows_;
  Buffer shrink_, row_scale_;  // float32: of left_
  std::optional<TokenResiduals> tokens_;
};

template <typename T>
void pass(SampleStore& store, const double* coefficients, std::int64_t m, bool residuals, int threads,
          const Monitor& monitor, double* out, double* squares) {
  const std::int64_t pairs = store.data().pairs(), queries = store.data().queries(), size = m * pairs * queries;
  const PackedMatrix<T> matrix(store.kernels(), store.data(), coefficients, m);
  const Buffer sums(size + m);
  sum_over_slabs(
      store.data().samples(), blocks_in_pass_slab, threads, monitor, store.sums(), {{sums.data(), size + m}},
      [&] { return Pass<T>(store, matrix, m, residuals); },
      [&](Pass<T>& worker, std::int64_t b, bool first, double* own) {
        if (first) worker.reader().seek(b);
        worker.add(b, own, own + size);
      });
  store.set_complete();
  by_output(sums.data(), m, outputs_at_once(store.data()), pairs, queries, out);
  std::copy_n(sums.data() + size, m, squares);
}

// Sums for the Kronecker factors. One per thread.
class FactorPass {
 public:
  explicit FactorPass(SampleStore& store)
      : kernels_(store.kernels()),
        data_(store.data()),
        reader_(store, /*rows=*/true),
        left_(kernels_),
        weights_(block_stride),
        weighted_(data_.queries() * block_samples),
        query_columns_(data_.queries() * block_samples),
        squares_(data_.pairs() * block_samples) {
    for (std::int64_t u = 0; u < data_.pairs(); ++u) itself_.push_back(row_pair(u, u));
  }

  SampleReader& reader() { return reader_; }

  // pairs x pairs (upper triangle), queries x queries, and pairs x queries, one after the other
  void add(std::int64_t b, double* sums) {
    const PackedSamples& block = reader_.next();
    const std::int64_t pairs = data_.pairs(), queries = data_.queries();
    add_pairs(b, block, sums);
    double* const of_queries = sums + pairs * pairs;
    double* const diagonal = of_queries + queries * queries;
    kernels_.float64.pack_right_products(reader_.rows().left(), reader_.rows().left(), block_stride, itself_.data(),
                                         pairs, block.samples, nullptr, squares_.data());
    if (data_.positions == Positions::all) {
      add_sequence_queries(block, of_queries);
      left_.add(
          block.queries.data(), block.weights.data(), block.samples, queries,
          [queries](std::int64_t l) { return row_pair(pair_index(l, l, queries), 0); }, squares_.data(), pairs,
          block.samples, diagonal);
      return;
    }
    const double* z = block.queries.data();
    for (std::int64_t l = 0; l < queries; ++l) {
      for (std::int64_t i = 0; i < block.samples; ++i) {
        weighted_.data()[l * block.samples + i] = block.weights.data()[i] * z[l * block.samples + i];
      }
    }
    kernels_.float64.pack_right_rows(z, block.samples, queries, block.samples, nullptr, query_columns_.data());
    left_.add(
        z, block.weights.data(), block.samples, queries, [](std::int64_t l) { return row_pair(l, 0); },
        query_columns_.data(), queries, block.samples, of_queries);
    left_.add(
        weighted_.data(), z, block.samples, queries, [](std::int64_t l) { return row_pair(l, l); }, squares_.data(),
        pairs, block.samples, diagonal);
  }

 private:
  // Every query of a sequence has its s, so for all positions the weight counts once a token.
  void add_pairs(std::int64_t b, const PackedSamples& block, double* sums) {
    std::copy_n(block.weights.data(), block.samples, weights_.data());
    if (data_.positions == Positions::all) {
      const std::int64_t first = b * block_samples;
      const std::int64_t count = std::min(block_samples, data_.tokens.count() - first);
      for (std::int64_t i = 0; i < count; ++i) {
        weights_.data()[i] *= static_cast<double>(data_.tokens[first + i].length);
      }
    }
    left_.add_triangle(
        reader_.rows().left(), weights_.data(), block_stride, data_.pairs(),
        [](std::int64_t u) { return row_pair(u, 0); }, block.s.data(), block.samples, sums);
  }

  // The sum of z z' over the queries of a sequence is S.
  void add_sequence_queries(const PackedSamples& block, double* sums) const {
    const std::int64_t queries = data_.queries();
    const double* row = block.queries.data();
    for (Pair pair{0, 0}; pair.j < queries; pair = next_pair(pair, queries), row += block.samples) {
      double sum = 0.0;
      for (std::int64_t i = 0; i < block.samples; ++i) sum += block.weights.data()[i] * row[i];
      sums[pair.j * queries + pair.k] += sum;
      if (pair.j != pair.k) sums[pair.k * queries + pair.j] += sum;
    }
  }

  const Kernels& kernels_;
  const Samples& data_;
  SampleReader reader_;
  LeftFactor<double> left_;
  Buffer weights_, weighted_, query_columns_, squares_;
  std::vector<RowPair> itself_;
};

}  // namespace

void kronecker_factors(SampleStore& store, int threads, const Monitor& monitor, const KroneckerSums& sums) {
  const std::int64_t pairs = store.data().pairs(), queries = store.data().queries();
  const std::int64_t entries = pairs * pairs + queries * queries + pairs * queries;
  const Buffer total(entries);
  SlabSums sums_of_slabs;
  sum_over_slabs(
      store.data().samples(), blocks_in_pass_slab, threads, monitor, sums_of_slabs, {{total.data(), entries}},
      [&] { return FactorPass(store); },
      [](FactorPass& worker, std::int64_t b, bool first, double* own) {
        if (first) worker.reader().seek(b);
        worker.add(b, own);
      });
  store.set_complete();
  const double* from = total.data();
  for (std::int64_t u = 0; u < pairs; ++u) {
    for (std::int64_t v = u; v < pairs; ++v) {
      sums.pairs[u * pairs + v] = sums.pairs[v * pairs + u] = from[u * pairs + v];
    }
  }
  from += pairs * pairs;
  std::copy_n(from, queries * queries, sums.queries);
  std::copy_n(from + queries * queries, pairs * queries, sums.diagonal);
}

void normal_product(SampleStore& store, const double* coefficients, std::int64_t m, int threads, const Monitor& monitor,
                    double* product, double* energy) {
  pass<double>(store, coefficients, m, false, threads, monitor, product, energy);
}

void narrow_product(SampleStore& store, const double* coefficients, std::int64_t m, int threads, const Monitor& monitor,
                    double* product, double* energy) {
  const std::int64_t p = store.data().pairs() * store.data().queries();
  const Buffer scaled(m * p);
  std::vector<int> exponents(static_cast<std::size_t>(m));
  for (std::int64_t a = 0; a < m; ++a) {
    double largest = 0.0;
    for (std::int64_t i = 0; i < p; ++i) largest = std::max(largest, std::abs(coefficients[a * p + i]));
    int& exponent = exponents[static_cast<std::size_t>(a)];
    std::frexp(largest, &exponent);
    const double shrink = shrinking(exponent);
    for (std::int64_t i = 0; i < p; ++i) scaled.data()[a * p + i] = coefficients[a * p + i] * shrink;
  }
  pass<float>(store, scaled.data(), m, false, threads, monitor, product, energy);
  for (std::int64_t a = 0; a < m; ++a) {
    const double scale = scale_of(exponents[static_cast<std::size_t>(a)]);
    for (std::int64_t i = 0; i < p; ++i) product[a * p + i] *= scale;
    energy[a] *= scale * scale;
  }
}

void residual_gradient(SampleStore& store, const double* coefficients, int threads, const Monitor& monitor,
                       double* gradient, double* squared_error) {
  pass<double>(store, coefficients, store.data().d_out(), true, threads, monitor, gradient, squared_error);
}

}  // namespace linattn
