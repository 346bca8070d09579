// What the normal matrix of a softmax attention layer is made of
// (python/linattn_fast/softmax/descent/normal_matrix.py): sums over queries with a token x in R^d, the tokens A in R^p
// that its heads read, and a matrix G (d_out x p),
//
//   squares   [(u,v), (l,m)] = sum (G'G)_uv x_l x_m       pair_count(p) x pair_count(d)
//   cross     [(r,l), (a,u)] = sum A_r x_l G_au           p d x d_out p
//
// Both are matrix products with the queries as inner dimension. G'G is to a query what S is to a sequence of d_out
// tokens, and is formed like it; the pair products are formed while packing and never stored.
#pragma once

#include <cstdint>

#include "../common/monitor.hpp"
#include "../kernels/table.hpp"

namespace linattn {

struct Queries {
  const double* x;  // count x d
  const double* A;  // count x p
  const double* G;  // count x d_out x p
  std::int64_t count, d, p, d_out;
};

// Adds to `squares` and `cross`. Same bits for every number of threads.
void add_query_sums(const Kernels& kernels, const Queries& queries, int threads, const Monitor& monitor,
                    double* squares, double* cross);

}  // namespace linattn
