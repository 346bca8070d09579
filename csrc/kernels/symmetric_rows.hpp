// Symmetric matrices of some dozens of rows with all their entries, in rows as in small_system.hpp, so that a product
// with a vector is a sum of rows. What is in the columns past n, and in the vectors' entries there, is zero.

// out (stride doubles) = M x.
inline void symmetric_times(const double* rows, std::int64_t n, std::int64_t stride, const double* x, double* out) {
  each_piece(0, stride, [&](std::int64_t column, auto piece) LINATTN_INLINE_LAMBDA {
    constexpr int count = decltype(piece)::count;
    Lanes sums[count];
    for (int v = 0; v < count; ++v) sums[v] = Lanes{};
    subtract_rows<count>(x, 1, rows, stride, 0, n, column, sums);
    for (int v = 0; v < count; ++v) vectors(out + column)[v] = -sums[v];
  });
}

// out = A^-1 = U^-1 U'^-1, whose row i is the sum over k >= i of U^-1[i][k] times column k of U^-1. Returns its largest
// row sum of absolute values. `turned`, as large, gets these columns as rows, which end with their column k.
inline double inverse_from_factor(const double* inverse, std::int64_t n, std::int64_t stride, double* turned,
                                  double* out) {
  for (std::int64_t k = 0; k < n; ++k) {
    double* const row = turned + k * stride;
    for (std::int64_t i = 0; i <= k; ++i) row[i] = inverse[i * stride + k];
    for (std::int64_t i = k + 1; i < stride; ++i) row[i] = 0;
  }
  double largest = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    Lanes sizes = {};
    each_piece(0, stride, [&](std::int64_t column, auto piece) LINATTN_INLINE_LAMBDA {
      constexpr int count = decltype(piece)::count;
      Lanes sums[count];
      for (int v = 0; v < count; ++v) sums[v] = Lanes{};
      subtract_rows<count>(inverse + i * stride, 1, turned, stride, i > column ? i : column, n, column, sums);
      for (int v = 0; v < count; ++v) {
        vectors(out + i * stride + column)[v] = -sums[v];
        for (int lane = 0; lane < lanes; ++lane) sizes[lane] += __builtin_fabs(sums[v][lane]);
      }
    });
    double sum = 0;
    for (int lane = 0; lane < lanes; ++lane) sum += sizes[lane];
    largest = sum > largest || sum != sum ? sum : largest;
  }
  return largest;
}
