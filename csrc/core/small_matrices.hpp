// Decompositions of small matrices, on one thread, where a call of LAPACK would take longer than its arithmetic.
//
// Vectors are rows throughout, so that they lie in one piece.
#pragma once

#include <cstdint>
#include <vector>

namespace linattn {

// rows x columns, zero at first.
class Matrix {
 public:
  Matrix() = default;
  Matrix(std::int64_t rows, std::int64_t columns)
      : rows_(rows), columns_(columns), entries_(static_cast<std::size_t>(rows * columns)) {}
  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  std::int64_t size() const { return rows_ * columns_; }
  double* operator[](std::int64_t row) { return entries_.data() + row * columns_; }
  const double* operator[](std::int64_t row) const { return entries_.data() + row * columns_; }
  void keep_rows(std::int64_t first, std::int64_t count);

 private:
  std::int64_t rows_ = 0, columns_ = 0;
  std::vector<double> entries_;
};

double dot(const double* a, const double* b, std::int64_t n);
// The Frobenius norm of entries that are of a size of about one.
double norm(const Matrix& A);
// y += factor x.
void add_multiple(double factor, const double* x, std::int64_t n, double* y);

// An operand of a product, by its first entry and the steps from row to row and from column to column.
struct Strided {
  const double* entries;
  std::int64_t row, column = 1;
};

// out += A B for A (m x k), B (k x n) and out (m x n), both with contiguous rows.
void add_product(std::int64_t m, std::int64_t k, std::int64_t n, Strided A, Strided B, double* out, std::int64_t step);
Matrix product(const Matrix& A, const Matrix& B);

// A = left' right + what is dropped, of norm at most `drop`; left (r x m) has orthonormal rows, right is r x n.
struct Reduced {
  Matrix left, right;
};

// By Gram-Schmidt on the columns of A (m x n), the largest that is left first; at most `most` of them.
Reduced reduced(Matrix A, double drop, std::int64_t most);

// Rotates pairs of rows of A until all are orthogonal, and those of `along` with them; the longest first. Returns their
// lengths. With A = U diag(s) W' the rows become s W', and those of `along` = I become U' (one-sided Jacobi method).
std::vector<double> orthogonalise(Matrix& A, Matrix* along = nullptr);

// Eigenvalues of a symmetric K, the largest first; its rows become the eigenvectors.
std::vector<double> eigendecompose(Matrix& K);

// Overwrites the lower triangle of A with its Cholesky factor; false where a pivot is not positive.
bool factor_cholesky(Matrix& A);
// Overwrites X with (L L')^-1 X, for the lower triangle L of a factor.
void solve_cholesky(const Matrix& factor, Matrix& X);

// Overwrites X with A^-1 X, by elimination; A must not be singular.
void solve(Matrix A, Matrix& X);

}  // namespace linattn
