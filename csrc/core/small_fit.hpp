// A small problem from tokens to coefficients and a proof, on the calling thread:
//
//   G = sum w h h'    S = D G D    A = S + alpha W D^2 = U'U        D = diag(2^k), the diagonal of A in [1/2, 2)
//
//   coefficients   C' = D A^-1 D sum w h y', corrected by residuals on the data until a step is below sqrt(eps)
//   lambda_min     a Ritz value of A^-1, then inverse iteration with the factor of the proof
//   proof          Cholesky runs to completion on S less rounding and less tau D^2 (shifted_gram.hpp)
//
// It does what the Python of solvers/cholesky.py, solvers/accuracy.py and certificate/part_proof.py does step by step
// for problems of any size, and leaves every problem that is not plain sailing to them. What bounds roundings is the
// caller's, here too.
#pragma once

#include <array>
#include <cstdint>

#include "../kernels/table.hpp"
#include "samples.hpp"

namespace linattn {

// What roundings may have done to a problem of such sizes.
struct SmallLimits {
  double level;      // to an eigenvalue of A, relative to the largest
  double cancelled;  // mean square of a feature up to which it may be rounding, relative to that of its summands
  double ridge;      // largest condition number that a ridge may leave
  double lost;       // of a magnitude, by rounding in G
  double rounding;   // what a shift is multiplied with, for its own roundings
  double backward;   // of a trace, by rounding in the factorisation
  double margin;     // for roundings of the scaled diagonal
};

constexpr std::int64_t most_corrections = 8;

// What was found. A bound on the error of C rests on the numbers from `largest_summand` to `largest_scale`, in units in
// which features have a mean square of about one: D sqrt(W) in the place of D.
struct SmallFit {
  bool safe = false;  // else nothing is known
  double condition = 0, mean_target = 0, mean_error = 0;
  std::array<double, most_corrections> steps = {};
  std::int64_t corrections = 0;
  double largest_summand = 0;        // root mean square of what a feature is summed from
  double size = 0, scaled_size = 0;  // of C, and of C / D
  double largest_scale = 0;
  double smallest = 0, largest = 0;  // eigenvalues of Lambda = G / W
  double tau = 0, fraction = 0;      // G >= tau I is proved, and what part of an estimate of lambda_min that is
  double seconds[4] = {};            // for sums, for solving, for corrections and for the proof
};

// All features, positions last or causal, and targets. C (d_out x p). Throws NonFinite.
SmallFit fit_small(const Kernels& kernels, const Samples& data, double weight, double alpha, const SmallLimits& limits,
                   bool certify, double* C);

}  // namespace linattn
