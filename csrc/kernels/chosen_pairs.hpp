// Moments of chosen pairs of coordinates alone: where few are chosen, S as a whole would cost far more.

// out[i] += sum over t of z_t[pairs[i].x] z_t[pairs[i].y] for N pairs and one vector of sequences; with Shared, all
// have the same y, which is read once.
template <int N, bool Shared>
void chosen_tile(const double* z, std::int64_t length, std::int64_t d, const RowPair* pairs, double* out) {
  const double *x[N], *y[N];
  for (int i = 0; i < N; ++i) {
    x[i] = z + pairs[i].x * lanes;
    y[i] = z + pairs[i].y * lanes;
  }
  Lanes sums[1][N];
  clear(sums);
  std::int64_t at = 0;
  do {
    const Lanes first = *vectors(y[0] + at);
    for (int i = 0; i < N; ++i) sums[0][i] += *vectors(x[i] + at) * (Shared ? first : *vectors(y[i] + at));
    at += d * lanes;
  } while (--length > 0);
  for (int i = 0; i < N; ++i) vectors(out)[i] += sums[0][i];
}

// Row `count` of out becomes NaN where a token is not finite, whether a pair has it or not.
inline void chosen_moments(const double* z, std::int64_t length, std::int64_t d, const RowPair* pairs,
                           std::int64_t count, double* out) {
  std::int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const std::int32_t y = pairs[i].y;
    if (pairs[i + 1].y == y && pairs[i + 2].y == y && pairs[i + 3].y == y) {
      chosen_tile<4, true>(z, length, d, pairs + i, out + i * lanes);
    } else {
      chosen_tile<4, false>(z, length, d, pairs + i, out + i * lanes);
    }
  }
  for (; i < count; ++i) chosen_tile<1, false>(z, length, d, pairs + i, out + i * lanes);
  Lanes zeros[4] = {};
  const std::int64_t numbers = length * d;
  for (i = 0; i + 4 <= numbers; i += 4) {
    for (int k = 0; k < 4; ++k) zeros[k] += 0.0 * vectors(z)[i + k];
  }
  for (; i < numbers; ++i) zeros[0] += 0.0 * vectors(z)[i];
  vectors(out)[count] += zeros[0] + zeros[1] + zeros[2] + zeros[3];
}

// N running sums side by side, as prefix_rows.
template <int N>
void chosen_prefix_rows(const double* z, std::int64_t stride, const RowPair* pairs, std::int64_t first,
                        std::int64_t last, double* s) {
  double sums[N] = {};
  const double *x[N], *y[N];
  for (int a = 0; a < N; ++a) {
    x[a] = z + pairs[a].x * stride;
    y[a] = z + pairs[a].y * stride;
  }
  for (std::int64_t i = first; i < last; ++i) {
    for (int a = 0; a < N; ++a) {
      sums[a] += x[a][i] * y[a][i];
      s[a * stride + i] = sums[a];
    }
  }
}

// s[i][column] = sum over columns first .. column of z[pairs[i].x] z[pairs[i].y].
inline void chosen_prefixes(const double* z, std::int64_t stride, const RowPair* pairs, std::int64_t count,
                            std::int64_t first, std::int64_t last, double* s) {
  std::int64_t i = 0;
  for (; i + 4 <= count; i += 4) chosen_prefix_rows<4>(z, stride, pairs + i, first, last, s + i * stride);
  for (; i < count; ++i) chosen_prefix_rows<1>(z, stride, pairs + i, first, last, s + i * stride);
}
