// Samples on the device, formed a chunk at a time.
//
//   last, causal   a sample is a query z with its S: s (pairs), z (queries), w
//   all            a sample is a sequence; the sum over its queries of z z' is S itself, so that S_lm, l <= m, of the
//                  queries stands where z would (the same memory as s where all features take part)
#pragma once

#include <cstdint>

#include "../common/positions.hpp"
#include "tokens.hpp"

namespace linattn::cuda {

// What sizes follow from; no pointers.
struct Sizes {
  Positions positions;
  std::int64_t count, rows, d, d_out, pairs, queries;
  bool selected;

  bool all() const { return positions == Positions::all; }
  // The Gram is the third moment of s, symmetric in all three.
  bool triples() const { return all() && !selected; }
  std::int64_t samples() const { return positions == Positions::causal ? rows : count; }
  std::int64_t features() const { return pairs * queries; }
  // Numbers a sample has in the place of z.
  std::int64_t query_numbers() const { return all() ? pair_count(queries) : queries; }
  std::int64_t gram_entries() const { return linattn::gram_entries(pairs, queries, triples()); }
};

// What sums are taken of, in the memory of a device: core/samples.hpp has the same for the CPU. Weights, and the choice
// of features, may be null.
struct Samples {
  Sizes sizes;
  Tokens tokens;
  Numbers targets;  // (rows or count) x d_out
  const double* weights;
  const std::int64_t *chosen_pairs, *chosen_queries;
};

// Consecutive samples in the form that the products take.
struct Chunk {
  std::int64_t first, count;
  const double* s;        // count x pairs
  const double* queries;  // count x query_numbers()
  const double* w;        // count
};

// Hands out memory; without any, it only counts, so that the same lines say what is needed and what is used for what.
class Workspace {
 public:
  explicit Workspace(double* memory = nullptr) : memory_(memory) {}

  double* take(std::int64_t doubles) {
    double* const start = memory_ == nullptr ? nullptr : memory_ + taken_;
    taken_ += doubles;
    return start;
  }
  std::int64_t bytes() const { return 8 * taken_; }

 private:
  double* memory_;
  std::int64_t taken_ = 0;
};

// Samples in a chunk when each has so many numbers in the workspace (common/slabs.hpp), whole spans of prefix_moments.
std::int64_t chunk_samples(const Sizes& sizes, std::int64_t numbers_per_sample);

// Doubles of all samples: s, then what stands for z, then w.
std::int64_t kept_doubles(const Sizes& sizes);

// Makes chunks in order. Memory for them is taken from the workspace unless they are kept elsewhere.
class SampleProducer {
 public:
  // Numbers that each sample of a chunk takes in the workspace.
  static std::int64_t numbers_per_sample(const Sizes& sizes, bool kept);

  SampleProducer(const Sizes& sizes, std::int64_t chunk_size, bool kept, Workspace& workspace);

  // Forms the samples of the chunk that starts with `first`, in the workspace or in `into` (kept_doubles()).
  Chunk form(const Samples& data, std::int64_t first, double* into, cudaStream_t stream);

 private:
  std::int64_t chunk_size_;
  double *s_, *queries_, *w_, *carry_, *scratch_;
};

// The chunk that starts with `first` of samples that were kept.
Chunk kept_samples(const Sizes& sizes, const double* kept, std::int64_t first, std::int64_t chunk_size);

}  // namespace linattn::cuda
