// C += A B' with the samples as inner dimension: the Gram matrix and the cross moments.
//
// A and B come packed in panels of a few rows, sample after sample, so that a tile reads two streams from start to end:
// vectors of rows of A times single numbers of B. Product rows are formed while packing and are never stored elsewhere.
// T is the type of the products inside a block of samples: float64, or float32 for mixed precision; rows come in
// float64, and totals are always float64.

// Numbers of type T in a vector.
template <typename T>
constexpr std::int64_t width_of = LINATTN_VECTOR_BYTES / static_cast<std::int64_t>(sizeof(T));

// Rows of A that a tile holds: vectors of them.
template <typename T>
constexpr std::int64_t tile_rows = LINATTN_TILE_VECTORS * width_of<T>;
constexpr std::int64_t tile_columns = LINATTN_TILE_COLUMNS;

constexpr std::int64_t round_up(std::int64_t number, std::int64_t unit) { return (number + unit - 1) / unit * unit; }

// ------------------------------------------------------------------------------------------------ packing

// Rows that are packed: products of two rows, or rows as they are.
struct ProductRows {
  struct Row {
    const Lanes *x, *y;
    Lanes operator[](std::int64_t v) const { return x[v] * y[v]; }
  };
  const double *left, *right;
  std::int64_t stride;
  const RowPair* pairs;
  const double* groups = nullptr;  // the right rows once more, in groups of lanes, sample after sample; null: none
  Row operator()(std::int64_t i) const {
    return {vectors(left + pairs[i].x * stride), vectors(right + pairs[i].y * stride)};
  }
};

struct PlainRows {
  const double* source;
  std::int64_t stride;
  const Lanes* operator()(std::int64_t i) const { return vectors(source + i * stride); }
};

inline void store(const Lanes& v, float* out) {
  *reinterpret_cast<UnalignedFloats*>(out) = __builtin_convertvector(v, HalfFloats);
}

// out[k * panel + i] = shrink[i] * row i at sample k, for up to `lanes` rows; the last ones of a vector that are not
// rows are zero, and are left out where the panel has no room for them.
template <typename T, typename Rows>
void pack_vector(const Rows& rows, std::int64_t first, std::int64_t count, std::int64_t panel, std::int64_t room,
                 std::int64_t samples, const double* shrink, T* out) {
  decltype(rows(0)) row[lanes];
  Lanes factor[lanes];
  for (int i = 0; i < lanes; ++i) {
    row[i] = rows(first + least(i, count - 1));
    factor[i] = Lanes{} + (i < count ? (shrink != nullptr ? shrink[first + i] : 1.0) : 0.0);
  }
  const bool plain = shrink == nullptr && count == lanes;
  for (std::int64_t v = 0; v < samples / lanes; ++v, out += lanes * panel) {
    Lanes square[lanes];
    if (plain) {
      for (int i = 0; i < lanes; ++i) square[i] = row[i][v];
    } else {
      for (int i = 0; i < lanes; ++i) square[i] = row[i][v] * factor[i];
    }
    transpose(square);
    if (room >= lanes) {
      for (int k = 0; k < lanes; ++k) store(square[k], out + k * panel);
    } else {
      for (int k = 0; k < lanes; ++k) {
        for (std::int64_t i = 0; i < room; ++i) out[k * panel + i] = static_cast<T>(square[k][i]);
      }
    }
  }
}

// Are these products of one row with `lanes` consecutive rows, the first a multiple of lanes?
inline bool is_group(const RowPair* pairs) {
  for (int i = 1; i < lanes; ++i) {
    if (pairs[i].x != pairs[0].x || pairs[i].y != pairs[0].y + i) return false;
  }
  return pairs[0].y % lanes == 0;
}

// The same for a vector of products x * y_i whose y_i lie side by side already, sample after sample.
template <typename T>
void pack_group(const double* x, const double* group, std::int64_t panel, std::int64_t samples, const double* shrink,
                T* out) {
  const Lanes factor = shrink != nullptr ? load(shrink) : Lanes{} + 1.0;
  for (std::int64_t k = 0; k < samples; k += 4) {
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) {
      const Lanes y = sizeof(T) == sizeof(double) ? vectors(group)[k + u] : vectors(group)[k + u] * factor;
      store(y * x[k + u], out + (k + u) * panel);
    }
  }
}

