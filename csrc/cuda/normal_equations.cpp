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
        chunk_(chunk_samples(sizes, SampleProducer::numbers_per_sample(sizes, false) + further_numbers)) {
    if (!kept) producer_.emplace(sizes, chunk_, false, workspace);
  }

  std::int64_t chunk() const { return chunk_; }

  template <typename Body>
  void for_each(const Data& data, const double* kept, cudaStream_t stream, const Body& body) {
    for (std::int64_t first = 0; first < sizes_.samples(); first += chunk_) {
      body(kept != nullptr ? kept_samples(sizes_, kept, first, chunk_) : producer_->form(data, first, nullptr, stream));
    }
  }

 private:
  Sizes sizes_;
  std::int64_t chunk_;
  std::optional<SampleProducer> producer_;
};

class KroneckerPass {
 public:
  KroneckerPass(const Sizes& sizes, bool kept, Workspace& workspace)
      : sizes_(sizes), source_(sizes, sizes.queries + 1, kept, workspace) {
    squares_ = workspace.take(source_.chunk() * sizes.queries);
    if (sizes.all()) weights_ = workspace.take(source_.chunk());
    const Samples widest{0, source_.chunk(), nullptr, nullptr, nullptr};
    slabs_ = workspace.take(std::max(
        {of_pairs(widest).slab_doubles(), of_queries(widest).slab_doubles(), diagonal(widest).slab_doubles()}));
  }

  void run(const Data& data, const double* kept, const KroneckerSums& sums, cudaStream_t stream) {
    source_.for_each(data, kept, stream, [&](const Samples& samples) {
      const bool fresh = samples.first == 0;
      query_squares(samples.queries, sizes_.queries, samples.count, sizes_.all(), squares_, stream);
      if (sizes_.all()) weigh_by_length(data.tokens, samples.w, samples.first, samples.count, weights_, stream);
      add_products(of_pairs(samples), fresh, slabs_, sums.pairs, stream);
      add_products(of_queries(samples), fresh, slabs_, sums.queries, stream);
      add_products(diagonal(samples), fresh, slabs_, sums.diagonal, stream);
    });
  }

 private:
  // s s'; every query of a sequence has its s, so for all positions the weight counts once a token.
  SumOfProducts of_pairs(const Samples& samples) const {
    SumOfProducts sum;
    sum.a = sum.right = {samples.s, sizes_.pairs};
    sum.weights = sizes_.all() ? weights_ : samples.w;
    sum.places = Places::symmetric;
    sum.rows = sum.columns = sizes_.pairs;
    sum.samples = samples.count;
    return sum;
  }

  // z z'; of all positions the sum of the packed S of the queries.
  SumOfProducts of_queries(const Samples& samples) const {
    SumOfProducts sum;
    sum.right = {samples.queries, sizes_.query_numbers()};
    sum.columns = sizes_.query_numbers();
    if (sizes_.all()) {
      sum.a = {samples.w, 1};
      sum.places = Places::unpacked;
      sum.inner = sizes_.queries;
      sum.rows = 1;
    } else {
      sum.a = sum.right;
      sum.weights = samples.w;
      sum.places = Places::symmetric;
      sum.rows = sizes_.queries;
    }
    sum.samples = samples.count;
    return sum;
  }

  // s_u^2 z_l^2.
  SumOfProducts diagonal(const Samples& samples) const {
    SumOfProducts sum;
    sum.a = sum.b = {samples.s, sizes_.pairs};
    sum.weights = samples.w;
    sum.right = {squares_, sizes_.queries};
    sum.row_kind = Rows::same;
    sum.rows = sizes_.pairs;
    sum.columns = sizes_.queries;
    sum.samples = samples.count;
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
    const std::int64_t chunk = source_.chunk();
    maps_ = workspace.take(chunk * m * sizes.queries);
    if (sizes.all()) sums_ = workspace.take(chunk * m * sizes.queries);
    f_ = workspace.take(chunk * m);
    if (residual && !sizes.all()) targets_ = workspace.take(chunk * m);
    const Samples widest{0, chunk, nullptr, nullptr, nullptr};
    slabs_ = workspace.take(std::max(adjoint(widest).slab_doubles(), squares(widest).slab_doubles()));
  }

  void run(const Data& data, const double* kept, const double* coefficients, double* out, double* total_squares,
           cudaStream_t stream) {
    const std::int64_t pairs = sizes_.pairs, queries = sizes_.queries;
    const MatrixView c{coefficients, along(queries), {queries, pairs * queries, 1}};  // (u, (a,l))
    source_.for_each(data, kept, stream, [&](const Samples& samples) {
      const MatrixView s{samples.s, along(pairs), along(1)};
      multiply(s, c, samples.count, m_ * queries, pairs, maps_, stream);
      if (sizes_.all()) {
        of_sequences(data, samples, stream);
      } else {
        if (residual_) widen(data.targets, samples.first * m_, samples.count * m_, targets_, stream);
        contract(maps_, samples.queries, false, targets_, m_, queries, samples.count, f_, stream);
      }
      const bool fresh = samples.first == 0;
      add_products(adjoint(samples), fresh, slabs_, out, stream);
      add_products(squares(samples), fresh, slabs_, total_squares, stream);
    });
  }

