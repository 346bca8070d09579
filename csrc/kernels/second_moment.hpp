// s[(j,k)] += sum over tokens t of z_t[j] z_t[k]: S = Z'Z of every lane at once, upper triangle only.

// Rows j .. j + M against columns k .. k + N; entries left of the diagonal are computed and dropped.
template <int M, int N>
void second_moment_tile(const double* tokens, std::int64_t length, std::int64_t d, std::int64_t width,
                        std::int64_t j, std::int64_t k, double* s, std::int64_t stride) {
  Lanes sums[M][N] = {};
  for (std::int64_t t = 0; t < length; ++t) {
    const double* token = tokens + t * d * width;
    Lanes left[M];
    for (int a = 0; a < M; ++a) left[a] = *vectors(token + (j + a) * width);
    for (int b = 0; b < N; ++b) {
      const Lanes right = *vectors(token + (k + b) * width);
      for (int a = 0; a < M; ++a) sums[a][b] += left[a] * right;
    }
  }
  for (int a = 0; a < M; ++a) {
    for (int b = 0; b < N; ++b) {
      if (k + b >= j + a) *vectors(s + pair_index(j + a, k + b, d) * stride) += sums[a][b];
    }
  }
}

template <int M>
void second_moment_rows(const double* tokens, std::int64_t length, std::int64_t d, std::int64_t width,
                        std::int64_t j, double* s, std::int64_t stride) {
  std::int64_t k = j;
  for (; k + 4 <= d; k += 4) second_moment_tile<M, 4>(tokens, length, d, width, j, k, s, stride);
  for (; k < d; ++k) second_moment_tile<M, 1>(tokens, length, d, width, j, k, s, stride);
}

inline void second_moment(const double* tokens, std::int64_t length, std::int64_t d, std::int64_t width, double* s,
                          std::int64_t stride) {
  for (std::int64_t lane = 0; lane < width; lane += lanes) {
    std::int64_t j = 0;
    for (; j + 3 <= d; j += 3) second_moment_rows<3>(tokens + lane, length, d, width, j, s + lane, stride);
    for (; j < d; ++j) second_moment_rows<1>(tokens + lane, length, d, width, j, s + lane, stride);
  }
}
