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

inline void apply_symmetric(const double* s, std::int64_t d, const double* in, std::int64_t count, std::int64_t width,
                            double* out) {
  for (std::int64_t h = 0; h < count; ++h) {
    const double* x = in + h * d * width;
    double* y = out + h * d * width;
    for (std::int64_t lane = 0; lane < width; lane += lanes) {
      for (std::int64_t j = 0; j < d; ++j) {
        Lanes total = {};
        for (std::int64_t k = 0; k < d; ++k) {
          const std::int64_t pair = j <= k ? pair_index(j, k, d) : pair_index(k, j, d);
          total += *vectors(s + pair * width + lane) * *vectors(x + k * width + lane);
        }
        *vectors(y + j * width + lane) = total;
      }
    }
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
