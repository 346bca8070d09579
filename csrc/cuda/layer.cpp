#include "layer.hpp"

#include "maps.hpp"
#include "matrix_product.hpp"

namespace linattn::cuda {

namespace {

// The chunks of the samples, with memory for maps (d_out x d a sample) and for other numbers.
class LayerPass {
 public:
  LayerPass(const Sizes& sizes, std::int64_t map_numbers, std::int64_t other_numbers, Workspace& workspace)
      : sizes_(sizes),
        chunk_size_(
            chunk_samples(sizes, SampleProducer::numbers_per_sample(sizes, false) + map_numbers + other_numbers)),
        producer_(sizes, chunk_size_, false, workspace),
        maps(workspace.take(chunk_size_ * map_numbers)),
        others(workspace.take(chunk_size_ * other_numbers)) {}

  template <typename Body>
  void for_each(const Samples& data, cudaStream_t stream, const Body& body) {
    for (std::int64_t first = 0; first < sizes_.samples(); first += chunk_size_) {
      body(producer_.form(data, first, nullptr, stream));
    }
  }

 private:
  Sizes sizes_;
  std::int64_t chunk_size_;
  SampleProducer producer_;

 public:
  double *const maps, *const others;
};

LayerPass coefficients_pass(const Sizes& sizes, Workspace& workspace) {
  return {sizes, sizes.d_out * sizes.d, 0, workspace};
}

// All positions: maps and V_h S. Else Q_h z and S Q_h z.
LayerPass heads_pass(const Sizes& sizes, std::int64_t heads, Workspace& workspace) {
  if (sizes.all()) return {sizes, sizes.d_out * sizes.d, heads * sizes.d_out * sizes.d, workspace};
  return {sizes, heads * sizes.d, heads * sizes.d, workspace};
}

}  // namespace

std::int64_t coefficients_workspace(const Sizes& sizes) {
  Workspace counted;
  coefficients_pass(sizes, counted);
  return counted.bytes();
}

void evaluate_coefficients(const Samples& data, const double* coefficients, double* out, double* workspace,
                           cudaStream_t stream) {
  Workspace given(workspace);
  const std::int64_t d = data.sizes.d, d_out = data.sizes.d_out, pairs = data.sizes.pairs;
  LayerPass pass = coefficients_pass(data.sizes, given);
  const MatrixView c{coefficients, along(d), {d, pairs * d, 1}};  // (u, (a,l))
  pass.for_each(data, stream, [&](const Chunk& chunk) {
    // maps[(a,l)] = sum_u C[a,(u,l)] s_u
    multiply({chunk.s, along(pairs), along(1)}, c, chunk.count, d_out * d, pairs, pass.maps, stream);
    if (data.sizes.all()) {
      apply_maps(data.tokens, pass.maps, d_out, chunk.first, chunk.count, out, stream);
    } else {
      contract(pass.maps, chunk.queries, false, nullptr, d_out, d, chunk.count, out + chunk.first * d_out, stream);
    }
  });
}

std::int64_t heads_workspace(const Sizes& sizes, std::int64_t heads) {
  Workspace counted;
  heads_pass(sizes, heads, counted);
  return counted.bytes();
}

void evaluate_heads(const Samples& data, const double* v, const double* q, std::int64_t heads, double* out,
                    double* workspace, cudaStream_t stream) {
  Workspace given(workspace);
  const std::int64_t d = data.sizes.d, d_out = data.sizes.d_out;
  LayerPass pass = heads_pass(data.sizes, heads, given);
  pass.for_each(data, stream, [&](const Chunk& chunk) {
    if (data.sizes.all()) {
      // One map a sequence, for all its queries: (V_h S)[a,j], then
      //   maps[(a,l)] = sum over h and j of (V_h S)[a,j] Q_h[j,l]
      times_second_moment(chunk.s, v, true, heads * d_out, d, chunk.count, pass.others, stream);
      const MatrixView vs{pass.others, {d_out, heads * d_out * d, d}, {d, d_out * d, 1}};  // ((i,a), (h,j))
      multiply(vs, {q, along(d), along(1)}, chunk.count * d_out, d, heads * d, pass.maps, stream);
      apply_maps(data.tokens, pass.maps, d_out, chunk.first, chunk.count, out, stream);
      return;
    }
    // Q_h z, S Q_h z, and the sum over h of V_h S Q_h z
    multiply({chunk.queries, along(d), along(1)}, {q, along(1), along(d)}, chunk.count, heads * d, d, pass.maps,
             stream);
    times_second_moment(chunk.s, pass.maps, false, heads, d, chunk.count, pass.others, stream);
    multiply({pass.others, along(heads * d), along(1)}, {v, {d, d_out * d, 1}, along(d)}, chunk.count, d_out, heads * d,
             out + chunk.first * d_out, stream);
  });
}

}  // namespace linattn::cuda
