#include "queries.hpp"

namespace linattn::cuda {

namespace {

__global__ void __launch_bounds__(threads_per_block)
    copy_queries(Tokens tokens, bool of_rows, const std::int64_t* coordinates, std::int64_t queries, std::int64_t first,
                 std::int64_t samples, double* z) {
  const std::int64_t element = element_number();
  if (element >= samples * queries) return;
  const std::int64_t i = first + element / queries, l = element % queries;
  const std::int64_t row = of_rows ? i : tokens.end(i) - 1;
  z[element] = tokens.values[row * tokens.width + (coordinates != nullptr ? coordinates[l] : l)];
}

__global__ void __launch_bounds__(threads_per_block) copy_weights(Tokens tokens, bool of_rows, const double* weights,
                                                                  std::int64_t first, std::int64_t samples, double* w) {
  const std::int64_t i = element_number();
  if (i >= samples) return;
  w[i] = weights == nullptr ? 1.0 : weights[of_rows ? tokens.sequence_of(first + i) : first + i];
}

__global__ void __launch_bounds__(threads_per_block)
    copy_numbers(Numbers numbers, std::int64_t first, std::int64_t count, double* out) {
  const std::int64_t i = element_number();
  if (i < count) out[i] = numbers[first + i];
}

__global__ void __launch_bounds__(threads_per_block)
    multiply_queries(const double* z, std::int64_t queries, std::int64_t samples, double* products) {
  const std::int64_t element = element_number(), columns = pair_count(queries);
  if (element >= samples * columns) return;
  const Pair pair = pair_at(element % columns, queries);
  const double* const own = z + element / columns * queries;
  products[element] = own[pair.j] * own[pair.k];
}

__global__ void __launch_bounds__(threads_per_block)
    square_queries(const double* z, std::int64_t queries, std::int64_t samples, bool packed, double* squares) {
  const std::int64_t element = element_number();
  if (element >= samples * queries) return;
  const std::int64_t i = element / queries, l = element % queries;
  squares[element] = packed ? z[i * pair_count(queries) + pair_index(l, l, queries)] : z[element] * z[element];
}

__global__ void __launch_bounds__(threads_per_block)
    multiply_by_length(Tokens tokens, const double* w, std::int64_t first, std::int64_t sequences, double* out) {
  const std::int64_t i = element_number();
  if (i < sequences) out[i] = w[i] * static_cast<double>(tokens.end(first + i) - tokens.begin(first + i));
}

}  // namespace

void gather_queries(const Tokens& tokens, Positions positions, const std::int64_t* coordinates, std::int64_t queries,
                    std::int64_t first, std::int64_t samples, double* z, cudaStream_t stream) {
  LINATTN_LAUNCH(copy_queries, blocks_for(samples * queries), threads_per_block, stream, tokens,
                 positions == Positions::causal, coordinates, queries, first, samples, z);
}

void gather_weights(const Tokens& tokens, Positions positions, const double* weights, std::int64_t first,
                    std::int64_t samples, double* w, cudaStream_t stream) {
  LINATTN_LAUNCH(copy_weights, blocks_for(samples), threads_per_block, stream, tokens, positions == Positions::causal,
                 weights, first, samples, w);
}

void widen(const Numbers& numbers, std::int64_t first, std::int64_t count, double* out, cudaStream_t stream) {
  LINATTN_LAUNCH(copy_numbers, blocks_for(count), threads_per_block, stream, numbers, first, count, out);
}

void query_products(const double* z, std::int64_t queries, std::int64_t samples, double* products,
                    cudaStream_t stream) {
  LINATTN_LAUNCH(multiply_queries, blocks_for(samples * pair_count(queries)), threads_per_block, stream, z, queries,
                 samples, products);
}

void query_squares(const double* z, std::int64_t queries, std::int64_t samples, bool packed, double* squares,
                   cudaStream_t stream) {
  LINATTN_LAUNCH(square_queries, blocks_for(samples * queries), threads_per_block, stream, z, queries, samples, packed,
                 squares);
}

void weigh_by_length(const Tokens& tokens, const double* w, std::int64_t first, std::int64_t sequences, double* out,
                     cudaStream_t stream) {
  LINATTN_LAUNCH(multiply_by_length, blocks_for(sequences), threads_per_block, stream, tokens, w, first, sequences,
                 out);
}

}  // namespace linattn::cuda
