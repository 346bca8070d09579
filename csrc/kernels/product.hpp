// C += A B' with the samples as inner dimension: the Gram matrix and the cross moments.
//
// A and B come packed in panels of a few rows, interleaved vector by vector, so that the tile reads two streams from
// start to end. Product rows are formed while packing and are never stored elsewhere. T is the type of the products
// inside a block of samples: float64, or float32 for mixed precision; totals are always float64.

// Rounds of a loop that are written out: sample counts are multiples of sample_quantum. Instructions beside the
// arithmetic cost most where another thread shares the core.
template <typename T>
constexpr int unrolled =
    static_cast<int>(least(4, sample_quantum * static_cast<std::int64_t>(sizeof(T)) / LINATTN_VECTOR_BYTES));

// Rows that are packed: products of two rows, or rows as they are.
template <typename T>
struct ProductRows {
  struct Row {
    const Vector<T>*x, *y;
    Vector<T> operator[](std::int64_t v) const { return x[v] * y[v]; }
  };
  const T *left, *right;
  std::int64_t stride;
  const RowPair* pairs;
  Row operator()(std::int64_t i) const {
    return {vectors(left + pairs[i].x * stride), vectors(right + pairs[i].y * stride)};
  }
};

template <typename T>
struct PlainRows {
  const T* source;
  std::int64_t stride;
  const Vector<T>* operator()(std::int64_t i) const { return vectors(source + i * stride); }
};

// packed[v][i] = vector v of row first + i, i < P.
template <typename T, int P, typename Rows>
void pack_panel(std::int64_t width, const Rows& rows, std::int64_t first, std::int64_t length, Vector<T>* packed) {
  if constexpr (P > 1) {
    if (width < P) return pack_panel<T, P - 1>(width, rows, first, length, packed);
  }
  decltype(rows(0)) row[P];
  for (int i = 0; i < P; ++i) row[i] = rows(first + i);
  for (std::int64_t v = 0; v < length; v += unrolled<T>) {
#pragma GCC unroll 4
    for (int u = 0; u < unrolled<T>; ++u) {
      for (int i = 0; i < P; ++i) packed[(v + u) * P + i] = row[i][v + u];
    }
  }
}

// The last panel is as narrow as what is left.
template <typename T, typename Rows>
void pack(const Rows& rows, std::int64_t count, std::int64_t panel, std::int64_t samples, T* out) {
  const std::int64_t length = samples * static_cast<std::int64_t>(sizeof(T)) / LINATTN_VECTOR_BYTES;
  for (std::int64_t first = 0; first < count; first += panel) {
    pack_panel<T, LINATTN_TILE_COLUMNS>(least(panel, count - first), rows, first, length, vectors(out + first * samples));
  }
}

template <typename T>
void pack_products(const T* left, const T* right, std::int64_t stride, const RowPair* pairs, std::int64_t rows,
                   std::int64_t panel, std::int64_t samples, T* out) {
  pack(ProductRows<T>{left, right, stride, pairs}, rows, panel, samples, out);
}

template <typename T>
void pack_rows(const T* source, std::int64_t stride, std::int64_t rows, std::int64_t panel, std::int64_t samples,
               T* out) {
  pack(PlainRows<T>{source, stride}, rows, panel, samples, out);
}

// c[j] += scale_j times the sum over the lanes of v[j], j < N: a transposition turns sums across vectors into sums of
// vectors.
template <int N>
inline void add_sums(const Lanes* v, const double* scale, double* c) {
  for (int first = 0; first < N; first += static_cast<int>(lanes)) {
    Lanes square[lanes];
    for (int i = 0; i < lanes; ++i) square[i] = first + i < N ? v[first + i] : Lanes{};
    transpose(square);
    for (int half = static_cast<int>(lanes) / 2; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) square[i] += square[i + half];
    }
    if (first + lanes <= N) {
      if (scale != nullptr) square[0] *= load(scale + first);
      *reinterpret_cast<UnalignedLanes*>(c + first) += square[0];
    } else {
      for (int i = 0; first + i < N; ++i) c[first + i] += (scale != nullptr ? scale[first + i] : 1.0) * square[0][i];
    }
  }
}

