#include "normal_equations.hpp"

#include <algorithm>
#include <optional>

#include "maps.hpp"
#include "matrix_product.hpp"
#include "queries.hpp"
#include "residual_maps.hpp"
#include "sum_products.hpp"

namespace linattn::cuda {

namespace {

// Chunks of samples, formed or kept. Chunks do not depend on whether they are kept, and so neither do the sums.
class SampleSource {
 public:
  SampleSource(const Sizes& sizes, std::int64_t further_numbers, bool kept, Workspace& workspace)
      : sizes_(sizes),
        chunk_size_(chunk_samples(sizes, SampleProducer::numbers_per_sample(sizes, false) + further_numbers)) {
    if (!kept) producer_.emplace(sizes, chunk_size_, false, workspace);
  }

  std::int64_t chunk_size() const { return chunk_size_; }

  template <typename Body>
  void for_each(const Samples& data, const double* kept, cudaStream_t stream, const Body& body) {
    for (std::int64_t first = 0; first < sizes_.samples(); first += chunk_size_) {
      body(kept != nullptr ? kept_samples(sizes_, kept, first, chunk_size_)
                           : producer_->form(data, first, nullptr, stream));
    }
  }

 private:
  Sizes sizes_;
  std::int64_t chunk_size_;
  std::optional<SampleProducer> producer_;
};

class KroneckerPass {
 public:
  KroneckerPass(const Sizes& sizes, bool kept, Workspace& workspace)
      : sizes_(sizes), source_(sizes, sizes.queries + 1, kept, workspace) {
    squares_ = workspace.take(source_.chunk_size() * sizes.queries);
    if (sizes.all()) weights_ = workspace.take(source_.chunk_size());
    const Chunk widest{0, source_.chunk_size(), nullptr, nullptr, nullptr};
    slabs_ = workspace.take(std::max(
        {of_pairs(widest).slab_doubles(), of_queries(widest).slab_doubles(), diagonal(widest).slab_doubles()}));
  }

  void run(const Samples& data, const double* kept, const KroneckerSums& sums, cudaStream_t stream) {
    source_.for_each(data, kept, stream, [&](const Chunk& chunk) {
      const bool fresh = chunk.first == 0;
      query_squares(chunk.queries, sizes_.queries, chunk.count, sizes_.all(), squares_, stream);
      if (sizes_.all()) weigh_by_length(data.tokens, chunk.w, chunk.first, chunk.count, weights_, stream);
      add_products(of_pairs(chunk), fresh, slabs_, sums.pairs, stream);
      add_products(of_queries(chunk), fresh, slabs_, sums.queries, stream);
      add_products(diagonal(chunk), fresh, slabs_, sums.diagonal, stream);
    });
  }

 private:
  // s s'; every query of a sequence has its s, so for all positions the weight counts once a token.
  SumOfProducts of_pairs(const Chunk& chunk) const {
    SumOfProducts sum;
    sum.a = sum.right = {chunk.s, sizes_.pairs};
    sum.weights = sizes_.all() ? weights_ : chunk.w;
    sum.places = Places::symmetric;
    sum.rows = sum.columns = sizes_.pairs;
    sum.samples = chunk.count;
    return sum;
  }

  // z z'; of all positions the sum of the packed S of the queries.
  SumOfProducts of_queries(const Chunk& chunk) const {
    SumOfProducts sum;
    sum.right = {chunk.queries, sizes_.query_numbers()};
    sum.columns = sizes_.query_numbers();
    if (sizes_.all()) {
      sum.a = {chunk.w, 1};
      sum.places = Places::unpacked;
      sum.inner = sizes_.queries;
      sum.rows = 1;
    } else {
      sum.a = sum.right;
      sum.weights = chunk.w;
      sum.places = Places::symmetric;
      sum.rows = sizes_.queries;
    }
    sum.samples = chunk.count;
    return sum;
  }

  // s_u^2 z_l^2.
  SumOfProducts diagonal(const Chunk& chunk) const {
    SumOfProducts sum;
    sum.a = sum.b = {chunk.s, sizes_.pairs};
    sum.weights = chunk.w;
    sum.right = {squares_, sizes_.queries};
    sum.row_kind = Rows::same;
    sum.rows = sizes_.pairs;
    sum.columns = sizes_.queries;
    sum.samples = chunk.count;
    return sum;
  }

  Sizes sizes_;
  SampleSource source_;
  double *squares_ = nullptr, *weights_ = nullptr, *slabs_ = nullptr;
};

// With m rows of C, and f = C h or its residual y - C h, for each chunk:
//
//   maps[(a,l)] = sum_u C[a,(u,l)] s_u        f_a = sum_l maps[(a,l)] z_l        out[a,(u,l)] += sum w f_a z_l s_u
//
// For all positions the sum over a sequence's queries of f z' is maps S, so that the product needs no work per token;
// residuals are taken token by token, because maps S would lose digits that y - f has.
class OperatorPass {
 public:
  OperatorPass(const Sizes& sizes, std::int64_t m, bool residual, bool kept, Workspace& workspace)
      : sizes_(sizes), m_(m), residual_(residual), source_(sizes, m * (2 * sizes.queries + 2), kept, workspace) {
    const std::int64_t chunk_size = source_.chunk_size();
    maps_ = workspace.take(chunk_size * m * sizes.queries);
    if (sizes.all()) sums_ = workspace.take(chunk_size * m * sizes.queries);
    f_ = workspace.take(chunk_size * m);
    if (residual && !sizes.all()) targets_ = workspace.take(chunk_size * m);
    const Chunk widest{0, chunk_size, nullptr, nullptr, nullptr};
    slabs_ = workspace.take(std::max(adjoint(widest).slab_doubles(), squares(widest).slab_doubles()));
  }

