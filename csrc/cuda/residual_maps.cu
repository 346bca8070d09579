#include "residual_maps.hpp"

namespace linattn::cuda {

namespace {

constexpr int tokens_at_once = 128;  // and threads of a block

struct Residuals {
  double of_token[tokens_at_once];
};

// Block (i, a): sequence first + i and output a. A thread forms the residual of one token, then adds up coordinates l
// of the products of all of them, and so on with the next tokens.
__global__ void __launch_bounds__(tokens_at_once, 4)
    sum_residuals(Tokens tokens, Numbers targets, std::int64_t d_out, const std::int64_t* coordinates,
                  std::int64_t queries, const double* maps, std::int64_t first, double* sums, double* squares) {
  LINATTN_SHARED(Residuals, residuals);
  const auto thread = static_cast<std::int64_t>(threadIdx.x);
  const auto i = static_cast<std::int64_t>(blockIdx.x), a = static_cast<std::int64_t>(blockIdx.y);
  const std::int64_t map = (i * d_out + a) * queries;
  const std::int64_t begin = tokens.begin(first + i), end = tokens.end(first + i);
  const auto coordinate = [&](std::int64_t l) { return coordinates != nullptr ? coordinates[l] : l; };
  double square = 0.0;
  for (std::int64_t l = thread; l < queries; l += tokens_at_once) sums[map + l] = 0.0;
  for (std::int64_t start = begin; start < end; start += tokens_at_once) {
    const std::int64_t row = start + thread;
    if (row < end) {
      double residual = targets[row * d_out + a];
      if (maps != nullptr) {
        double f = 0.0;
        for (std::int64_t l = 0; l < queries; ++l) {
          f = fma(maps[map + l], tokens.values[row * tokens.width + coordinate(l)], f);
        }
        residual -= f;
      }
      square = fma(residual, residual, square);
      residuals.of_token[thread] = residual;
    }
    LINATTN_BARRIER();
    const std::int64_t count = end - start < tokens_at_once ? end - start : tokens_at_once;
    for (std::int64_t l = thread; l < queries; l += tokens_at_once) {
      double sum = sums[map + l];
      for (std::int64_t t = 0; t < count; ++t) {
        sum = fma(residuals.of_token[t], tokens.values[(start + t) * tokens.width + coordinate(l)], sum);
      }
      sums[map + l] = sum;
    }
    LINATTN_BARRIER();
  }
  residuals.of_token[thread] = square;
  LINATTN_BARRIER();
  for (int half = tokens_at_once / 2; half > 0; half /= 2) {
    if (thread < half) residuals.of_token[thread] += residuals.of_token[thread + half];
    LINATTN_BARRIER();
  }
  if (thread == 0) squares[i * d_out + a] = residuals.of_token[0];
}

}  // namespace

void residual_maps(const Tokens& tokens, const Numbers& targets, std::int64_t d_out, const std::int64_t* coordinates,
                   std::int64_t queries, const double* maps, std::int64_t first, std::int64_t sequences, double* sums,
                   double* squares, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(sequences), static_cast<unsigned>(d_out));
  LINATTN_LAUNCH(sum_residuals, grid, tokens_at_once, stream, tokens, targets, d_out, coordinates, queries, maps, first,
                 sums, squares);
}

}  // namespace linattn::cuda
