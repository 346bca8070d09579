#include "non_finite.hpp"

namespace linattn::cuda {

namespace {

constexpr std::int64_t most_thread_blocks = 4096;

// index starts as -1, the largest number without a sign. The smallest of whole numbers does not depend on the order.
__global__ void __launch_bounds__(threads_per_block) find_non_finite(Tokens tokens, unsigned long long* index) {
  const std::int64_t size = tokens.rows * tokens.width, step = static_cast<std::int64_t>(gridDim.x) * threads_per_block;
  for (std::int64_t i = element_number(); i < size; i += step) {
    if (isfinite(tokens.values[i])) continue;
    atomicMin(index, static_cast<unsigned long long>(tokens.sequence_of(i / tokens.width)));
    return;  // what follows for this thread belongs to the same sequence or to later ones
  }
}

}  // namespace

void first_non_finite(const Tokens& tokens, std::int64_t* index, cudaStream_t stream) {
  LINATTN_CHECK(cudaMemsetAsync(index, 0xff, sizeof(*index), stream));
  const dim3 blocks = blocks_for(tokens.rows * tokens.width);
  const dim3 grid(blocks.x < most_thread_blocks ? blocks.x : static_cast<unsigned>(most_thread_blocks));
  LINATTN_LAUNCH(find_non_finite, grid, threads_per_block, stream, tokens,
                 reinterpret_cast<unsigned long long*>(index));
}

}  // namespace linattn::cuda
