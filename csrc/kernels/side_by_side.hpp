// A triangle, row-major, with few vectors side by side: x[i * abreast + c] is entry i of vector c. One reading of the
// triangle serves all of them, as many rows of it at a time as there are registers for.

constexpr int row_vectors = static_cast<int>(abreast / lanes), rows_together = row_vectors == 1 ? 8 : 4;

// One entry of all vectors.
struct Entries {
  Lanes part[row_vectors];
};

LINATTN_INLINE Entries entries(const double* x, std::int64_t i) {
  Entries found;
  for (int v = 0; v < row_vectors; ++v) found.part[v] = vectors(x + i * abreast)[v];
  return found;
}
LINATTN_INLINE void set_entries(double* x, std::int64_t i, const Entries& from) {
  for (int v = 0; v < row_vectors; ++v) vectors(x + i * abreast)[v] = from.part[v];
}
LINATTN_INLINE void add_multiple(Entries& to, double factor, const Entries& from) {
  for (int v = 0; v < row_vectors; ++v) to.part[v] += from.part[v] * factor;
}
LINATTN_INLINE void multiply_by(Entries& to, double factor) {
  for (int v = 0; v < row_vectors; ++v) to.part[v] *= factor;
}

// sums[u] = sum over j < count of L[first + u][j] x[j], for R rows.
template <int R>
LINATTN_INLINE void row_products(const double* factor, std::int64_t n, std::int64_t first, std::int64_t count,
                                 const double* x, Entries* sums) {
  const double* const rows = factor + first * n;
  Entries even[R] = {}, odd[R] = {};  // two chains of additions each
  std::int64_t j = 0;
  for (; j + 1 < count; j += 2) {
    const Entries one = entries(x, j), other = entries(x, j + 1);
    for (int u = 0; u < R; ++u) {
      add_multiple(even[u], rows[u * n + j], one);
      add_multiple(odd[u], rows[u * n + j + 1], other);
    }
  }
  for (; j < count; ++j) {
    for (int u = 0; u < R; ++u) add_multiple(even[u], rows[u * n + j], entries(x, j));
  }
  for (int u = 0; u < R; ++u) {
    for (int v = 0; v < row_vectors; ++v) sums[u].part[v] = even[u].part[v] + odd[u].part[v];
  }
}

// x[j] += sign sum over u of L[first + u][j] tops[u] for j < count.
template <int R>
LINATTN_INLINE void add_rows(const double* factor, std::int64_t n, std::int64_t first, std::int64_t count, double sign,
                             const Entries* tops, double* x) {
  const double* const rows = factor + first * n;
  Entries signed_tops[R];
  for (int u = 0; u < R; ++u) {
    signed_tops[u] = tops[u];
    multiply_by(signed_tops[u], sign);
  }
  for (std::int64_t j = 0; j < count; ++j) {
    Entries own = entries(x, j);
    for (int u = 0; u < R; ++u) add_multiple(own, rows[u * n + j], signed_tops[u]);
    set_entries(x, j, own);
  }
}

// Rows first .. first + R - 1 of each of the four operations below.
template <int R>
void solve_lower_rows(const double* factor, std::int64_t n, std::int64_t first, double* x) {
  Entries sums[R];
  row_products<R>(factor, n, first, first, x, sums);
  for (int u = 0; u < R; ++u) {
    const double* const row = factor + (first + u) * n + first;
    Entries own = entries(x, first + u);
    add_multiple(own, -1.0, sums[u]);
    for (int before = 0; before < u; ++before) add_multiple(own, -row[before], entries(x, first + before));
    multiply_by(own, 1 / row[u]);
    set_entries(x, first + u, own);
  }
}

