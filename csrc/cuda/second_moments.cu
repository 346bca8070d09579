#include "second_moments.hpp"

namespace linattn::cuda {

namespace {

// One thread an entry of s. Neighbours have the same j and consecutive k, so that what a warp reads of a token lies
// side by side; all of a sequence's threads read the same tokens, which stay in the L1 cache.
__global__ void __launch_bounds__(threads_per_block)
    sum_over_sequences(Tokens tokens, PairList pairs, std::int64_t first, std::int64_t sequences, double* s) {
  const std::int64_t element = element_number();
  if (element >= sequences * pairs.count) return;
  const std::int64_t i = first + element / pairs.count;
  const Pair pair = pairs[element % pairs.count];
  double sum = 0.0;
  const std::int64_t end = tokens.end(i);
  for (std::int64_t row = tokens.begin(i); row < end; ++row) {
    sum = fma(tokens.values[row * tokens.width + pair.j], tokens.values[row * tokens.width + pair.k], sum);
  }
  s[element] = sum;
}

}  // namespace

void second_moments(const Tokens& tokens, const PairList& pairs, std::int64_t first, std::int64_t sequences, double* s,
                    cudaStream_t stream) {
  LINATTN_LAUNCH(sum_over_sequences, blocks_for(sequences * pairs.count), threads_per_block, stream, tokens, pairs,
                 first, sequences, s);
}

}  // namespace linattn::cuda
