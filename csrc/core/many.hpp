// Many small least-squares problems of the same shapes, one after the other on each thread.
//
//   C_b = mean w y h' (Lambda_b + alpha_b I)^-1        Lambda_b = mean w h h' over the samples of problem b
//
// by a Cholesky factorisation of the equilibrated matrix, whose condition number is bounded (small_problem.hpp).
#pragma once

#include <cstdint>

#include "../common/monitor.hpp"
#include "../kernels/table.hpp"
#include "samples.hpp"

namespace linattn {

// Where the results go; one row a problem.
struct ManyFits {
  double* coefficients;  // problems x d_out x features; undefined where the condition is infinite
  double* energy;        // problems: mean of ||y||^2
  double* error;         // problems: mean of ||C h - y||^2, from the data where the difference of moments would cancel
  double* condition;     // problems: an upper bound; infinity where a pivot is not positive, or squares underflow
};

// The sequences are those of problem 0, then those of problem 1, ..; all of one length, in C order, without weights.
// Same bits for every number of threads. monitor(problems done) is called now and then. Throws NonFinite.
void solve_many(const Kernels& kernels, const Samples& all, std::int64_t problems, const double* alphas, int threads,
                const Monitor& monitor, const ManyFits& out);

}  // namespace linattn
