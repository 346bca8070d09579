// Symmetric systems of some dozens of unknowns, one in each lane: an entry is a vector, and nothing is ever added
// across lanes. A = U'U in rows of n vectors, of which those from the diagonal on are used.
//
// Tiles of U are taken in blocks of four rows and columns, the last of which may be smaller.

constexpr int block_rows = 4;

LINATTN_INLINE Lanes& entry(double* matrix, std::int64_t n, std::int64_t i, std::int64_t j) {
  return vectors(matrix)[i * n + j];
}
LINATTN_INLINE const Lanes& entry(const double* matrix, std::int64_t n, std::int64_t i, std::int64_t j) {
  return vectors(matrix)[i * n + j];
}

// body(Number<size>) for a block of 1 .. block_rows rows.
template <int Size = block_rows, typename Body>
LINATTN_INLINE void with_block(std::int64_t size, const Body& body) {
  if (size >= Size) {
    body(Number<Size>{});
  } else {
    if constexpr (Size > 1) with_block<Size - 1>(size, body);
  }
}

typedef unsigned long long LaneBits __attribute__((vector_size(LINATTN_VECTOR_BYTES)));

// 2^-(e / 2) for x >= 0 of exponent e, rounded down: a square root of 1 / x within a factor of two.
LINATTN_INLINE Lanes root_of_reciprocal(const Lanes& x) {
  const LaneBits half = reinterpret_cast<LaneBits>(x) >> 53;  // of the biased exponent
  const LaneBits found = (1534 - half) << 52;
  return reinterpret_cast<Lanes>(found);
}

LINATTN_INLINE Lanes absolute(const Lanes& x) {
  const LaneBits found = reinterpret_cast<LaneBits>(x) & ~0ULL >> 1;
  return reinterpret_cast<Lanes>(found);
}

// upper = A = D (G + shift I) D, G the symmetric matrix whose upper triangle, row by row, is at `places` of `gram`; D
// (n vectors) are powers of two that bring the diagonal near one, and norm (one vector) is the largest row sum of |A|.
inline void equilibrate_lanes(const double* gram, const std::int64_t* places, std::int64_t n, const double* shift,
                              double* upper, double* scale, double* sums, double* norm) {
  const std::int64_t* diagonal = places;
  for (std::int64_t i = 0; i < n; ++i) {
    vectors(scale)[i] = root_of_reciprocal(vectors(gram)[*diagonal] + *vectors(shift));
    vectors(sums)[i] = Lanes{};
    diagonal += n - i;
  }
  Lanes largest = {};
  for (std::int64_t i = 0; i < n; ++i) {
    const Lanes own = vectors(scale)[i];
    const Lanes pivot = (vectors(gram)[*places++] + *vectors(shift)) * (own * own);
    entry(upper, n, i, i) = pivot;
    Lanes sum = absolute(pivot);
    for (std::int64_t j = i + 1; j < n; ++j) {
      const Lanes x = vectors(gram)[*places++] * (own * vectors(scale)[j]);
      entry(upper, n, i, j) = x;
      vectors(sums)[j] += absolute(x);
      sum += absolute(x);
    }
    sum += vectors(sums)[i];
    largest = sum > largest ? sum : largest;
  }
  *vectors(norm) = largest;
}

// x[a][b] -= sum over first <= k < last of left(k, a) right(k, b)
template <int M, int N, typename Left, typename Right>
LINATTN_INLINE void subtract_products(std::int64_t first, std::int64_t last, const Left& left, const Right& right,
                                      Lanes (&x)[M][N]) {
  for (std::int64_t k = first; k < last; ++k) {
    Lanes row[N];
    for (int b = 0; b < N; ++b) row[b] = right(k, b);
    for (int a = 0; a < M; ++a) {
      const Lanes factor = left(k, a);
      for (int b = 0; b < N; ++b) x[a][b] -= factor * row[b];
    }
  }
}

// Columns j .. j + N of rows i .. i + M of U, where the tile on the diagonal is at hand (unless this is it).
template <int M, int N, bool Diagonal>
LINATTN_INLINE void factor_tile(double* rows, std::int64_t n, std::int64_t i, std::int64_t j, double* reciprocals) {
  Lanes x[M][N];
  for (int a = 0; a < M; ++a) {
    for (int b = Diagonal ? a : 0; b < N; ++b) x[a][b] = entry(rows, n, i + a, j + b);
    for (int b = 0; Diagonal && b < a; ++b) x[a][b] = Lanes{};
  }
  subtract_products<M, N>(
      0, i, [&](std::int64_t k, int a) LINATTN_INLINE_LAMBDA { return entry(rows, n, k, i + a); },
      [&](std::int64_t k, int b) LINATTN_INLINE_LAMBDA { return entry(rows, n, k, j + b); }, x);
  for (int a = 0; a < M; ++a) {
    if constexpr (Diagonal) {
      Lanes root{};
      for (int lane = 0; lane < lanes; ++lane) root[lane] = __builtin_sqrt(x[a][a][lane]);
      vectors(reciprocals)[i + a] = 1 / root;
    }
    const Lanes reciprocal = vectors(reciprocals)[i + a];
    for (int b = Diagonal ? a : 0; b < N; ++b) x[a][b] *= reciprocal;
    for (int below = a + 1; below < M; ++below) {
      const Lanes factor = Diagonal ? x[a][below % N] : entry(rows, n, i + a, i + below);
      for (int b = Diagonal ? below : 0; b < N; ++b) x[below][b] -= factor * x[a][b];
    }
    for (int b = Diagonal ? a : 0; b < N; ++b) entry(rows, n, i + a, j + b) = x[a][b];
  }
}

