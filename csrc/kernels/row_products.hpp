// C += A B' with the samples as inner dimension, as in product.hpp, for rows as they lie: vectors of samples instead of
// vectors of rows. Nothing is packed, and the sums of a tile are vectors until the block ends; where B has few columns,
// packing A takes longer than that.
//
// A summand goes through samples / lanes - 1 additions in its lane, and through log2(lanes) where lanes are added.
// Where each lane is a problem of its own they are not, and an entry of C is a vector.

// Rows and columns whose sums stay in the registers, with a vector of each row and one of a column.
constexpr int row_tile_rows = 2, row_tile_columns = LINATTN_REGISTERS == 32 ? 10 : 5;

// Lines of the cache that are asked for in a step, which takes about ten cycles: what memory delivers in that time.
constexpr int lines_a_step = 3;

// c[0 .. N) += sums of the lanes of each of N vectors.
template <int N, int J = 0>
LINATTN_INLINE void add_lane_sums(const Lanes* sums, double* c) {
  constexpr int width = N - J < lanes ? N - J : static_cast<int>(lanes);
  Lanes square[lanes];
  for (int i = 0; i < lanes; ++i) square[i] = i < width ? sums[J + i] : Lanes{};
  add_row<width>(sums_of_lanes(square), c + J);
  if constexpr (J + lanes < N) add_lane_sums<N, J + static_cast<int>(lanes)>(sums, c);
}

// M rows against N columns. With Ask, lines of the cache from `wanted` on are asked for on the way.
template <bool Apart, bool Ask, int M, int N>
void row_tile(const ProductRows& left, std::int64_t first, const double* columns, std::int64_t samples, double* c,
              std::int64_t c_stride, const char* wanted) {
  ProductRows::Row rows[M];
  for (int i = 0; i < M; ++i) rows[i] = left(first + i);
  Lanes sums[M][N];
  clear(sums);
  std::int64_t v = 0;
  do {
    if constexpr (Ask) {
      for (int i = 0; i < lines_a_step; ++i) __builtin_prefetch(wanted + 64 * i);
      wanted += 64 * lines_a_step;
    }
    Lanes a[M];
    for (int i = 0; i < M; ++i) a[i] = rows[i][v];
    for (int j = 0; j < N; ++j) {
      const Lanes b = vectors(columns + j * block_stride)[v];
      for (int i = 0; i < M; ++i) sums[i][j] += a[i] * b;
    }
  } while (++v < samples / lanes);
  for (int i = 0; i < M; ++i) {
    if constexpr (Apart) {
      for (int j = 0; j < N; ++j) vectors(c)[i * c_stride + j] += sums[i][j];
    } else {
      add_lane_sums<N>(sums[i], c + i * c_stride);
    }
  }
}

// The tile of just the size that is left at an edge.
template <bool Apart, bool Ask, int M, int N>
void row_edge(std::int64_t m, std::int64_t n, const ProductRows& left, std::int64_t first, const double* columns,
              std::int64_t samples, double* c, std::int64_t c_stride, const char* wanted) {
  if (m == M && n == N) {
    row_tile<Apart, Ask, M, N>(left, first, columns, samples, c, c_stride, wanted);
  } else if (n == N) {
    if constexpr (M > 1) row_edge<Apart, Ask, M - 1, N>(m, n, left, first, columns, samples, c, c_stride, wanted);
  } else {
    if constexpr (N > 1) row_edge<Apart, Ask, M, N - 1>(m, n, left, first, columns, samples, c, c_stride, wanted);
  }
}

// Apart: each lane by itself. What lies ahead is asked for on the way, a run of it after the other.
template <bool Apart>
void multiply_rows(const double* left, const double* right, const RowPair* pairs, std::int64_t rows,
                   const double* columns, std::int64_t count, std::int64_t samples, double* c, const Ahead& ahead) {
  const std::int64_t tiles = (count + row_tile_columns - 1) / row_tile_columns, width = (count + tiles - 1) / tiles;
  const ProductRows products{left, right, block_stride, pairs};
  std::int64_t run = 0, asked = 0;
  for (std::int64_t i = 0; i < rows; i += row_tile_rows) {
    for (std::int64_t j = 0; j < count; j += width) {
      const std::int64_t m = least(row_tile_rows, rows - i), n = least(width, count - j);
      const double* const from = columns + j * block_stride;
      double* const to = c + (i * count + j) * (Apart ? lanes : 1);
      if (Apart && run < ahead.runs) {
        const char* const wanted = static_cast<const char*>(ahead.starts[run]) + asked;
        row_edge<Apart, Apart, row_tile_rows, row_tile_columns>(m, n, products, i, from, samples, to, count, wanted);
        asked += samples / lanes * lines_a_step * 64;
        if (asked >= ahead.bytes) asked = 0, ++run;
      } else {
        row_edge<Apart, false, row_tile_rows, row_tile_columns>(m, n, products, i, from, samples, to, count, nullptr);
      }
    }
  }
}

inline void multiply_rows_together(const double* left, const double* right, const RowPair* pairs, std::int64_t rows,
                                   const double* columns, std::int64_t count, std::int64_t samples, double* c) {
  multiply_rows<false>(left, right, pairs, rows, columns, count, samples, c, Ahead{});
}