template <typename T>
bool packed_as_group(const ProductRows& rows, std::int64_t first, std::int64_t count, std::int64_t panel,
                     std::int64_t samples, const double* shrink, T* out) {
  const RowPair* const pairs = rows.pairs + first;
  if (rows.groups == nullptr || count < lanes || !is_group(pairs)) return false;
  pack_group(rows.left + pairs[0].x * rows.stride, rows.groups + pairs[0].y * samples, panel, samples,
             shrink != nullptr ? shrink + first : nullptr, out);
  return true;
}
template <typename T>
bool packed_as_group(const PlainRows&, std::int64_t, std::int64_t, std::int64_t, std::int64_t, const double*, T*) {
  return false;
}

// Panels of `panel` rows; the last one is as narrow as what is left, rounded up to `unit`.
template <typename T, typename Rows>
void pack(const Rows& rows, std::int64_t count, std::int64_t panel, std::int64_t unit, std::int64_t samples,
          const double* shrink, T* out) {
  for (std::int64_t first = 0; first < count; first += panel) {
    const std::int64_t width = least(panel, round_up(count - first, unit));
    for (std::int64_t i = 0; i < width; i += lanes) {
      const std::int64_t left = count - first - i;
      T* const to = out + first * samples + i;
      if (packed_as_group(rows, first + i, left, width, samples, shrink, to)) continue;
      if (left > 0) {
        pack_vector<T>(rows, first + i, least(lanes, left), width, width - i, samples, shrink, to);
      } else {
        for (std::int64_t k = 0; k < samples; ++k) store(Lanes{}, to + k * width);
      }
    }
  }
}

template <typename T>
void pack_left_products(const double* left, const double* right, std::int64_t stride, const double* groups,
                        const RowPair* pairs, std::int64_t rows, std::int64_t samples, const double* shrink, T* out) {
  pack(ProductRows{left, right, stride, pairs, groups}, rows, tile_rows<T>, width_of<T>, samples, shrink, out);
}

inline void pack_groups(const double* source, std::int64_t stride, std::int64_t rows, std::int64_t samples,
                        double* out) {
  pack(PlainRows{source, stride}, rows, lanes, lanes, samples, nullptr, out);
}

template <typename T>
void pack_left_rows(const double* source, std::int64_t stride, std::int64_t rows, std::int64_t samples,
                    const double* shrink, T* out) {
  pack(PlainRows{source, stride}, rows, tile_rows<T>, width_of<T>, samples, shrink, out);
}

template <typename T>
void pack_right_products(const double* left, const double* right, std::int64_t stride, const RowPair* pairs,
                         std::int64_t rows, std::int64_t samples, const double* shrink, T* out) {
  pack(ProductRows{left, right, stride, pairs}, rows, tile_columns, 1, samples, shrink, out);
}

template <typename T>
void pack_right_rows(const double* source, std::int64_t stride, std::int64_t rows, std::int64_t samples,
                     const double* shrink, T* out) {
  pack(PlainRows{source, stride}, rows, tile_columns, 1, samples, shrink, out);
}

// ------------------------------------------------------------------------------------------------ the tile

// Where a tile's sums go, as rows: c[i][column + j] += row_scale[i] * column_scale[j] * sum[i][j] for i < rows.
struct TileTarget {
  double* const* c;
  std::int64_t rows, column;
  const double *row_scale, *column_scale;  // null: one; row_scale is as long as the packed rows
};

// As columns, which is how vectors of rows have them: c[j * stride + i] += row_scale[i] * sum[i][j] for i < rows.
struct ColumnTarget {
  double* c;
  std::int64_t stride, rows;
  const double* row_scale;  // null: one
};

// c[0 .. N) += the first N numbers of v.
template <int N>
inline void add_row(const Lanes& v, double* c) {
  if constexpr (N >= lanes) {
    *reinterpret_cast<UnalignedLanes*>(c) += v;
  } else if constexpr (N >= lanes / 2) {
    UnalignedHalf half;
    __builtin_memcpy(&half, &v, sizeof(half));
    *reinterpret_cast<UnalignedHalf*>(c) += half;
    for (int k = static_cast<int>(lanes) / 2; k < N; ++k) c[k] += v[k];
  } else {
    for (int k = 0; k < N; ++k) c[k] += v[k];
  }
}

