// Whether a Gram is more than it has lost to rounding and a multiple of I: the factorisation of docs/certificate.md.
//
//   A = D (G - lost diag(m) - tau I) D - theta I      theta = backward tr + margin
//
// A Cholesky factorisation that runs to completion proves it; of many features by halves, in half the memory. What
// bounds roundings is the caller's (certificate/lower_bound.py); the arithmetic is here, so that a small proof is one
// call.
#pragma once

#include "../common/monitor.hpp"
#include "../kernels/table.hpp"
#include "normal_matrix.hpp"

namespace linattn {

struct Shift {
  double lost;      // of a magnitude, by rounding
  double tau;       // the multiple of I
  double rounding;  // what the shift is multiplied with, for its own roundings
  double backward;  // of a trace, by rounding in the factorisation
  double margin;    // for roundings of the scaled diagonal, which is in [1/2, 2]
};

// G's diagonal (p) and the magnitudes m (p). False where a number is not finite. Same answer for every number of
// threads. monitor(columns done) is called between blocks.
bool exceeds(const Kernels& kernels, const CompactGram& gram, const double* diagonal, const double* magnitudes,
             const Shift& shift, int threads, const Monitor& monitor);

}  // namespace linattn
