// The layer itself, sample by sample: small matrices times rows of samples.

// Sums of a tile of 4 vectors, with those vectors, in the registers: 6 x 4 of 32, 3 x 4 of 16.
constexpr int apply_tile_rows = LINATTN_REGISTERS == 32 ? 6 : 3;

// M rows of the matrix against V vectors of samples; each matrix entry is broadcast once for V vectors.
template <int M, int V>
void apply_tile(const double* matrix, std::int64_t columns, const double* in, std::int64_t width, double* out) {
  Lanes sums[M][V];
  clear(sums);
  std::int64_t j = 0;
  do {
    Lanes x[V];
    for (int v = 0; v < V; ++v) x[v] = vectors(in + j * width)[v];
    for (int i = 0; i < M; ++i) {
      const double entry = matrix[i * columns + j];
      for (int v = 0; v < V; ++v) sums[i][v] += entry * x[v];
    }
  } while (++j < columns);
  for (int i = 0; i < M; ++i) {
    for (int v = 0; v < V; ++v) vectors(out + i * width)[v] = sums[i][v];
  }
}

// Rows in tiles of M, then a tile of just the size that is left.
template <int M, int V>
void apply_rows(const double* matrix, std::int64_t rows, std::int64_t columns, const double* in, std::int64_t width,
                double* out) {
  for (; rows >= M; rows -= M, matrix += M * columns, out += M * width) {
    apply_tile<M, V>(matrix, columns, in, width, out);
  }
  if constexpr (M > 1) {
    if (rows > 0) apply_rows<M - 1, V>(matrix, rows, columns, in, width, out);
  }
}

inline void apply(const double* matrix, std::int64_t rows, std::int64_t columns, const double* in, std::int64_t width,
                  double* out) {
  if (columns == 0) {  // no heads
    for (std::int64_t i = 0; i < rows * width; ++i) out[i] = 0.0;
    return;
  }
  std::int64_t lane = 0;
  for (; lane + 4 * lanes <= width; lane += 4 * lanes) {
    apply_rows<apply_tile_rows, 4>(matrix, rows, columns, in + lane, width, out + lane);
  }
  for (; lane < width; lane += lanes) {
    apply_rows<apply_tile_rows, 1>(matrix, rows, columns, in + lane, width, out + lane);
  }
}

// y[h][j] = sum_k S[j,k] x[h][k] for H heads and one vector of samples; each entry of S is read once for all of them.
template <int H>
void apply_symmetric_tile(const double* s, std::int64_t d, const double* x, std::int64_t width, double* y) {
  const std::int64_t head = d * width;
  for (std::int64_t j = 0; j < d; ++j) {
    Lanes sums[1][H];
    clear(sums);
    const double* entry = s + j * width;  // S[0,j], then S[1,j] .. S[j,j], S[j,j+1] ..
    for (std::int64_t k = 0; k < d; ++k) {
      const Lanes value = *vectors(entry);
      for (int h = 0; h < H; ++h) sums[0][h] += value * *vectors(x + h * head + k * width);
      entry += (k < j ? d - k - 1 : 1) * width;
    }
    for (int h = 0; h < H; ++h) *vectors(y + h * head + j * width) = sums[0][h];
  }
}

inline void apply_symmetric(const double* s, std::int64_t d, const double* in, std::int64_t count, std::int64_t width,
                            double* out) {
  const std::int64_t head = d * width;
  for (std::int64_t lane = 0; lane < width; lane += lanes) {
    std::int64_t h = 0;
    for (; h + 4 <= count; h += 4) {
      apply_symmetric_tile<4>(s + lane, d, in + h * head + lane, width, out + h * head + lane);
    }
    for (; h < count; ++h) apply_symmetric_tile<1>(s + lane, d, in + h * head + lane, width, out + h * head + lane);
  }
}

inline void contract(const double* matrix, std::int64_t rows, std::int64_t d, const double* z, std::int64_t width,
                     double* out) {
  for (std::int64_t a = 0; a < rows; ++a) {
    for (std::int64_t lane = 0; lane < width; lane += lanes) {
      Lanes total = {};
      for (std::int64_t l = 0; l < d; ++l) {
        total += *vectors(matrix + (a * d + l) * width + lane) * *vectors(z + l * width + lane);
      }
      *vectors(out + a * width + lane) = total;
    }
  }
}

inline void add_token(const double* z, std::int64_t d, std::int64_t width, double* s) {
  for (std::int64_t j = 0; j < d; ++j) {
    for (std::int64_t k = j; k < d; ++k, s += width) {
      for (std::int64_t lane = 0; lane < width; lane += lanes) {
        *vectors(s + lane) += *vectors(z + j * width + lane) * *vectors(z + k * width + lane);
      }
    }
  }
}

// The part of H heads, for one vector of samples.
template <int H>
void add_outer_tile(const double* left, const double* right, std::int64_t rows, std::int64_t columns,
                    std::int64_t width, double* out) {
  for (std::int64_t a = 0; a < rows; ++a) {
    Lanes factors[H];
    for (int h = 0; h < H; ++h) factors[h] = *vectors(left + (h * rows + a) * width);
    for (std::int64_t l = 0; l < columns; ++l, out += width) {
      Lanes total = *vectors(out);
      for (int h = 0; h < H; ++h) total += factors[h] * *vectors(right + (h * columns + l) * width);
      *vectors(out) = total;
    }
  }
}

inline void add_outer(const double* left, const double* right, std::int64_t heads, std::int64_t rows,
                      std::int64_t columns, std::int64_t width, double* out) {
  for (std::int64_t lane = 0; lane < width; lane += lanes) {
    std::int64_t h = 0;
    for (; h + 4 <= heads; h += 4) {
      add_outer_tile<4>(left + h * rows * width + lane, right + h * columns * width + lane, rows, columns, width,
                        out + lane);
    }
    for (; h < heads; ++h) {
      add_outer_tile<1>(left + h * rows * width + lane, right + h * columns * width + lane, rows, columns, width,
                        out + lane);
    }
  }
}
