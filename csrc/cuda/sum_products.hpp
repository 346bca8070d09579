// The one matrix product with the samples as inner dimension. Everything that is summed over samples is of this form:
//
//   total[i, c] = sum_k w_k a[k, a_i] b[k, b_i] right[k, c]
//
//                      a, b            right            rows i = (a_i, b_i)
//   Gram               s, s            z z', or s       u <= v of the pairs
//   cross moment       y, z            s                output and query
//   adjoint            C h, z          s                output and query
//   Kronecker factor   s               s                pair
//   energy             y, y            1                output
//
// The products of the left factor are formed while a panel is put into shared memory, and exist nowhere else. Where the
// result has few tiles, samples are cut into slabs with sums of their own, which a second kernel adds in order: no
// atomic additions, so that the result always has the same bits.
#pragma once

#include <cstdint>

#include "platform.hpp"

namespace linattn::cuda {

// A row for each sample.
struct Factor {
  const double* values = nullptr;  // samples x stride; null: one column of ones
  std::int64_t stride = 0;
};

// Columns of a and b that make row i of the left factor.
enum class Rows {
  upper,   // the pair i of `inner`, a_i <= b_i
  grid,    // (i / inner, i % inner)
  same,    // (i, i)
  single,  // (i, 0)
};

// Where entry (i, c) of the result is.
enum class Places {
  matrix,     // i columns + c
  triples,    // of rows (u, v): triple_start(u, v) + c - v, where c >= v; entries below are not formed
  by_pair,    // of rows (a, l), l < inner: (a, c, l)
  symmetric,  // (i, c) and (c, i), formed once
  unpacked,   // of one row, c a pair (l, m) of `inner`: (l, m) and (m, l)
};

struct SumOfProducts {
  Factor a, b;
  const double* weights = nullptr;  // (samples); null: ones
  Factor right;
  Rows row_kind = Rows::single;
  Places places = Places::matrix;
  std::int64_t inner = 1;
  std::int64_t rows = 0, columns = 0, samples = 0;

  // Numbers of the result.
  std::int64_t entries() const;
  // Parts into which the samples are cut; depends on the sizes alone.
  std::int64_t slabs() const;
  std::int64_t samples_per_slab() const;
  // Doubles of memory for the slabs of this many samples or fewer; 0 where there is only one.
  std::int64_t slab_doubles() const { return most_slabs() > 1 ? most_slabs() * entries() : 0; }
  std::int64_t most_slabs() const;
};

// total += the sum, or total = the sum where `fresh`.
void add_products(const SumOfProducts& sum, bool fresh, double* slabs, double* total, cudaStream_t stream);

}  // namespace linattn::cuda
