// Cholesky factorisation and triangular systems, in blocks, with our own kernels and threads.
//
//   A = L L'    L_JJ L_JJ' =  A_JJ - sum over K < J of L_JK L_JK'
//               L_IJ       = (A_IJ - sum over K < J of L_IK L_JK') L_JJ'^-1
//
// A LAPACK would do, but the order in which it sums, and so its last bits, depend on the number of its threads; and its
// threads keep their processors busy while they wait. Here all divisions depend on sizes alone.
//
// Every entry is its sum, in some order and with fused multiply-adds where the processor has them, times the reciprocal
// of a pivot that was rounded once: the assumptions of docs/certificate.md, section 2.
#pragma once

#include <cstdint>

#include "../common/monitor.hpp"
#include "../kernels/table.hpp"

namespace linattn {

// Columns of a block of L (n x n). The factorisation holds the rows below a block packed twice, beside the matrix.
std::int64_t block_columns(std::int64_t n);

// L in the lower triangle of a symmetric matrix (n x n, row-major), of which only that triangle is read. What is above
// the diagonal is undefined afterwards. Returns 0, or the number, from 1 on, of the first pivot that is not positive.
// Same bits for every number of threads. monitor(columns done) is called between blocks.
std::int64_t factor_cholesky(const Kernels& kernels, double* matrix, std::int64_t n, int threads,
                             const Monitor& monitor);

// The lower triangle of a symmetric matrix (n x n, row-major) becomes that of A - X X', with X (n x columns,
// row-major): what is left of a matrix whose first columns have been factorised elsewhere. Same bits for every number
// of threads.
void subtract_square(const Kernels& kernels, const double* X, std::int64_t columns, double* matrix, std::int64_t n,
                     int threads, const Monitor& monitor);

// Each of `count` rows b (n) becomes x with L x = b, or L'x = b; factor is n x n, row-major, read below the diagonal.
// Same bits for every number of threads.
enum class Side { lower, transposed };
void solve_triangular(const Kernels& kernels, const double* factor, std::int64_t n, Side side, double* rows,
                      std::int64_t count, int threads, const Monitor& monitor);

}  // namespace linattn
