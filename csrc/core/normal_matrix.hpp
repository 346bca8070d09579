// The dense matrix of normal equations, written out from its compact Gram and scaled in one pass.
//
//   A = D (G / W + ridge I) D    D = diag(2^k)
//
// Powers of two round nothing; G / W is one rounding, as in docs/certificate.md.
#pragma once

#include <cstdint>

namespace linattn {

// The distinct entries of sum w h h' (core/moments.hpp), with q pairs and k queries: p = q k.
struct CompactGram {
  const double* entries;
  std::int64_t pairs, queries;
  bool triples;  // a third moment of s

  std::int64_t features() const { return pairs * queries; }
  // Entry ((u, l), (v, m)), any order.
  double at(std::int64_t u, std::int64_t v, std::int64_t l, std::int64_t m) const;
};

// out[(u,l)] = sum w s_u^2 z_l^2, the diagonal.
void gram_diagonal(const CompactGram& gram, double* out);

// out[((j,k),l)] = sum w S_jj S_kk z_l^2 for all pairs of d coordinates: the entry (((j,j),l), ((k,k),l)).
void gram_magnitudes(const CompactGram& gram, std::int64_t d, double* out);

// Powers of two D with D^2 times sizes (n) in [1/2, 2]; 1 where a size is not positive.
void power_of_two_scale(const double* sizes, std::int64_t n, double* scale);

// A (p x p), both triangles; scale (p) is D, or null for I. Returns its largest row sum of absolute values.
double dense_gram(const CompactGram& gram, double weight, double ridge, const double* scale, int threads,
                  double* matrix);

// Pairs first .. last - 1, with all of their queries.
struct PairRange {
  std::int64_t first, last;

  std::int64_t count() const { return last - first; }
  bool has(std::int64_t u) const { return first <= u && u < last; }
};

// The block of A with these rows and columns; the row sums that are compared are those of the block.
double dense_gram_block(const CompactGram& gram, double weight, double ridge, const double* scale, PairRange rows,
                        PairRange columns, int threads, double* matrix);

}  // namespace linattn