  void run(const Samples& data, const double* kept, const double* coefficients, double* out, double* total_squares,
           cudaStream_t stream) {
    const std::int64_t pairs = sizes_.pairs, queries = sizes_.queries;
    const MatrixView c{coefficients, along(queries), {queries, pairs * queries, 1}};  // (u, (a,l))
    source_.for_each(data, kept, stream, [&](const Chunk& chunk) {
      const MatrixView s{chunk.s, along(pairs), along(1)};
      multiply(s, c, chunk.count, m_ * queries, pairs, maps_, stream);
      if (sizes_.all()) {
        of_sequences(data, chunk, stream);
      } else {
        if (residual_) widen(data.targets, chunk.first * m_, chunk.count * m_, targets_, stream);
        contract(maps_, chunk.queries, false, targets_, m_, queries, chunk.count, f_, stream);
      }
      const bool fresh = chunk.first == 0;
      add_products(adjoint(chunk), fresh, slabs_, out, stream);
      add_products(squares(chunk), fresh, slabs_, total_squares, stream);
    });
  }

 private:
  // sums = sum_t f_t z_t', f = sum_t f_t^2 of each sequence
  void of_sequences(const Samples& data, const Chunk& chunk, cudaStream_t stream) {
    if (residual_) {
      residual_maps(data.tokens, data.targets, m_, data.chosen_queries, sizes_.queries, maps_, chunk.first, chunk.count,
                    sums_, f_, stream);
    } else {
      times_second_moment(chunk.queries, maps_, false, m_, sizes_.queries, chunk.count, sums_, stream);
      contract(maps_, sums_, true, nullptr, m_, sizes_.queries, chunk.count, f_, stream);
    }
  }

  // [a,(u,l)]: f_a z_l, or the sums' entry (all), against s_u.
  SumOfProducts adjoint(const Chunk& chunk) const {
    SumOfProducts sum;
    if (sizes_.all()) {
      sum.a = {sums_, m_ * sizes_.queries};
    } else {
      sum.a = {f_, m_};
      sum.b = {chunk.queries, sizes_.queries};
      sum.row_kind = Rows::grid;
    }
    sum.weights = chunk.w;
    sum.right = {chunk.s, sizes_.pairs};
    sum.places = Places::by_pair;
    sum.inner = sizes_.queries;
    sum.rows = m_ * sizes_.queries;
    sum.columns = sizes_.pairs;
    sum.samples = chunk.count;
    return sum;
  }

  // [a]: f_a^2.
  SumOfProducts squares(const Chunk& chunk) const {
    SumOfProducts sum;
    sum.a = {f_, m_};
    if (!sizes_.all()) {
      sum.b = sum.a;
      sum.row_kind = Rows::same;
    }
    sum.weights = chunk.w;
    sum.rows = m_;
    sum.columns = 1;
    sum.samples = chunk.count;
    return sum;
  }

  Sizes sizes_;
  std::int64_t m_;
  bool residual_;
  SampleSource source_;
  double *maps_ = nullptr, *sums_ = nullptr, *f_ = nullptr, *targets_ = nullptr, *slabs_ = nullptr;
};

std::int64_t kept_chunk_size(const Sizes& sizes) {
  return chunk_samples(sizes, SampleProducer::numbers_per_sample(sizes, false));
}

}  // namespace

std::int64_t keep_workspace(const Sizes& sizes) {
  Workspace counted;
  const SampleProducer producer(sizes, kept_chunk_size(sizes), true, counted);
  return counted.bytes();
}

void keep_samples(const Samples& data, double* kept, double* workspace, cudaStream_t stream) {
  Workspace given(workspace);
  const std::int64_t chunk_size = kept_chunk_size(data.sizes);
  SampleProducer producer(data.sizes, chunk_size, true, given);
  for (std::int64_t first = 0; first < data.sizes.samples(); first += chunk_size)
    producer.form(data, first, kept, stream);
}

std::int64_t kronecker_workspace(const Sizes& sizes, bool kept) {
  Workspace counted;
  const KroneckerPass pass(sizes, kept, counted);
  return counted.bytes();
}

void kronecker_factors(const Samples& data, const double* kept, const KroneckerSums& sums, double* workspace,
                       cudaStream_t stream) {
  Workspace given(workspace);
  KroneckerPass(data.sizes, kept != nullptr, given).run(data, kept, sums, stream);
}

std::int64_t normal_workspace(const Sizes& sizes, std::int64_t m, bool kept) {
  Workspace counted;
  const OperatorPass pass(sizes, m, false, kept, counted);
  return counted.bytes();
}

void normal_product(const Samples& data, const double* kept, const double* coefficients, std::int64_t m,
                    double* product, double* energy, double* workspace, cudaStream_t stream) {
  Workspace given(workspace);
  OperatorPass(data.sizes, m, false, kept != nullptr, given).run(data, kept, coefficients, product, energy, stream);
}

std::int64_t gradient_workspace(const Sizes& sizes, bool kept) {
  Workspace counted;
  const OperatorPass pass(sizes, sizes.d_out, true, kept, counted);
  return counted.bytes();
}

void residual_gradient(const Samples& data, const double* kept, const double* coefficients, double* gradient,
                       double* squared_error, double* workspace, cudaStream_t stream) {
  Workspace given(workspace);
  OperatorPass(data.sizes, data.sizes.d_out, true, kept != nullptr, given)
      .run(data, kept, coefficients, gradient, squared_error, stream);
}

}  // namespace linattn::cuda