// U in the place of A, and the reciprocals of its pivots (n vectors): NaN or infinite in lanes where one is not
// positive.
inline void factor_lanes(double* rows, std::int64_t n, double* reciprocals) {
  for (std::int64_t i = 0; i < n; i += block_rows) {
    with_block(n - i, [&](auto height) LINATTN_INLINE_LAMBDA {
      factor_tile<decltype(height)::value, decltype(height)::value, true>(rows, n, i, i, reciprocals);
    });
    for (std::int64_t j = i + block_rows; j < n; j += block_rows) {
      with_block(n - j, [&](auto width) LINATTN_INLINE_LAMBDA {
        factor_tile<block_rows, decltype(width)::value, false>(rows, n, i, j, reciprocals);
      });
    }
  }
}

// Columns j .. j + N of U^-1 (rows of N vectors), from the diagonal up:
//   row i = (e_i - sum over k > i of U[i][k] row k) / U[i][i]
template <int N>
LINATTN_INLINE void invert_columns(const double* rows, const double* reciprocals, std::int64_t n, std::int64_t j,
                                   double* inverse, Lanes& total) {
  for (std::int64_t i = j; i >= 0; i -= block_rows) {
    constexpr int M = block_rows;
    Lanes x[M][N];
    for (int a = 0; a < M; ++a) {
      for (int b = 0; b < N; ++b) x[a][b] = Lanes{} + (i == j && a == b ? 1.0 : 0.0);
    }
    subtract_products<M, N>(
        i + M, j + N, [&](std::int64_t k, int a) LINATTN_INLINE_LAMBDA { return entry(rows, n, i + a, k); },
        [&](std::int64_t k, int b) LINATTN_INLINE_LAMBDA { return entry(inverse, N, k, b); }, x);
    for (int a = static_cast<int>(least(M, n - i)) - 1; a >= 0; --a) {
      for (int b = 0; b < N; ++b) {
        x[a][b] *= vectors(reciprocals)[i + a];
        total += x[a][b] * x[a][b];
        entry(inverse, N, i + a, b) = x[a][b];
      }
      for (int above = 0; above < a; ++above) {
        const Lanes factor = entry(rows, n, i + above, i + a);
        for (int b = 0; b < N; ++b) x[above][b] -= factor * x[a][b];
      }
    }
  }
}

// norm (one vector) = ||U^-1||_F^2; columns has room for block_rows columns of U^-1.
inline void squared_inverse_lanes(const double* rows, const double* reciprocals, std::int64_t n, double* columns,
                                  double* norm) {
  Lanes total = {};
  for (std::int64_t j = 0; j < n; j += block_rows) {
    with_block(n - j, [&](auto width) LINATTN_INLINE_LAMBDA {
      invert_columns<decltype(width)::value>(rows, reciprocals, n, j, columns, total);
    });
  }
  *vectors(norm) = total;
}

// x (n vectors) becomes A^-1 x.
inline void solve_lanes(const double* rows, const double* reciprocals, std::int64_t n, double* x) {
  const auto own = [&](std::int64_t k, int) LINATTN_INLINE_LAMBDA { return entry(x, 1, k, 0); };
  for (std::int64_t i = 0; i < n; i += block_rows) {
    with_block(n - i, [&](auto height) LINATTN_INLINE_LAMBDA {
      constexpr int M = decltype(height)::value;
      Lanes block[M][1];
      for (int a = 0; a < M; ++a) block[a][0] = entry(x, 1, i + a, 0);
      subtract_products<M, 1>(
          0, i, [&](std::int64_t k, int a) LINATTN_INLINE_LAMBDA { return entry(rows, n, k, i + a); }, own, block);
      for (int a = 0; a < M; ++a) {
        for (int before = 0; before < a; ++before) block[a][0] -= entry(rows, n, i + before, i + a) * block[before][0];
        entry(x, 1, i + a, 0) = block[a][0] *= vectors(reciprocals)[i + a];
      }
    });
  }
  for (std::int64_t i = (n - 1) / block_rows * block_rows; i >= 0; i -= block_rows) {
    with_block(n - i, [&](auto height) LINATTN_INLINE_LAMBDA {
      constexpr int M = decltype(height)::value;
      Lanes block[M][1];
      for (int a = 0; a < M; ++a) block[a][0] = entry(x, 1, i + a, 0);
      subtract_products<M, 1>(
          i + M, n, [&](std::int64_t k, int a) LINATTN_INLINE_LAMBDA { return entry(rows, n, i + a, k); }, own, block);
      for (int a = M - 1; a >= 0; --a) {
        for (int after = a + 1; after < M; ++after) block[a][0] -= entry(rows, n, i + a, i + after) * block[after][0];
        entry(x, 1, i + a, 0) = block[a][0] *= vectors(reciprocals)[i + a];
      }
    });
  }
}
