// The two factors of heads, V and Q, beside small coefficients: one from the other, and their normal form.
#pragma once

#include <cstdint>

#include "../common/index.hpp"
#include "small_matrices.hpp"

namespace linattn {

// Coefficients by pairs, E[(j,k)] (n x k): n entries for the factor F that is sought first, k for the other, G:
//
//   E[(j,k)] = sum_h F_h[j] G_h[k]' + F_h[k] G_h[j]'         F_h (d x n), G_h (d x k);  the diagonal counts once
//
// (F_h, G_h) = (V_h', Q_h), or (Q_h, V_h') with E transposed.
struct Coefficients {
  std::int64_t d, n, k;
  Matrix entries;  // pairs x (n k)

  double* at(std::int64_t i, std::int64_t j) { return entries[pair_of(i, j)]; }
  const double* at(std::int64_t i, std::int64_t j) const { return entries[pair_of(i, j)]; }
  std::int64_t pair_of(std::int64_t i, std::int64_t j) const {
    return i <= j ? pair_index(i, j, d) : pair_index(j, i, d);
  }

  Coefficients transposed() const;
};

// Heads: F is H x (d n), G is H x (d k).
struct Factors {
  Matrix F, G;
};

// E - E(F, G).
Coefficients remainder(const Coefficients& E, const Factors& heads);

// The factor G that is best beside F, by least squares; false where F does not determine it.
bool complete(const Coefficients& E, Factors& heads);

// Heads whose sum of F_h (x) G_h is the same, and an SVD; those that repeat are merged. See normal_form in heads.py.
Factors in_normal_form(const Factors& heads, bool one_output);

// V_h of F_h = V_h', with the first of its largest entries positive; the signs of G_h follow.
Matrix with_signs(Factors& heads, std::int64_t d);

}  // namespace linattn
