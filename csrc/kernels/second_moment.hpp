// Moments of the tokens of each sequence, and of each prefix.

// out[(j,k)] += sum over t of x_t[j] y_t[k], lane by lane, rows j .. j + M against columns k .. k + N. With Triangular,
// x is y, out is the upper triangle, and entries left of the diagonal are computed and dropped.
template <int M, int N, bool Triangular>
void moment_tile(const double* x, const double* y, std::int64_t length, std::int64_t x_size, std::int64_t y_size,
                 std::int64_t width, std::int64_t j, std::int64_t k, double* out, std::int64_t stride) {
  Lanes sums[M][N] = {};
  for (std::int64_t t = 0; t < length; ++t) {
    const double* left_token = x + (t * x_size + j) * width;
    const double* right_token = y + (t * y_size + k) * width;
    Lanes left[M];
    for (int a = 0; a < M; ++a) left[a] = *vectors(left_token + a * width);
    for (int b = 0; b < N; ++b) {
      const Lanes right = *vectors(right_token + b * width);
      for (int a = 0; a < M; ++a) sums[a][b] += left[a] * right;
    }
  }
  for (int a = 0; a < M; ++a) {
    for (int b = 0; b < N; ++b) {
      if (Triangular && k + b < j + a) continue;
      const std::int64_t entry = Triangular ? pair_index(j + a, k + b, y_size) : (j + a) * y_size + k + b;
      *vectors(out + entry * stride) += sums[a][b];
    }
  }
}

template <int M, bool Triangular>
void moment_rows(const double* x, const double* y, std::int64_t length, std::int64_t x_size, std::int64_t y_size,
                 std::int64_t width, std::int64_t j, double* out, std::int64_t stride) {
  std::int64_t k = Triangular ? j : 0;
  for (; k + 4 <= y_size; k += 4) {
    moment_tile<M, 4, Triangular>(x, y, length, x_size, y_size, width, j, k, out, stride);
  }
  for (; k < y_size; ++k) {
    moment_tile<M, 1, Triangular>(x, y, length, x_size, y_size, width, j, k, out, stride);
  }
}

template <bool Triangular>
void moment(const double* x, const double* y, std::int64_t length, std::int64_t x_size, std::int64_t y_size,
            std::int64_t width, double* out, std::int64_t stride) {
  for (std::int64_t lane = 0; lane < width; lane += lanes) {
    std::int64_t j = 0;
    for (; j + 3 <= x_size; j += 3) {
      moment_rows<3, Triangular>(x + lane, y + lane, length, x_size, y_size, width, j, out + lane, stride);
    }
    for (; j < x_size; ++j) {
      moment_rows<1, Triangular>(x + lane, y + lane, length, x_size, y_size, width, j, out + lane, stride);
    }
  }
}

inline void second_moment(const double* tokens, std::int64_t length, std::int64_t d, std::int64_t width, double* s,
                          std::int64_t stride) {
  moment<true>(tokens, tokens, length, d, d, width, s, stride);
}

inline void cross_moment(const double* targets, const double* tokens, std::int64_t length, std::int64_t d_out,
                         std::int64_t d, std::int64_t width, double* out, std::int64_t stride) {
  moment<false>(targets, tokens, length, d_out, d, width, out, stride);
}

// Rows k .. k + N of the pairs (j, .): N running sums side by side hide the latency of each addition.
template <int N>
void prefix_rows(const double* z, std::int64_t stride, std::int64_t j, std::int64_t k, std::int64_t first,
                 std::int64_t last, double* s) {
  double sums[N] = {};
  const double* left = z + j * stride;
  const double* right = z + k * stride;
  for (std::int64_t i = first; i < last; ++i) {
    for (int a = 0; a < N; ++a) {
      sums[a] += left[i] * right[a * stride + i];
      s[a * stride + i] = sums[a];
    }
  }
}

// s[(j,k)][i] = sum over columns first .. i of z[j] z[k]: S of every prefix of tokens that lie side by side.
inline void prefix_moments(const double* z, std::int64_t d, std::int64_t stride, std::int64_t first,
                           std::int64_t last, double* s) {
  for (std::int64_t j = 0; j < d; ++j) {
    double* rows = s + pair_index(j, j, d) * stride;
    std::int64_t k = j;
    for (; k + 4 <= d; k += 4) prefix_rows<4>(z, stride, j, k, first, last, rows + (k - j) * stride);
    for (; k < d; ++k) prefix_rows<1>(z, stride, j, k, first, last, rows + (k - j) * stride);
  }
}
