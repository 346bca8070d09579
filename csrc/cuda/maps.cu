#include "maps.hpp"

namespace linattn::cuda {

namespace {

__global__ void __launch_bounds__(threads_per_block)
    contract_maps(const double* maps, const double* z, bool own, const double* targets, std::int64_t outputs,
                  std::int64_t queries, std::int64_t samples, double* f) {
  const std::int64_t element = element_number();
  if (element >= samples * outputs) return;
  const double* const map = maps + element * queries;
  const double* const query = z + (own ? element : element / outputs) * queries;
  double sum = 0.0;
  for (std::int64_t l = 0; l < queries; ++l) sum = fma(map[l], query[l], sum);
  f[element] = targets != nullptr ? targets[element] - sum : sum;
}

__global__ void __launch_bounds__(threads_per_block)
    multiply_second_moment(const double* s, const double* in, bool same, std::int64_t groups, std::int64_t d,
                           std::int64_t samples, double* out) {
  const std::int64_t element = element_number();
  if (element >= samples * groups * d) return;
  const std::int64_t j = element % d, row = element / d, i = row / groups;
  const double* const moment = s + i * pair_count(d);
  const double* const vector = in + (same ? row % groups : row) * d;
  double sum = 0.0;
  for (std::int64_t k = 0; k < j; ++k) sum = fma(moment[pair_index(k, j, d)], vector[k], sum);
  for (std::int64_t k = j; k < d; ++k) sum = fma(moment[pair_index(j, k, d)], vector[k], sum);
  out[element] = sum;
}

// A block a sequence: its threads share the map and the tokens.
__global__ void __launch_bounds__(threads_per_block)
    apply_to_rows(Tokens tokens, const double* maps, std::int64_t outputs, std::int64_t first, double* out) {
  const auto i = static_cast<std::int64_t>(blockIdx.x);
  const std::int64_t begin = tokens.begin(first + i), end = tokens.end(first + i), d = tokens.width;
  for (std::int64_t e = static_cast<std::int64_t>(threadIdx.x); e < (end - begin) * outputs; e += threads_per_block) {
    const std::int64_t row = begin + e / outputs, a = e % outputs;
    const double* const map = maps + (i * outputs + a) * d;
    double sum = 0.0;
    for (std::int64_t l = 0; l < d; ++l) sum = fma(map[l], tokens.values[row * d + l], sum);
    out[row * outputs + a] = sum;
  }
}

}  // namespace

void contract(const double* maps, const double* z, bool own, const double* targets, std::int64_t outputs,
              std::int64_t queries, std::int64_t samples, double* f, cudaStream_t stream) {
  LINATTN_LAUNCH(contract_maps, blocks_for(samples * outputs), threads_per_block, stream, maps, z, own, targets,
                 outputs, queries, samples, f);
}

void times_second_moment(const double* s, const double* in, bool same, std::int64_t groups, std::int64_t d,
                         std::int64_t samples, double* out, cudaStream_t stream) {
  LINATTN_LAUNCH(multiply_second_moment, blocks_for(samples * groups * d), threads_per_block, stream, s, in, same,
                 groups, d, samples, out);
}

void apply_maps(const Tokens& tokens, const double* maps, std::int64_t outputs, std::int64_t first,
                std::int64_t sequences, double* out, cudaStream_t stream) {
  LINATTN_LAUNCH(apply_to_rows, dim3(static_cast<unsigned>(sequences)), threads_per_block, stream, tokens, maps,
                 outputs, first, out);
}

}  // namespace linattn::cuda
