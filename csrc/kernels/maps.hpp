// Coefficients times samples: maps[i][k] = sum over pairs u of matrix[i][u] s[u][k], with s packed in panels as the
// matrix product wants it (product.hpp), so that one copy of s serves this product and its transpose.

// Register tile: map_rows x map_vectors vectors of sums, as many as the tile of the matrix product has.
constexpr int map_vectors = static_cast<int>(least(4, sample_quantum / lanes));
constexpr int map_rows = LINATTN_TILE_VECTORS * LINATTN_TILE_COLUMNS / map_vectors;
// Pairs at a time: 128 rows of map_vectors vectors are 16 KiB, half of L1.
constexpr std::int64_t map_pairs = 128;

// out[i] += matrix[i] s for M rows, with s (pairs rows of map_vectors vectors) side by side in memory.
template <int M>
void map_tile(std::int64_t m, const double* matrix, std::int64_t columns, const Lanes* s, std::int64_t pairs,
              std::int64_t samples, double* out) {
  if constexpr (M > 1) {
    if (m < M) return map_tile<M - 1>(m, matrix, columns, s, pairs, samples, out);
  }
  Lanes sums[M][map_vectors];
  clear(sums);
  do {
    for (int i = 0; i < M; ++i) {
      const double entry = matrix[i * columns];
      for (int v = 0; v < map_vectors; ++v) sums[i][v] += entry * s[v];
    }
    s += map_vectors;
    ++matrix;
  } while (--pairs > 0);
  for (int i = 0; i < M; ++i) {
    for (int v = 0; v < map_vectors; ++v) vectors(out + i * samples)[v] += sums[i][v];
  }
}

// Rows first .. first + count of packed s, vectors v .. v + map_vectors: from numbers of one sample side by side to numbers
// of one pair. `first` and `count` are whole panels, but at the end.
inline void unpack_stripe(const double* packed, std::int64_t pairs, std::int64_t samples, std::int64_t first,
                          std::int64_t count, std::int64_t v, Lanes* out) {
  for (std::int64_t u = first; u < first + count; u += tile_columns) {
    const std::int64_t width = least(tile_columns, pairs - u);
    for (int k = 0; k < map_vectors; ++k) {
      const double* from = packed + u * samples + (v + k) * lanes * width;
      for (std::int64_t j = 0; j < width; j += lanes) {
        Lanes square[lanes];
        for (int i = 0; i < lanes; ++i) square[i] = load(from + i * width + j);  // past a row's end where j is near it
        transpose(square);
        for (std::int64_t i = 0; i < least(lanes, width - j); ++i) {
          out[(u - first + j + i) * map_vectors + k] = square[i];
        }
      }
    }
  }
}

inline void apply_packed(const double* matrix, std::int64_t rows, const double* packed, std::int64_t pairs,
                         std::int64_t samples, double* out) {
  constexpr std::int64_t at_once = map_pairs / tile_columns * tile_columns;
  Lanes stripe[at_once * map_vectors];
  for (std::int64_t i = 0; i < rows * samples; ++i) out[i] = 0.0;
  for (std::int64_t u = 0; u < pairs; u += at_once) {
    const std::int64_t count = least(at_once, pairs - u);
    for (std::int64_t v = 0; v < samples / lanes; v += map_vectors) {
      unpack_stripe(packed, pairs, samples, u, count, v, stripe);
      for (std::int64_t i = 0; i < rows; i += map_rows) {
        map_tile<map_rows>(least(map_rows, rows - i), matrix + i * pairs + u, pairs, stripe, count, samples,
                           out + i * samples + v * lanes);
      }
    }
  }
}