// Sums v[j] of `lanes` rows, from row `first` on, against N columns from column J on: a transposition turns vectors of
// rows into vectors of columns, which is how the totals lie in memory.
template <int N, int J = 0>
inline void add_sums(const Lanes* v, const TileTarget& to, std::int64_t first) {
  constexpr int width = N - J < lanes ? N - J : static_cast<int>(lanes);
  Lanes square[lanes];
  for (int i = 0; i < lanes; ++i) square[i] = i < width ? v[J + i] : Lanes{};
  if (to.row_scale != nullptr) {  // both or none
    for (int i = 0; i < width; ++i) square[i] *= load(to.row_scale + first) * to.column_scale[J + i];
  }
  transpose(square);
  double* const* const c = to.c + first;
  if (first + lanes <= to.rows) {  // written out: the sums never leave the registers
    for (int i = 0; i < lanes; ++i) add_row<width>(square[i], c[i] + to.column + J);
  } else {
    for (std::int64_t i = 0; i < to.rows - first; ++i) add_row<width>(square[i], c[i] + to.column + J);
  }
  if constexpr (J + lanes < N) add_sums<N, J + static_cast<int>(lanes)>(v, to, first);
}

// Sums of M vectors of rows against N columns.
template <typename T, int M, int N>
LINATTN_INLINE void add_tile(const Vector<T> (&sums)[M][N], const TileTarget& to) {
  T columns[N][M * width_of<T>] __attribute__((aligned(LINATTN_VECTOR_BYTES)));
  for (int j = 0; j < N; ++j) {
    for (int i = 0; i < M; ++i) vectors(columns[j])[i] = sums[i][j];
  }
  for (std::int64_t first = 0; first < to.rows; first += lanes) {
    Lanes wide[N];
    for (int j = 0; j < N; ++j) wide[j] = load(columns[j] + first);
    add_sums<N>(wide, to, first);
  }
}
template <typename T, int M, int N>
LINATTN_INLINE void add_tile(const Vector<T> (&sums)[M][N], const ColumnTarget& to) {
  T columns[N][M * width_of<T>] __attribute__((aligned(LINATTN_VECTOR_BYTES)));
  for (int j = 0; j < N; ++j) {
    for (int i = 0; i < M; ++i) vectors(columns[j])[i] = sums[i][j];
  }
  std::int64_t i = 0;
  for (; i + lanes <= to.rows; i += lanes) {
    const Lanes scale = to.row_scale != nullptr ? load(to.row_scale + i) : Lanes{} + 1.0;
    for (int j = 0; j < N; ++j) {
      double* const c = to.c + j * to.stride + i;
      store(load(c) + load(columns[j] + i) * scale, c);
    }
  }
  for (; i < to.rows; ++i) {
    const double scale = to.row_scale != nullptr ? to.row_scale[i] : 1.0;
    for (int j = 0; j < N; ++j) to.c[j * to.stride + i] += static_cast<double>(columns[j][i]) * scale;
  }
}

// Asks for what the sums of N columns are added to, so that it is here by the time they are.
template <int N>
LINATTN_INLINE void ask_for(const TileTarget& to) {
  for (std::int64_t i = 0; i < to.rows; ++i) __builtin_prefetch(to.c[i] + to.column, 1);
}
template <int N>
LINATTN_INLINE void ask_for(const ColumnTarget& to) {
  for (int j = 0; j < N; ++j) {
    for (std::int64_t i = 0; i < to.rows; i += 8) __builtin_prefetch(to.c + j * to.stride + i, 1);
  }
}

// M vectors of rows against N columns: their sums stay in registers for the whole block of samples.
template <typename T, int M, int N, typename Target>
void product_tile(const T* __restrict a, const T* __restrict b, std::int64_t samples, const Target& to) {
  constexpr std::int64_t rows = M * width_of<T>;
  ask_for<N>(to);
  Vector<T> sums[M][N];
  clear(sums);
  do {
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) {  // sample counts are multiples of sample_quantum
      Vector<T> left[M];
      for (int i = 0; i < M; ++i) left[i] = vectors(a + u * rows)[i];
      for (int j = 0; j < N; ++j) {
        const T right = b[u * N + j];
        for (int i = 0; i < M; ++i) sums[i][j] += left[i] * right;
      }
    }
    a += 4 * rows;
    b += 4 * N;
    samples -= 4;
  } while (samples > 0);
  add_tile<T, M, N>(sums, to);
}

