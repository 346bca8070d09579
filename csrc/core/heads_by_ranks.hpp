// Heads that ranks give, in one call: what python/linattn_fast/heads/ranks.py and span.py do step by step, for
// coefficients so small that the calls of numpy would take longer than their arithmetic.
//
//   M(x) = sum_h (V_h x) (Q_h' x)'           d_out x d    rank                         <= H
//   B(u,c) = sum_h sym (V_h' u) (Q_h c)'     d x d        eigenvalues of either sign   <= H
//
// Those two modules have the mathematics. This one gives an answer only where ranks show that no fewer heads are
// possible and the heads that linear algebra gives reproduce the coefficients to rounding, which is checked.
#pragma once

#include <cstdint>
#include <optional>

#include "small_matrices.hpp"

namespace linattn {

struct RankQuestion {
  const double* coefficients;  // d_out x pairs of d x d
  std::int64_t d_out, d;
  const double* points;   // available x d: unit vectors, x and c
  const double* outputs;  // available x d_out: unit vectors u
  std::int64_t available;
  std::int64_t squares, forms;  // points at which M(x) and B(u,c) are formed
  double tolerance;             // residual, relative to ||C||, up to which C counts as reproduced
  double rounding;              // error of singular values and eigenvalues, relative to ||C||
  double negligible;            // part of it that decompositions may neglect
  std::int64_t fewer_than;      // heads, or they are not wanted
};

struct RankAnswer {
  Matrix V, Q;      // heads in normal form: H x (d_out d), H x (d d)
  double residual;  // ||C(V, Q) - C|| / ||C||
  std::int64_t at_least;
  double fewer_leave;  // relative residual that one head fewer leaves at the least
};

// None where the coefficients are zero, or the answer needs more than ranks.
std::optional<RankAnswer> heads_by_ranks(const RankQuestion& question);

}  // namespace linattn