 private:
  // sums = sum_t f_t z_t', f = sum_t f_t^2 of each sequence
  void of_sequences(const Data& data, const Samples& samples, cudaStream_t stream) {
    if (residual_) {
      residual_maps(data.tokens, data.targets, m_, data.chosen_queries, sizes_.queries, maps_, samples.first,
                    samples.count, sums_, f_, stream);
    } else {
      times_second_moment(samples.queries, maps_, false, m_, sizes_.queries, samples.count, sums_, stream);
      contract(maps_, sums_, true, nullptr, m_, sizes_.queries, samples.count, f_, stream);
    }
  }

  // [a,(u,l)]: f_a z_l, or the sums' entry (all), against s_u.
  SumOfProducts adjoint(const Samples& samples) const {
    SumOfProducts sum;
    if (sizes_.all()) {
      sum.a = {sums_, m_ * sizes_.queries};
    } else {
      sum.a = {f_, m_};
      sum.b = {samples.queries, sizes_.queries};
      sum.row_kind = Rows::grid;
    }
    sum.weights = samples.w;
    sum.right = {samples.s, sizes_.pairs};
    sum.places = Places::by_pair;
    sum.inner = sizes_.queries;
    sum.rows = m_ * sizes_.queries;
    sum.columns = sizes_.pairs;
    sum.samples = samples.count;
    return sum;
  }

  // [a]: f_a^2.
  SumOfProducts squares(const Samples& samples) const {
    SumOfProducts sum;
    sum.a = {f_, m_};
    if (!sizes_.all()) {
      sum.b = sum.a;
      sum.row_kind = Rows::same;
    }
    sum.weights = samples.w;
    sum.rows = m_;
    sum.columns = 1;
    sum.samples = samples.count;
    return sum;
  }

  Sizes sizes_;
  std::int64_t m_;
  bool residual_;
  SampleSource source_;
  double *maps_ = nullptr, *sums_ = nullptr, *f_ = nullptr, *targets_ = nullptr, *slabs_ = nullptr;
};

std::int64_t keep_chunk(const Sizes& sizes) {
  return chunk_samples(sizes, SampleProducer::numbers_per_sample(sizes, false));
}

}  // namespace

std::int64_t keep_workspace(const Sizes& sizes) {
  Workspace counted;
  const SampleProducer producer(sizes, keep_chunk(sizes), true, counted);
  return counted.bytes();
}

void keep_samples(const Data& data, double* kept, double* workspace, cudaStream_t stream) {
  Workspace given(workspace);
  const std::int64_t chunk = keep_chunk(data.sizes);
  SampleProducer producer(data.sizes, chunk, true, given);
  for (std::int64_t first = 0; first < data.sizes.samples(); first += chunk) producer.form(data, first, kept, stream);
}

std::int64_t kronecker_workspace(const Sizes& sizes, bool kept) {
  Workspace counted;
  const KroneckerPass pass(sizes, kept, counted);
  return counted.bytes();
}

void kronecker_factors(const Data& data, const double* kept, const KroneckerSums& sums, double* workspace,
                       cudaStream_t stream) {
  Workspace given(workspace);
  KroneckerPass(data.sizes, kept != nullptr, given).run(data, kept, sums, stream);
}

std::int64_t normal_workspace(const Sizes& sizes, std::int64_t m, bool kept) {
  Workspace counted;
  const OperatorPass pass(sizes, m, false, kept, counted);
  return counted.bytes();
}

void normal_product(const Data& data, const double* kept, const double* coefficients, std::int64_t m, double* product,
                    double* energy, double* workspace, cudaStream_t stream) {
  Workspace given(workspace);
  OperatorPass(data.sizes, m, false, kept != nullptr, given).run(data, kept, coefficients, product, energy, stream);
}

std::int64_t gradient_workspace(const Sizes& sizes, bool kept) {
  Workspace counted;
  const OperatorPass pass(sizes, sizes.d_out, true, kept, counted);
  return counted.bytes();
}

void residual_gradient(const Data& data, const double* kept, const double* coefficients, double* gradient,
                       double* squared_error, double* workspace, cudaStream_t stream) {
  Workspace given(workspace);
  OperatorPass(data.sizes, data.sizes.d_out, true, kept != nullptr, given)
      .run(data, kept, coefficients, gradient, squared_error, stream);
}

}  // namespace linattn::cuda
