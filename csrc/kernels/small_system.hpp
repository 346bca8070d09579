// A symmetric system of some dozens of unknowns, A = U'U, in the rows of U: `stride` doubles apart, a multiple of the
// widest vector, zero past column n. Left of the diagonal, vectors hold numbers without meaning.
//
// Sums over k are taken for even and for odd k side by side, so that multiply-adds do not wait for each other.

// x[0 .. V) -= sum over first <= k < last of factors[k * step] times row k of `rows`, from column `column` on.
template <int V>
LINATTN_INLINE void subtract_rows(const double* factors, std::int64_t step, const double* rows, std::int64_t stride,
                                  std::int64_t first, std::int64_t last, std::int64_t column, Lanes (&x)[V]) {
  Lanes odd[V];
  for (int v = 0; v < V; ++v) odd[v] = Lanes{};
  std::int64_t k = first;
  for (; k + 2 <= last; k += 2) {
    const double even_factor = factors[k * step], odd_factor = factors[(k + 1) * step];
    const Lanes *const even_row = vectors(rows + k * stride + column), *const odd_row =
                                                                           vectors(rows + (k + 1) * stride + column);
    for (int v = 0; v < V; ++v) {
      x[v] -= even_factor * even_row[v];
      odd[v] -= odd_factor * odd_row[v];
    }
  }
  if (k < last) {
    for (int v = 0; v < V; ++v) x[v] -= factors[k * step] * vectors(rows + k * stride + column)[v];
  }
  for (int v = 0; v < V; ++v) x[v] += odd[v];
}

// body(column, vectors) for the columns of a row from the vector that holds `first` on, a few vectors at a time;
// `vectors` is a constant.
template <int V>
struct Vectors {
  static constexpr int count = V;
};
template <typename Body>
LINATTN_INLINE void each_piece(std::int64_t first, std::int64_t stride, const Body& body) {
  std::int64_t column = first / lanes * lanes;
  for (; column + 4 * lanes <= stride; column += 4 * lanes) body(column, Vectors<4>{});
  if (column + 2 * lanes <= stride) {
    body(column, Vectors<2>{});
    column += 2 * lanes;
  }
  if (column < stride) body(column, Vectors<1>{});
}

// U in the place of A, whose upper triangle is given, and the reciprocals of its pivots. Returns the number of pivots
// before the first that is not positive.
inline std::int64_t factor_small(double* rows, std::int64_t n, std::int64_t stride, double* reciprocals) {
  for (std::int64_t i = 0; i < n; ++i) {
    double* const row = rows + i * stride;
    each_piece(i, stride, [&](std::int64_t column, auto piece) LINATTN_INLINE_LAMBDA {
      constexpr int count = decltype(piece)::count;
      Lanes x[count];
      for (int v = 0; v < count; ++v) x[v] = vectors(row + column)[v];
      subtract_rows<count>(rows + i, stride, rows, stride, 0, i, column, x);
      for (int v = 0; v < count; ++v) vectors(row + column)[v] = x[v];
    });
    const double pivot = row[i];
    if (!(pivot > 0)) return i;  // NaN too
    const double root = __builtin_sqrt(pivot), reciprocal = 1 / root;
    for (std::int64_t column = i / lanes * lanes; column < stride; column += lanes) {
      *vectors(row + column) *= reciprocal;
    }
    row[i] = root;
    reciprocals[i] = reciprocal;
  }
  return n;
}

// ||U^-1||_F^2; inverse (as large as the rows of U) = U^-1, a row after the other from the last one up:
//   row i = (e_i - sum over k > i of U[i][k] row k) / U[i][i]
inline double squared_inverse(const double* rows, const double* reciprocals, std::int64_t n, std::int64_t stride,
                              double* inverse) {
  Lanes total = {};
  for (std::int64_t i = n - 1; i >= 0; --i) {
    double* const row = inverse + i * stride;
    for (std::int64_t column = 0; column < stride; column += lanes) *vectors(row + column) = Lanes{};
    row[i] = 1;
    each_piece(i, stride, [&](std::int64_t column, auto piece) LINATTN_INLINE_LAMBDA {
      constexpr int count = decltype(piece)::count;
      Lanes x[count];
      for (int v = 0; v < count; ++v) x[v] = vectors(row + column)[v];
      const std::int64_t end = least(n, column + count * lanes);  // later rows begin to the right of this piece
      subtract_rows<count>(rows + i * stride, 1, inverse, stride, i + 1, end, column, x);
      for (int v = 0; v < count; ++v) {
        x[v] *= reciprocals[i];
        total += x[v] * x[v];
        vectors(row + column)[v] = x[v];
      }
    });
  }
  double sum = 0;
  for (int lane = 0; lane < lanes; ++lane) sum += total[lane];
  return sum;
}

// x (stride doubles, zero from n on) becomes A^-1 x.
inline void solve_small(const double* rows, const double* reciprocals, std::int64_t n, std::int64_t stride, double* x) {
  for (std::int64_t i = 0; i < n; ++i) {
    const double entry = x[i] * reciprocals[i];
    const double* const row = rows + i * stride;
    std::int64_t column = (i / lanes + 1) * lanes;
    for (std::int64_t j = i + 1; j < least(column, n); ++j) x[j] -= entry * row[j];
    for (; column < stride; column += lanes) *vectors(x + column) -= entry * *vectors(row + column);
    x[i] = entry;
  }
  for (std::int64_t i = n - 1; i >= 0; --i) {
    const double* const row = rows + i * stride;
    std::int64_t column = (i / lanes + 1) * lanes;
    double sum = x[i];
    for (std::int64_t j = i + 1; j < least(column, n); ++j) sum -= row[j] * x[j];
    Lanes products = {};
    for (; column < stride; column += lanes)
      products += *vectors(row + column) * *vectors(static_cast<const double*>(x) + column);
    for (int lane = 0; lane < lanes; ++lane) sum -= products[lane];
    x[i] = sum * reciprocals[i];
  }
}
