#include "moments.hpp"

#include <algorithm>

#include "queries.hpp"
#include "residual_maps.hpp"
#include "sum_products.hpp"

namespace linattn::cuda {

namespace {

// A chunk after the other: samples, then the three sums over them.
class MomentsPass {
 public:
  MomentsPass(const Sizes& sizes, bool with_gram, Workspace& workspace)
      : sizes_(sizes),
        with_products_(with_gram && !sizes.all()),
        chunk_size_(chunk_samples(sizes, SampleProducer::numbers_per_sample(sizes, false) +
                                             (with_products_ ? pair_count(sizes.queries) : 0) + target_numbers() +
                                             sizes.d_out)),
        producer_(sizes, chunk_size_, false, workspace) {
    if (with_products_) products_ = workspace.take(chunk_size_ * pair_count(sizes.queries));
    targets_ = workspace.take(chunk_size_ * target_numbers());
    if (sizes.all()) squares_ = workspace.take(chunk_size_ * sizes.d_out);
    const Chunk widest{0, chunk_size_, nullptr, nullptr, nullptr};
    std::int64_t slabs = with_gram ? gram(widest).slab_doubles() : 0;
    if (sizes.d_out > 0) slabs = std::max({slabs, cross(widest).slab_doubles(), energy(widest).slab_doubles()});
    slabs_ = workspace.take(slabs);
  }

  std::int64_t chunk_size() const { return chunk_size_; }

  void run(const Samples& data, const MomentSums& sums, cudaStream_t stream) {
    for (std::int64_t first = 0; first < sizes_.samples(); first += chunk_size_) {
      const Chunk chunk = producer_.form(data, first, nullptr, stream);
      if (sums.gram != nullptr) {
        if (with_products_) query_products(chunk.queries, sizes_.queries, chunk.count, products_, stream);
        add_products(gram(chunk), false, slabs_, sums.gram, stream);
      }
      if (sizes_.d_out == 0) continue;
      if (sizes_.all()) {
        residual_maps(data.tokens, data.targets, sizes_.d_out, data.chosen_queries, sizes_.queries, nullptr, first,
                      chunk.count, targets_, squares_, stream);
      } else {
        widen(data.targets, first * sizes_.d_out, chunk.count * sizes_.d_out, targets_, stream);
      }
      add_products(cross(chunk), false, slabs_, sums.cross, stream);
      add_products(energy(chunk), false, slabs_, sums.energy, stream);
    }
  }

  // [(u,v), (l,m)]: s_u s_v against z_l z_m, S_lm (all), or s_w for triples (u,v,w).
  SumOfProducts gram(const Chunk& chunk) const {
    SumOfProducts sum;
    sum.a = sum.b = {chunk.s, sizes_.pairs};
    sum.weights = chunk.w;
    sum.columns = sizes_.triples() ? sizes_.pairs : pair_count(sizes_.queries);
    sum.right = {sizes_.all() ? chunk.queries : products_, sum.columns};
    sum.row_kind = Rows::upper;
    sum.places = sizes_.triples() ? Places::triples : Places::matrix;
    sum.inner = sizes_.pairs;
    sum.rows = pair_count(sizes_.pairs);
    sum.samples = chunk.count;
    return sum;
  }

 private:
  // Numbers a sample has for the left factor of the cross moment: y, or sum_t y_t z_t' (all).
  std::int64_t target_numbers() const { return sizes_.d_out * (sizes_.all() ? sizes_.queries : 1); }

  // [(a,l), u]: y_a z_l, or the map's entry (all), against s_u.
  SumOfProducts cross(const Chunk& chunk) const {
    SumOfProducts sum;
    sum.a = {targets_, target_numbers()};
    if (!sizes_.all()) sum.b = {chunk.queries, sizes_.queries};
    sum.weights = chunk.w;
    sum.right = {chunk.s, sizes_.pairs};
    sum.row_kind = sizes_.all() ? Rows::single : Rows::grid;
    sum.inner = sizes_.queries;
    sum.rows = sizes_.d_out * sizes_.queries;
    sum.columns = sizes_.pairs;
    sum.samples = chunk.count;
    return sum;
  }

  // [a]: y_a^2.
  SumOfProducts energy(const Chunk& chunk) const {
    SumOfProducts sum;
    sum.a = {sizes_.all() ? squares_ : targets_, sizes_.d_out};
    if (!sizes_.all()) sum.b = sum.a;
    sum.weights = chunk.w;
    sum.row_kind = sizes_.all() ? Rows::single : Rows::same;
    sum.rows = sizes_.d_out;
    sum.columns = 1;
    sum.samples = chunk.count;
    return sum;
  }

  Sizes sizes_;
  bool with_products_;
  std::int64_t chunk_size_;
  SampleProducer producer_;
  double *products_ = nullptr, *targets_ = nullptr, *squares_ = nullptr, *slabs_ = nullptr;
};

}  // namespace

std::int64_t moments_workspace(const Sizes& sizes, bool with_gram) {
  Workspace counted;
  const MomentsPass pass(sizes, with_gram, counted);
  return counted.bytes();
}

void accumulate_moments(const Samples& data, const MomentSums& sums, double* workspace, cudaStream_t stream) {
  Workspace given(workspace);
  MomentsPass(data.sizes, sums.gram != nullptr, given).run(data, sums, stream);
}

std::int64_t summation_steps(const Sizes& sizes) {
  Workspace counted;
  const MomentsPass pass(sizes, true, counted);
  const SumOfProducts sum = pass.gram({0, pass.chunk_size(), nullptr, nullptr, nullptr});
  const std::int64_t chunks = (sizes.samples() + pass.chunk_size() - 1) / pass.chunk_size();
  return sum.samples_per_slab() + sum.slabs() * chunks + 1;
}

}  // namespace linattn::cuda
