// Coefficients times samples: maps[i][k] = sum over pairs u of matrix[i][u] s[u][k], with s packed in panels as the
// matrix product wants it (product.hpp), so that one copy of s serves this product and its transpose.
//
// A tile is that of the matrix product with other sums: vectors of rows of the matrix times single numbers of s. Those
// of one sample lie side by side for the pairs of a panel, so a tile reads s as it lies in memory, too.

// Register tile: vectors of rows x samples, which divide sample_quantum. 3 x 8 with 32 registers, 3 x 4 with 16.
constexpr int map_vectors = 3;
constexpr int map_samples = LINATTN_TILE_VECTORS * LINATTN_TILE_COLUMNS >= 24 ? 8 : 4;
// Most pairs at a time: 120 of 3 vectors are at most 23 KiB, which stay in L1 while the samples pass by.
constexpr std::int64_t map_pairs = 120;

// Rows (a, l) of coefficients[a][u][l], as left factor: panels of map_vectors vectors of rows, pair after pair; the
// last panel is as narrow as what is left, rounded up to a vector.
inline void pack_matrix(const double* coefficients, std::int64_t outputs, std::int64_t pairs, std::int64_t queries,
                        double* out) {
  const std::int64_t rows = outputs * queries;
  for (std::int64_t first = 0; first < rows; first += map_vectors * lanes) {
    const std::int64_t width = least(map_vectors * lanes, round_up(rows - first, lanes));
    for (std::int64_t i = 0; i < width; ++i) {
      const std::int64_t a = (first + i) / queries, l = (first + i) % queries;
      const double* const from = coefficients + a * pairs * queries + l;
      double* const to = out + first * pairs + i;
      for (std::int64_t u = 0; u < pairs; ++u) to[u * width] = first + i < rows ? from[u * queries] : 0.0;
    }
  }
}

// sums[i][j] += sum over the `width` pairs of a panel of a[u][i] s[j][u].
template <int M>
inline void add_panel(const Lanes* a, const double* s, std::int64_t width, Lanes (&sums)[M][map_samples]) {
  for (std::int64_t u = 0; u < width; ++u, a += M) {
    for (int j = 0; j < map_samples; ++j) {
      const double entry = s[j * width + u];
      for (int i = 0; i < M; ++i) sums[i][j] += a[i] * entry;
    }
  }
}

// M vectors of rows against map_samples samples, over `pairs` pairs; s begins at the first sample of the first panel.
template <int M>
void map_tile(std::int64_t m, const double* a, const double* s, std::int64_t k, std::int64_t pairs,
              std::int64_t samples, const TileTarget& to) {
  if constexpr (M > 1) {
    if (m < M) return map_tile<M - 1>(m, a, s, k, pairs, samples, to);
  }
  Lanes sums[M][map_samples];
  clear(sums);
  do {
    if (pairs >= tile_columns) {
      const double* const from = s + k * tile_columns;
      // the samples of the next tile: panels are too far apart for the processor to see where this leads
      for (int j = 0; j < map_samples; ++j) __builtin_prefetch(from + (map_samples + j) * tile_columns);
      add_panel<M>(vectors(a), from, tile_columns, sums);
    } else {
      add_panel<M>(vectors(a), s + k * pairs, pairs, sums);
    }
    a += tile_columns * M * lanes;
    s += tile_columns * samples;
    pairs -= tile_columns;
  } while (pairs > 0);
  for (int i = 0; i < M; ++i) add_sums<map_samples>(sums[i], to, i * lanes);
}

inline void apply_packed(const double* matrix, std::int64_t rows, const double* packed, std::int64_t pairs,
                         std::int64_t samples, double* out) {
  constexpr std::int64_t panel = map_vectors * lanes;
  const std::int64_t parts = (pairs + map_pairs - 1) / map_pairs;
  const std::int64_t at_once = round_up((pairs + parts - 1) / parts, tile_columns);  // parts of about the same size
  for (std::int64_t i = 0; i < rows * samples; ++i) out[i] = 0.0;
  for (std::int64_t u = 0; u < pairs; u += at_once) {
    for (std::int64_t i = 0; i < rows; i += panel) {
      const std::int64_t in_panel = least(panel, rows - i), m = round_up(in_panel, lanes) / lanes;
      double* targets[panel];
      for (std::int64_t j = 0; j < in_panel; ++j) targets[j] = out + (i + j) * samples;
      for (std::int64_t k = 0; k < samples; k += map_samples) {
        map_tile<map_vectors>(m, matrix + i * pairs + u * m * lanes, packed + u * samples, k, least(at_once, pairs - u),
                              samples, TileTarget{targets, in_panel, k, nullptr, nullptr});
      }
    }
  }
}