// The tile of just the size that is left at an edge: m vectors of rows, n columns.
template <typename T, int M, int N, typename Target>
void product_edge(std::int64_t m, std::int64_t n, const T* a, const T* b, std::int64_t samples, const Target& to) {
  if (m == M && n == N) {
    product_tile<T, M, N>(a, b, samples, to);
  } else if (m == M) {
    if constexpr (N > 1) product_edge<T, M, N - 1>(m, n, a, b, samples, to);
  } else {
    if constexpr (M > 1) product_edge<T, M - 1, N>(m, n, a, b, samples, to);
  }
}

// A tile on the diagonal of a triangular result: computed aside, and only columns from first_columns[i] on are kept.
template <typename T>
void diagonal_tile(std::int64_t m, std::int64_t n, const T* a, const T* b, std::int64_t samples, const TileTarget& to,
                   const std::int64_t* first_columns) {
  double aside[tile_rows<T>][tile_columns] = {};
  double* rows[tile_rows<T>];
  for (std::int64_t i = 0; i < to.rows; ++i) rows[i] = aside[i];
  product_edge<T, LINATTN_TILE_VECTORS, LINATTN_TILE_COLUMNS>(
      m, n, a, b, samples, TileTarget{rows, to.rows, 0, to.row_scale, to.column_scale});
  for (std::int64_t i = 0; i < to.rows; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      if (to.column + j >= first_columns[i]) to.c[i][to.column + j] += aside[i][j];
    }
  }
}

// A panel of A stays in the L1 cache while the columns pass by.
template <typename T>
void multiply(const T* a, std::int64_t rows, const T* b, std::int64_t columns, std::int64_t samples,
              const double* row_scale, const double* column_scale, const std::int64_t* first_columns,
              double* const* c) {
  for (std::int64_t i = 0; i < rows; i += tile_rows<T>) {
    const std::int64_t in_panel = least(tile_rows<T>, rows - i), m = round_up(in_panel, width_of<T>) / width_of<T>;
    const T* const left = a + i * samples;
    // In a triangle the rows that have columns of this tile come first.
    std::int64_t active = first_columns != nullptr ? 0 : in_panel;
    const std::int64_t start = first_columns != nullptr ? first_columns[i] / tile_columns * tile_columns : 0;
    for (std::int64_t j = start; j < columns; j += tile_columns) {
      const std::int64_t n = least(tile_columns, columns - j);
      while (active < in_panel && first_columns[i + active] < j + n) ++active;
      const TileTarget to{c + i, active, j, row_scale != nullptr ? row_scale + i : nullptr,
                          column_scale != nullptr ? column_scale + j : nullptr};
      const T* const right = b + j * samples;
      if (first_columns == nullptr || first_columns[i + active - 1] <= j) {
        product_edge<T, LINATTN_TILE_VECTORS, LINATTN_TILE_COLUMNS>(m, n, left, right, samples, to);
      } else {
        diagonal_tile(m, n, left, right, samples, to, first_columns + i);
      }
    }
  }
}

// The same for a result that lies column by column.
template <typename T>
void multiply_to_columns(const T* a, std::int64_t rows, const T* b, std::int64_t columns, std::int64_t samples,
                         const double* row_scale, double* c, std::int64_t stride) {
  for (std::int64_t i = 0; i < rows; i += tile_rows<T>) {
    const std::int64_t in_panel = least(tile_rows<T>, rows - i), m = round_up(in_panel, width_of<T>) / width_of<T>;
    for (std::int64_t j = 0; j < columns; j += tile_columns) {
      product_edge<T, LINATTN_TILE_VECTORS, LINATTN_TILE_COLUMNS>(
          m, least(tile_columns, columns - j), a + i * samples, b + j * samples, samples,
          ColumnTarget{c + j * stride + i, stride, in_panel, row_scale != nullptr ? row_scale + i : nullptr});
    }
  }
}