// M x N vectors of partial sums stay in registers for the whole block of samples.
template <typename T, int M, int N>
void product_tile(const Vector<T>* __restrict a, const Vector<T>* __restrict b, std::int64_t length,
                  const double* row_scale, const double* column_scale, double* const* c, std::int64_t column) {
  for (int i = 0; i < M; ++i) __builtin_prefetch(c[i] + column, 1);  // here by the time the sums are
  Vector<T> sums[M][N];
  clear(sums);
  do {
#pragma GCC unroll 4
    for (int u = 0; u < unrolled<T>; ++u) {
      Vector<T> left[M];
      for (int i = 0; i < M; ++i) left[i] = a[u * M + i];
      for (int j = 0; j < N; ++j) {
        const Vector<T> right = b[u * N + j];
        for (int i = 0; i < M; ++i) sums[i][j] += left[i] * right;
      }
    }
    a += unrolled<T> * M;
    b += unrolled<T> * N;
    length -= unrolled<T>;
  } while (length > 0);
  for (int i = 0; i < M; ++i) {
    Lanes folded[N];
    for (int j = 0; j < N; ++j) folded[j] = fold(sums[i][j]);
    if (row_scale != nullptr) {
      for (int j = 0; j < N; ++j) folded[j] *= row_scale[i];
    }
    add_sums<N>(folded, column_scale, c[i] + column);
  }
}

// The tile of just the size that is left at an edge, so that no edge computes what nobody needs.
template <typename T, int M, int N>
void product_edge(std::int64_t m, std::int64_t n, const Vector<T>* a, const Vector<T>* b, std::int64_t length,
                  const double* row_scale, const double* column_scale, double* const* c, std::int64_t column) {
  if (m == M && n == N) {
    product_tile<T, M, N>(a, b, length, row_scale, column_scale, c, column);
  } else if (m == M) {
    if constexpr (N > 1) product_edge<T, M, N - 1>(m, n, a, b, length, row_scale, column_scale, c, column);
  } else {
    if constexpr (M > 1) product_edge<T, M - 1, N>(m, n, a, b, length, row_scale, column_scale, c, column);
  }
}

// A tile on the diagonal of a triangular result: computed aside, and only columns from first_columns[i] on are kept.
template <typename T>
void diagonal_tile(std::int64_t m, std::int64_t n, const Vector<T>* a, const Vector<T>* b, std::int64_t length,
                   const double* row_scale, const double* column_scale, const std::int64_t* first_columns,
                   double* const* c, std::int64_t column) {
  double aside[LINATTN_TILE_ROWS][LINATTN_TILE_COLUMNS] = {};
  double* rows[LINATTN_TILE_ROWS];
  for (int i = 0; i < LINATTN_TILE_ROWS; ++i) rows[i] = aside[i];
  product_edge<T, LINATTN_TILE_ROWS, LINATTN_TILE_COLUMNS>(m, n, a, b, length, row_scale, column_scale, rows, 0);
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      if (column + j >= first_columns[i]) c[i][column + j] += aside[i][j];
    }
  }
}

template <typename T>
void multiply(const T* a, std::int64_t rows, const T* b, std::int64_t columns, std::int64_t samples,
              const double* row_scale, const double* column_scale, const std::int64_t* first_columns,
              double* const* c) {
  constexpr std::int64_t tile_rows = LINATTN_TILE_ROWS, tile_columns = LINATTN_TILE_COLUMNS;
  const std::int64_t length = samples * static_cast<std::int64_t>(sizeof(T)) / LINATTN_VECTOR_BYTES;
  const std::int64_t start = first_columns != nullptr ? first_columns[0] / tile_columns * tile_columns : 0;
  for (std::int64_t j = start; j < columns; j += tile_columns) {
    const std::int64_t n = least(tile_columns, columns - j);
    const double* scale_columns = column_scale != nullptr ? column_scale + j : nullptr;
    for (std::int64_t i = 0; i < rows; i += tile_rows) {
      const std::int64_t m = least(tile_rows, rows - i);
      const double* scale_rows = row_scale != nullptr ? row_scale + i : nullptr;
      const Vector<T>* left = vectors(a + i * samples);
      const Vector<T>* right = vectors(b + j * samples);
      if (first_columns == nullptr || j >= first_columns[i + m - 1]) {
        product_edge<T, tile_rows, tile_columns>(m, n, left, right, length, scale_rows, scale_columns, c + i, j);
      } else if (j + n > first_columns[i]) {
        diagonal_tile<T>(m, n, left, right, length, scale_rows, scale_columns, first_columns + i, c + i, j);
      }
    }
  }
}
