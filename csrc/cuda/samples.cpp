#include "samples.hpp"

#include <algorithm>

#include "prefix_moments.hpp"
#include "queries.hpp"
#include "second_moments.hpp"

namespace linattn::cuda {

namespace {

constexpr std::int64_t chunk_doubles = std::int64_t{1} << 22, fewest_samples = 256, most_samples = 8192;

// Without a selection, S of the queries is s.
bool queries_are_s(const Sizes& sizes) { return sizes.all() && !sizes.selected; }

PairList pair_list(const Data& data) { return {data.chosen_pairs, nullptr, data.sizes.d, data.sizes.pairs}; }

PairList query_pair_list(const Data& data) {
  return {nullptr, data.chosen_queries, data.sizes.queries, pair_count(data.sizes.queries)};
}

}  // namespace

std::int64_t chunk_samples(const Sizes& sizes, std::int64_t numbers_per_sample) {
  const std::int64_t chunk = std::clamp(chunk_doubles / numbers_per_sample, fewest_samples, most_samples);
  return std::min(chunk / span_rows * span_rows, sizes.samples());
}

std::int64_t kept_doubles(const Sizes& sizes) {
  return sizes.samples() * (sizes.pairs + (queries_are_s(sizes) ? 0 : sizes.query_numbers()) + 1);
}

std::int64_t SampleProducer::numbers_per_sample(const Sizes& sizes, bool kept) {
  const std::int64_t own = sizes.pairs + (queries_are_s(sizes) ? 0 : sizes.query_numbers()) + 1;
  return (kept ? 0 : own) + (sizes.positions == Positions::causal ? sizes.pairs / span_rows + 1 : 0);
}

SampleProducer::SampleProducer(const Sizes& sizes, std::int64_t chunk, bool kept, Workspace& workspace)
    : chunk_(chunk),
      s_(kept ? nullptr : workspace.take(chunk * sizes.pairs)),
      queries_(kept || queries_are_s(sizes) ? s_ : workspace.take(chunk * sizes.query_numbers())),
      w_(kept ? nullptr : workspace.take(chunk)),
      carry_(nullptr),
      scratch_(nullptr) {
  if (sizes.positions == Positions::causal) {
    carry_ = workspace.take(sizes.pairs);
    scratch_ = workspace.take(prefix_scratch(chunk, sizes.pairs));
  }
}

Samples SampleProducer::form(const Data& data, std::int64_t first, double* into, cudaStream_t stream) {
  const Sizes& sizes = data.sizes;
  Samples samples{first, std::min(chunk_, sizes.samples() - first), s_, queries_, w_};
  if (into != nullptr) samples = kept_samples(sizes, into, first, chunk_);
  auto* const s = const_cast<double*>(samples.s);
  auto* const queries = const_cast<double*>(samples.queries);
  if (sizes.positions == Positions::causal) {
    prefix_moments(data.tokens, pair_list(data), first, samples.count, carry_, scratch_, s, stream);
  } else {
    second_moments(data.tokens, pair_list(data), first, samples.count, s, stream);
  }
  if (!sizes.all()) {
    gather_queries(data.tokens, sizes.positions, data.chosen_queries, sizes.queries, first, samples.count, queries,
                   stream);
  } else if (!queries_are_s(sizes)) {
    second_moments(data.tokens, query_pair_list(data), first, samples.count, queries, stream);
  }
  gather_weights(data.tokens, sizes.positions, data.weights, first, samples.count, const_cast<double*>(samples.w),
                 stream);
  return samples;
}

Samples kept_samples(const Sizes& sizes, const double* kept, std::int64_t first, std::int64_t chunk) {
  const double* const s = kept;
  const double* const queries = queries_are_s(sizes) ? s : s + sizes.samples() * sizes.pairs;
  const double* const w = kept + kept_doubles(sizes) - sizes.samples();
  return {first, std::min(chunk, sizes.samples() - first), s + first * sizes.pairs,
          queries + first * sizes.query_numbers(), w + first};
}

}  // namespace linattn::cuda
