// C += A B' with the samples as inner dimension: the Gram matrix and the cross moments.
//
// A and B come packed in panels of a few rows, interleaved vector by vector, so that the tile reads two streams from
// start to end. The rows are products of two others and are formed while packing; they are never stored elsewhere.

// packed[v][i] = row i of the panel, vector v; the last panel is as narrow as what is left.
template <typename Row>
void pack(const Row& row, std::int64_t rows, std::int64_t panel, std::int64_t samples, double* out) {
  const std::int64_t length = samples / lanes;
  for (std::int64_t first = 0; first < rows; first += panel) {
    const std::int64_t width = least(panel, rows - first);
    Lanes* packed = vectors(out + first * samples);
    for (std::int64_t i = 0; i < width; ++i) row(first + i, packed + i, width, length);
  }
}

inline void pack_products(const double* left, const double* right, std::int64_t stride, const RowPair* pairs,
                          std::int64_t rows, std::int64_t panel, std::int64_t samples, double* out) {
  const auto product = [=](std::int64_t i, Lanes* packed, std::int64_t step, std::int64_t length) {
    const Lanes* x = vectors(left + pairs[i].x * stride);
    const Lanes* y = vectors(right + pairs[i].y * stride);
    for (std::int64_t v = 0; v < length; ++v) packed[v * step] = x[v] * y[v];
  };
  pack(product, rows, panel, samples, out);
}

inline void pack_rows(const double* source, std::int64_t stride, std::int64_t rows, std::int64_t panel,
                      std::int64_t samples, double* out) {
  const auto copy = [=](std::int64_t i, Lanes* packed, std::int64_t step, std::int64_t length) {
    const Lanes* x = vectors(source + i * stride);
    for (std::int64_t v = 0; v < length; ++v) packed[v * step] = x[v];
  };
  pack(copy, rows, panel, samples, out);
}

// M x N vectors of partial sums stay in registers for the whole block of samples.
template <int M, int N>
void product_tile(const Lanes* __restrict a, const Lanes* __restrict b, std::int64_t length, double* __restrict c,
                  std::int64_t c_stride) {
  Lanes sums[M][N] = {};
  for (std::int64_t v = 0; v < length; ++v) {
    Lanes left[M];
    for (int i = 0; i < M; ++i) left[i] = a[i];
    for (int j = 0; j < N; ++j) {
      const Lanes right = b[j];
      for (int i = 0; i < M; ++i) sums[i][j] += left[i] * right;
    }
    a += M;
    b += N;
  }
  for (int i = 0; i < M; ++i) {
    for (int j = 0; j < N; ++j) c[i * c_stride + j] += sum(sums[i][j]);
  }
}

// The tile of just the size that is left at an edge, so that no edge computes what nobody needs.
template <int M, int N>
void product_edge(std::int64_t m, std::int64_t n, const Lanes* a, const Lanes* b, std::int64_t length, double* c,
                  std::int64_t c_stride) {
  if (m == M && n == N) {
    product_tile<M, N>(a, b, length, c, c_stride);
  } else if (m == M) {
    if constexpr (N > 1) product_edge<M, N - 1>(m, n, a, b, length, c, c_stride);
  } else {
    if constexpr (M > 1) product_edge<M - 1, N>(m, n, a, b, length, c, c_stride);
  }
}

inline void multiply(const double* a, std::int64_t rows, const double* b, std::int64_t columns, std::int64_t samples,
                     double* c, std::int64_t c_stride) {
  for (std::int64_t j = 0; j < columns; j += LINATTN_TILE_COLUMNS) {
    const std::int64_t n = least(LINATTN_TILE_COLUMNS, columns - j);
    for (std::int64_t i = 0; i < rows; i += LINATTN_TILE_ROWS) {
      const std::int64_t m = least(LINATTN_TILE_ROWS, rows - i);
      product_edge<LINATTN_TILE_ROWS, LINATTN_TILE_COLUMNS>(m, n, vectors(a + i * samples), vectors(b + j * samples),
                                                            samples / lanes, c + i * c_stride + j, c_stride);
    }
  }
}
