// Samples of several problems, one in each lane: rows of `stride` doubles hold sample after sample, a vector of
// problems each.

// s[i] = sums of z[pairs[i].x] * z[pairs[i].y] over the tokens of a sequence up to each, for N pairs and `count`
// tokens. carry has the sums so far; sequences of `length` tokens follow each other, and `position` tokens of the first
// have passed.
template <int N>
void prefix_pairs(const double* z, std::int64_t count, std::int64_t stride, std::int64_t length, std::int64_t position,
                  const RowPair* pairs, double* carry, double* s) {
  Lanes sums[N];
  for (int i = 0; i < N; ++i) sums[i] = vectors(carry)[i];
  for (std::int64_t t = 0; t < count; ++t, ++position) {
    if (position == length) {
      position = 0;
      for (int i = 0; i < N; ++i) sums[i] = Lanes{};
    }
    for (int i = 0; i < N; ++i) {
      sums[i] += vectors(z + pairs[i].x * stride)[t] * vectors(z + pairs[i].y * stride)[t];
      vectors(s + i * stride)[t] = sums[i];
    }
  }
  for (int i = 0; i < N; ++i) vectors(carry)[i] = sums[i];
}

inline void lane_prefixes(const double* z, std::int64_t count, std::int64_t stride, std::int64_t length,
                          std::int64_t position, const RowPair* pairs, std::int64_t pair_total, double* carry,
                          double* s) {
  std::int64_t i = 0;
  for (; i + 4 <= pair_total; i += 4) {
    prefix_pairs<4>(z, count, stride, length, position, pairs + i, carry + i * lanes, s + i * stride);
  }
  for (; i < pair_total; ++i) {
    prefix_pairs<1>(z, count, stride, length, position, pairs + i, carry + i * lanes, s + i * stride);
  }
}

// total += sum of (y - sum over u, l of C[u][l] s_u z_l)^2 over N samples from `first` on.
template <int N>
LINATTN_INLINE void add_squared_errors(const double* C, const double* s, std::int64_t q, const double* z,
                                       std::int64_t k, const double* y, std::int64_t stride, std::int64_t first,
                                       Lanes& total) {
  Lanes error[N];
  for (int i = 0; i < N; ++i) error[i] = vectors(y)[first + i];
  for (std::int64_t l = 0; l < k; ++l) {
    Lanes sums[N];
    for (int i = 0; i < N; ++i) sums[i] = Lanes{};
    for (std::int64_t u = 0; u < q; ++u) {
      const Lanes factor = vectors(C)[u * k + l];
      for (int i = 0; i < N; ++i) sums[i] += factor * vectors(s + u * stride)[first + i];
    }
    for (int i = 0; i < N; ++i) error[i] -= sums[i] * vectors(z + l * stride)[first + i];
  }
  for (int i = 0; i < N; ++i) total += error[i] * error[i];
}

inline void squared_error_lanes(const double* C, const double* s, std::int64_t q, const double* z, std::int64_t k,
                                const double* y, std::int64_t stride, std::int64_t count, double* sum) {
  Lanes total = *vectors(sum);
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) add_squared_errors<8>(C, s, q, z, k, y, stride, i, total);
  for (; i < count; ++i) add_squared_errors<1>(C, s, q, z, k, y, stride, i, total);
  *vectors(sum) = total;
}

// out[i] = left[pairs[i].x] * right[pairs[i].y] for rows of `stride`, `count` vectors of each.
inline void multiply_row_pairs(const double* left, const double* right, const RowPair* pairs, std::int64_t rows,
                               std::int64_t count, std::int64_t stride, double* out) {
  for (std::int64_t i = 0; i < rows; ++i) {
    const Lanes *const x = vectors(left + pairs[i].x * stride), *const y = vectors(right + pairs[i].y * stride);
    Lanes* const product = vectors(out + i * stride);
    for (std::int64_t v = 0; v < count; ++v) product[v] = x[v] * y[v];
  }
}
