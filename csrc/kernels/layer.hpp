// The layer itself, sample by sample: small matrices times rows of samples.

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

template <int V>
void apply_columns(const double* matrix, std::int64_t rows, std::int64_t columns, const double* in,
                   std::int64_t width, double* out) {
  std::int64_t i = 0;
  for (; i + 3 <= rows; i += 3) apply_tile<3, V>(matrix + i * columns, columns, in, width, out + i * width);
  for (; i < rows; ++i) apply_tile<1, V>(matrix + i * columns, columns, in, width, out + i * width);
}

inline void apply(const double* matrix, std::int64_t rows, std::int64_t columns, const double* in, std::int64_t width,
                  double* out) {
  if (columns == 0) {  // no heads
    for (std::int64_t i = 0; i < rows * width; ++i) out[i] = 0.0;
    return;
  }
  std::int64_t lane = 0;
  for (; lane + 4 * lanes <= width; lane += 4 * lanes) {
    apply_columns<4>(matrix, rows, columns, in + lane, width, out + lane);
  }
  for (; lane < width; lane += lanes) apply_columns<1>(matrix, rows, columns, in + lane, width, out + lane);
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
