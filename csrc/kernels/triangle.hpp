// Steps of a blocked Cholesky factorisation inside its small diagonal triangles, triangle_step rows wide.
//
// By substitution, not with inverted triangles: the error of a product with an inverse grows with the condition of the
// triangle, and then no bound such as that of docs/certificate.md holds. Pivots are inverted, which costs one rounding.
//
// A triangle L lies in columns: columns[k * triangle_step + j] = L[j][k]; where it has fewer rows, the rest is zero,
// and so are the reciprocals of its pivots.

// L of the symmetric matrix whose lower triangle `columns` holds; overwrites it (what is above the diagonal is
// undefined) and returns the number of pivots before the first of `n` that is not positive.
inline std::int64_t factor_triangle(double* columns, std::int64_t n, double* reciprocals) {
  constexpr int height = static_cast<int>(triangle_step / lanes);
  for (std::int64_t j = 0; j < n; ++j) {
    Lanes* const column = vectors(columns + j * triangle_step);
    Lanes sums[height];
    for (int v = 0; v < height; ++v) sums[v] = column[v];
    for (std::int64_t k = 0; k < j; ++k) {
      const Lanes* const before = vectors(static_cast<const double*>(columns) + k * triangle_step);
      const double factor = columns[k * triangle_step + j];
      for (int v = 0; v < height; ++v) sums[v] -= before[v] * factor;
    }
    for (int v = 0; v < height; ++v) column[v] = sums[v];
    const double pivot = columns[j * triangle_step + j];
    if (!(pivot > 0)) return j;  // NaN too
    const double root = __builtin_sqrt(pivot), reciprocal = 1 / root;
    for (int v = 0; v < height; ++v) column[v] *= reciprocal;
    columns[j * triangle_step + j] = root;
    reciprocals[j] = reciprocal;
  }
  return n;
}

// x[j] = (x[j] - sum over k < j of L[j][k] x[k]) reciprocals[j], rows x of M vectors; four rows at a time.
template <int M>
void substitute_vectors(const double* columns, const double* reciprocals, double* x) {
  constexpr int together = 4;
  constexpr std::int64_t width = M * lanes;
  for (std::int64_t j = 0; j < triangle_step; j += together) {
    Lanes sums[together][M];
    for (int u = 0; u < together; ++u) {
      for (int i = 0; i < M; ++i) sums[u][i] = vectors(x + (j + u) * width)[i];
    }
    for (std::int64_t k = 0; k < j; ++k) {
      const Lanes* const done = vectors(static_cast<const double*>(x) + k * width);
      for (int u = 0; u < together; ++u) {
        const double factor = columns[k * triangle_step + j + u];
        for (int i = 0; i < M; ++i) sums[u][i] -= done[i] * factor;
      }
    }
    for (int u = 0; u < together; ++u) {
      for (int before = 0; before < u; ++before) {
        const double factor = columns[(j + before) * triangle_step + j + u];
        for (int i = 0; i < M; ++i) sums[u][i] -= sums[before][i] * factor;
      }
      for (int i = 0; i < M; ++i) {
        sums[u][i] *= reciprocals[j + u];
        vectors(x + (j + u) * width)[i] = sums[u][i];
      }
    }
  }
}

template <int M = LINATTN_TILE_VECTORS>
void substitute_width(const double* columns, const double* reciprocals, std::int64_t width, double* x) {
  if (width == M * lanes) {
    substitute_vectors<M>(columns, reciprocals, x);
  } else if constexpr (M > 1) {
    substitute_width<M - 1>(columns, reciprocals, width, x);
  }
}

inline void substitute(const double* columns, const double* reciprocals, std::int64_t width, double* x) {
  substitute_width<>(columns, reciprocals, width, x);
}

// rows[i * stride + k] = packed[k * width + i] for triangle_step samples k: pack_left_rows of one panel, undone.
inline void unpack_panel(const double* packed, std::int64_t width, double* rows, std::int64_t stride) {
  for (std::int64_t i = 0; i < width; i += lanes) {
    for (std::int64_t k = 0; k < triangle_step; k += lanes) {
      Lanes square[lanes];
      for (int u = 0; u < lanes; ++u) square[u] = *vectors(packed + (k + u) * width + i);
      transpose(square);
      for (int u = 0; u < lanes; ++u) *vectors(rows + (i + u) * stride + k) = square[u];
    }
  }
}
