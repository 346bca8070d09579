#include "samples.hpp"

#include <algorithm>

#include "../common/slabs.hpp"
#include "prefix_moments.hpp"
#include "queries.hpp"
#include "second_moments.hpp"

namespace linattn::cuda {

namespace {

// Without a selection, S of the queries is s.
bool queries_are_s(const Sizes& sizes) { return sizes.all() && !sizes.selected; }

PairList pair_list(const Samples& data) { return {data.chosen_pairs, nullptr, data.sizes.d, data.sizes.pairs}; }

PairList query_pair_list(const Samples& data) {
  return {nullptr, data.chosen_queries, data.sizes.queries, pair_count(data.sizes.queries)};
}

}  // namespace

std::int64_t chunk_samples(const Sizes& sizes, std::int64_t numbers_per_sample) {
  return std::min(linattn::chunk_samples(numbers_per_sample) / span_rows * span_rows, sizes.samples());
}

std::int64_t kept_doubles(const Sizes& sizes) {
  return sizes.samples() * (sizes.pairs + (queries_are_s(sizes) ? 0 : sizes.query_numbers()) + 1);
}

std::int64_t SampleProducer::numbers_per_sample(const Sizes& sizes, bool kept) {
  const std::int64_t own = sizes.pairs + (queries_are_s(sizes) ? 0 : sizes.query_numbers()) + 1;
  return (kept ? 0 : own) + (sizes.positions == Positions::causal ? sizes.pairs / span_rows + 1 : 0);
}

SampleProducer::SampleProducer(const Sizes& sizes, std::int64_t chunk_size, bool kept, Workspace& workspace)
    : chunk_size_(chunk_size),
      s_(kept ? nullptr : workspace.take(chunk_size * sizes.pairs)),
      queries_(kept || queries_are_s(sizes) ? s_ : workspace.take(chunk_size * sizes.query_numbers())),
      w_(kept ? nullptr : workspace.take(chunk_size)),
      carry_(nullptr),
      scratch_(nullptr) {
  if (sizes.positions == Positions::causal) {
    carry_ = workspace.take(sizes.pairs);
    scratch_ = workspace.take(prefix_scratch(chunk_size, sizes.pairs));
  }
}

Chunk SampleProducer::form(const Samples& data, std::int64_t first, double* into, cudaStream_t stream) {
  const Sizes& sizes = data.sizes;
  Chunk chunk{first, std::min(chunk_size_, sizes.samples() - first), s_, queries_, w_};
  if (into != nullptr) chunk = kept_samples(sizes, into, first, chunk_size_);
  auto* const s = const_cast<double*>(chunk.s);
  auto* const queries = const_cast<double*>(chunk.queries);
  if (sizes.positions == Positions::causal) {
    prefix_moments(data.tokens, pair_list(data), first, chunk.count, carry_, scratch_, s, stream);
  } else {
    second_moments(data.tokens, pair_list(data), first, chunk.count, s, stream);
  }
  if (!sizes.all()) {
    gather_queries(data.tokens, sizes.positions, data.chosen_queries, sizes.queries, first, chunk.count, queries,
                   stream);
  } else if (!queries_are_s(sizes)) {
    second_moments(data.tokens, query_pair_list(data), first, chunk.count, queries, stream);
  }
  gather_weights(data.tokens, sizes.positions, data.weights, first, chunk.count, const_cast<double*>(chunk.w), stream);
  return chunk;
}

Chunk kept_samples(const Sizes& sizes, const double* kept, std::int64_t first, std::int64_t chunk_size) {
  const double* const s = kept;
  const double* const queries = queries_are_s(sizes) ? s : s + sizes.samples() * sizes.pairs;
  const double* const w = kept + kept_doubles(sizes) - sizes.samples();
  return {first, std::min(chunk_size, sizes.samples() - first), s + first * sizes.pairs,
          queries + first * sizes.query_numbers(), w + first};
}

}  // namespace linattn::cuda