template <int R>
void solve_upper_rows(const double* factor, std::int64_t n, std::int64_t first, double* x) {
  Entries tops[R];
  for (int u = R - 1; u >= 0; --u) {
    tops[u] = entries(x, first + u);
    for (int after = u + 1; after < R; ++after) {
      add_multiple(tops[u], -factor[(first + after) * n + first + u], tops[after]);
    }
    multiply_by(tops[u], 1 / factor[(first + u) * n + first + u]);
    set_entries(x, first + u, tops[u]);
  }
  add_rows<R>(factor, n, first, first, -1.0, tops, x);
}

template <int R>
void multiply_lower_rows(const double* factor, std::int64_t n, std::int64_t first, double* x) {
  Entries sums[R];
  row_products<R>(factor, n, first, first, x, sums);
  for (int u = R - 1; u >= 0; --u) {
    const double* const row = factor + (first + u) * n + first;
    for (int k = 0; k <= u; ++k) add_multiple(sums[u], row[k], entries(x, first + k));
    set_entries(x, first + u, sums[u]);
  }
}

template <int R>
void multiply_upper_rows(const double* factor, std::int64_t n, std::int64_t first, double* x) {
  Entries tops[R];
  for (int u = 0; u < R; ++u) tops[u] = entries(x, first + u);
  add_rows<R>(factor, n, first, first, 1.0, tops, x);
  for (int u = 0; u < R; ++u) {
    Entries own = {};
    for (int after = u; after < R; ++after) add_multiple(own, factor[(first + after) * n + first + u], tops[after]);
    set_entries(x, first + u, own);
  }
}

// x = L^-1 x, from the first row down.
inline void solve_lower_abreast(const double* factor, std::int64_t n, double* x) {
  std::int64_t i = 0;
  for (; i + rows_together <= n; i += rows_together) solve_lower_rows<rows_together>(factor, n, i, x);
  for (; i < n; ++i) solve_lower_rows<1>(factor, n, i, x);
}

// x = L'^-1 x, from the last row up.
inline void solve_upper_abreast(const double* factor, std::int64_t n, double* x) {
  std::int64_t i = n;
  for (; i % rows_together != 0; --i) solve_upper_rows<1>(factor, n, i - 1, x);
  for (; i > 0; i -= rows_together) solve_upper_rows<rows_together>(factor, n, i - rows_together, x);
}

// x = L x, from the last row up: those above are still as they were.
inline void multiply_lower_abreast(const double* factor, std::int64_t n, double* x) {
  std::int64_t i = n;
  for (; i % rows_together != 0; --i) multiply_lower_rows<1>(factor, n, i - 1, x);
  for (; i > 0; i -= rows_together) multiply_lower_rows<rows_together>(factor, n, i - rows_together, x);
}

// x = L'x, from the first row down: those below are still as they were.
inline void multiply_upper_abreast(const double* factor, std::int64_t n, double* x) {
  std::int64_t i = 0;
  for (; i + rows_together <= n; i += rows_together) multiply_upper_rows<rows_together>(factor, n, i, x);
  for (; i < n; ++i) multiply_upper_rows<1>(factor, n, i, x);
}

// out[r * abreast + c] = sum over i of a[i][r] b[i][c]
inline void inner_products_abreast(const double* a, const double* b, std::int64_t n, double* out) {
  Entries sums[abreast] = {};
  for (std::int64_t i = 0; i < n; ++i) {
    const Entries own = entries(b, i);
    for (int r = 0; r < abreast; ++r) add_multiple(sums[r], a[i * abreast + r], own);
  }
  for (int r = 0; r < abreast; ++r) set_entries(out, r, sums[r]);
}

// x[i] += factor v[i] H for H (abreast x abreast)
inline void add_combination_abreast(const double* v, const double* H, double factor, std::int64_t n, double* x) {
  Entries rows[abreast];
  for (int r = 0; r < abreast; ++r) {
    rows[r] = entries(H, r);
    multiply_by(rows[r], factor);
  }
  for (std::int64_t i = 0; i < n; ++i) {
    Entries own = entries(x, i);
    for (int r = 0; r < abreast; ++r) add_multiple(own, v[i * abreast + r], rows[r]);
    set_entries(x, i, own);
  }
}
