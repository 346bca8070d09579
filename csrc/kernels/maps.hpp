// Coefficients times samples: maps[i][k] = sum over pairs u of matrix[i][u] s[u][k], with s packed in panels as the
// matrix product wants it (product.hpp), so that one copy of s serves this product and its transpose.
//
// A tile is that of the matrix product with other sums: vectors of rows of the matrix times single numbers of s. Those
// of one sample lie side by side for the pairs of a panel, so a tile reads s as it lies in memory, too.

// Coefficients and s are of type T, float64 or float32. Sums over part of the pairs, at most half of map_part, are
// of type T; totals are float64.

// Register tile: vectors of rows x samples, which divide sample_quantum. 3 x 8 with 32 registers, 3 x 4 with 16.
constexpr int map_vectors = 3;
constexpr int map_samples = LINATTN_TILE_VECTORS * LINATTN_TILE_COLUMNS >= 24 ? 8 : 4;
// Most vectors at a time, 23 KiB, which stay in L1 while the samples pass by: 120 pairs of 3, or 180 of 2.
constexpr std::int64_t map_part = 360;

// Rows of the next panel, whole vectors, when so many are left: two and two are faster than three and a single one.
template <typename T>
constexpr std::int64_t map_panel(std::int64_t left) {
  const std::int64_t vectors_left = round_up(left, width_of<T>) / width_of<T>;
  const std::int64_t taken = vectors_left == map_vectors + 1 ? (map_vectors + 1) / 2 : least(map_vectors, vectors_left);
  return taken * width_of<T>;
}

// Rows (a, l) of coefficients[a][u][l], as left factor: panels of vectors of rows, pair after pair; the last panel is
// as narrow as what is left, rounded up to a vector.
template <typename T>
void pack_matrix(const double* coefficients, std::int64_t outputs, std::int64_t pairs, std::int64_t queries, T* out) {
  const std::int64_t rows = outputs * queries;
  for (std::int64_t first = 0, width; first < rows; first += width) {
    width = map_panel<T>(rows - first);
    for (std::int64_t i = 0; i < width; ++i) {
      const std::int64_t a = (first + i) / queries, l = (first + i) % queries;
      const double* const from = coefficients + a * pairs * queries + l;
      T* const to = out + first * pairs + i;
      for (std::int64_t u = 0; u < pairs; ++u) {
        to[u * width] = first + i < rows ? static_cast<T>(from[u * queries]) : T(0);
      }
    }
  }
}

// sums[i][j] += sum over the `width` pairs of a panel of a[u][i] s[j][u].
template <typename T, int M>
inline void add_panel(const Vector<T>* a, const T* s, std::int64_t width, Vector<T> (&sums)[M][map_samples]) {
  for (std::int64_t u = 0; u < width; ++u, a += M) {
    for (int j = 0; j < map_samples; ++j) {
      const T entry = s[j * width + u];
      for (int i = 0; i < M; ++i) sums[i][j] += a[i] * entry;
    }
  }
}

// M vectors of rows against map_samples samples, over `pairs` pairs; s begins at the first sample of the first panel.
template <typename T, int M>
void map_tile(std::int64_t m, const T* a, const T* s, std::int64_t k, std::int64_t pairs, std::int64_t samples,
              const ColumnTarget& to) {
  if constexpr (M > 1) {
    if (m < M) return map_tile<T, M - 1>(m, a, s, k, pairs, samples, to);
  }
  Vector<T> sums[M][map_samples];
  clear(sums);
  do {
    if (pairs >= tile_columns) {
      const T* const from = s + k * tile_columns;
      // the samples of the next tile: panels are too far apart for the processor to see where this leads
      for (int j = 0; j < map_samples; ++j) __builtin_prefetch(from + (map_samples + j) * tile_columns);
      add_panel<T, M>(vectors(a), from, tile_columns, sums);
    } else {
      add_panel<T, M>(vectors(a), s + k * pairs, pairs, sums);
    }
    a += tile_columns * M * width_of<T>;
    s += tile_columns * samples;
    pairs -= tile_columns;
  } while (pairs > 0);
  add_tile<T, M, map_samples>(sums, to);
}

// out[i * samples + k] = sums[k * stride + i] for i < rows; `stride` is a multiple of lanes.
inline void rows_of_columns(const double* sums, std::int64_t stride, std::int64_t rows, std::int64_t samples,
                            double* out) {
  for (std::int64_t i = 0; i < rows; i += lanes) {
    for (std::int64_t k = 0; k < samples; k += lanes) {
      Lanes square[lanes];
      for (int j = 0; j < lanes; ++j) square[j] = load(sums + (k + j) * stride + i);
      transpose(square);
      for (std::int64_t j = 0; j < least(lanes, rows - i); ++j) store(square[j], out + (i + j) * samples + k);
    }
  }
}

template <typename T>
void apply_packed(const T* matrix, std::int64_t rows, const T* packed, std::int64_t pairs, std::int64_t samples,
                  double* sums, double* out) {
  const std::int64_t most = least(map_part / (map_panel<T>(rows) / width_of<T>), map_part / 2);
  const std::int64_t parts = (pairs + most - 1) / most;
  const std::int64_t at_once = round_up((pairs + parts - 1) / parts, tile_columns);  // parts of about the same size
  const std::int64_t stride = round_up(rows, lanes);
  for (std::int64_t i = 0; i < stride * samples; ++i) sums[i] = 0.0;
  for (std::int64_t u = 0; u < pairs; u += at_once) {
    for (std::int64_t i = 0, width; i < rows; i += width) {
      width = map_panel<T>(rows - i);
      const std::int64_t in_panel = least(width, stride - i);  // whole vectors of sums
      for (std::int64_t k = 0; k < samples; k += map_samples) {
        map_tile<T, map_vectors>(width / width_of<T>, matrix + i * pairs + u * width, packed + u * samples, k,
                                 least(at_once, pairs - u), samples,
                                 ColumnTarget{sums + k * stride + i, stride, in_panel, nullptr});
      }
    }
  }
  rows_of_columns(sums, stride, rows, samples, out);
}
