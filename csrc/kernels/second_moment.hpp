// Moments of the tokens of each sequence, and of each prefix.

// Sums of a tile, with the rows' vectors, in the registers.
constexpr int moment_tile_rows = LINATTN_REGISTERS == 32 ? 4 : 3, moment_tile_columns = LINATTN_REGISTERS == 32 ? 6 : 4;

// out[(j,k)] += sum over t of x_t[j] y_t[k], lane by lane, rows j .. j + M against columns k .. k + N. With Triangular,
// x is y, out is the upper triangle, and entries left of the diagonal are computed and dropped.
template <int M, int N, bool Triangular>
void moment_tile(const double* x, const double* y, std::int64_t length, std::int64_t x_size, std::int64_t y_size,
                 std::int64_t width, std::int64_t j, std::int64_t k, double* out, std::int64_t stride) {
  const double* left_token = x + j * width;
  const double* right_token = y + k * width;
  Lanes sums[M][N];
  clear(sums);
  do {
    Lanes left[M];
    for (int a = 0; a < M; ++a) left[a] = *vectors(left_token + a * width);
    for (int b = 0; b < N; ++b) {
      const Lanes right = *vectors(right_token + b * width);
      for (int a = 0; a < M; ++a) sums[a][b] += left[a] * right;
    }
    left_token += x_size * width;
    right_token += y_size * width;
  } while (--length > 0);
  for (int a = 0; a < M; ++a) {
    for (int b = 0; b < N; ++b) {
      if (Triangular && k + b < j + a) continue;
      const std::int64_t entry = Triangular ? pair_index(j + a, k + b, y_size) : (j + a) * y_size + k + b;
      *vectors(out + entry * stride) += sums[a][b];
    }
  }
}

// The tile of just the size that is left at an edge.
template <int M, int N, bool Triangular>
void moment_edge(std::int64_t n, const double* x, const double* y, std::int64_t length, std::int64_t x_size,
                 std::int64_t y_size, std::int64_t width, std::int64_t j, std::int64_t k, double* out,
                 std::int64_t stride) {
  if (n == N) {
    moment_tile<M, N, Triangular>(x, y, length, x_size, y_size, width, j, k, out, stride);
  } else {
    if constexpr (N > 1) {
      moment_edge<M, N - 1, Triangular>(n, x, y, length, x_size, y_size, width, j, k, out, stride);
    }
  }
}

template <int M, bool Triangular>
void moment_rows(std::int64_t m, const double* x, const double* y, std::int64_t length, std::int64_t x_size,
                 std::int64_t y_size, std::int64_t width, std::int64_t j, double* out, std::int64_t stride) {
  if (m < M) {
    if constexpr (M > 1) moment_rows<M - 1, Triangular>(m, x, y, length, x_size, y_size, width, j, out, stride);
    return;
  }
  for (std::int64_t k = Triangular ? j : 0; k < y_size; k += moment_tile_columns) {
    moment_edge<M, moment_tile_columns, Triangular>(least(moment_tile_columns, y_size - k), x, y, length, x_size,
                                                    y_size, width, j, k, out, stride);
  }
}

template <bool Triangular>
void moment(const double* x, const double* y, std::int64_t length, std::int64_t x_size, std::int64_t y_size,
            std::int64_t width, double* out, std::int64_t stride) {
  for (std::int64_t lane = 0; lane < width; lane += lanes) {
    for (std::int64_t j = 0; j < x_size; j += moment_tile_rows) {
      moment_rows<moment_tile_rows, Triangular>(least(moment_tile_rows, x_size - j), x + lane, y + lane, length, x_size,
                                                y_size, width, j, out + lane, stride);
    }
  }
}

inline void second_moment(const double* tokens, std::int64_t length, std::int64_t d, std::int64_t width, double* s,
                          std::int64_t stride) {
  moment<true>(tokens, tokens, length, d, d, width, s, stride);
}

inline void gather_chunk(const Sequence* sequences, const Sequence* ahead, Scalar scalar, std::int64_t count,
                         std::int64_t first, std::int64_t last, std::int64_t d, double* out) {
  if (scalar == Scalar::float32) {
    gather_and_prefetch<float>(sequences, ahead, count, first, last, d, lanes, out, lanes);
  } else {
    gather_and_prefetch<double>(sequences, ahead, count, first, last, d, lanes, out, lanes);
  }
}

inline void copy_out(const double* sums, std::int64_t rows, double* out, std::int64_t stride) {
  for (std::int64_t row = 0; row < rows; ++row) *vectors(out + row * stride) = vectors(sums)[row];
}

// One vector of sequences at a time, a chunk of tokens at a time: tokens and sums stay in the L1 cache.
inline void sequence_moments(const SequenceColumns& in, std::int64_t width, double* scratch, double* s, double* maps,
                             double* energy, std::int64_t stride) {
  const std::int64_t d = in.d, d_out = in.d_out, chunk = chunk_tokens(d, d_out);
  const std::int64_t pairs = in.pairs != nullptr ? in.pairs_chosen + 1 : pair_count(d);
  double* const z = scratch;
  double* const y = z + chunk * d * lanes;
  double* const s_sums = y + chunk * d_out * lanes;
  double* const map_sums = s_sums + pairs * lanes;
  double* const energy_sums = map_sums + d_out * d * lanes;
  for (std::int64_t lane = 0; lane < width; lane += lanes) {
    const std::int64_t count = lane < in.count ? least(lanes, in.count - lane) : 0;
    if (d_out == 0 && in.pairs == nullptr &&
        by_tokens(in.tokens + lane, in.token_scalar, count, d, scratch, s + lane, stride)) {
      continue;
    }
    std::int64_t longest = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      if (in.tokens[lane + i].length > longest) longest = in.tokens[lane + i].length;
    }
    for (std::int64_t i = 0; i < (pairs + d_out * d + d_out) * lanes; ++i) s_sums[i] = 0.0;
    for (std::int64_t t = 0; t < longest; t += chunk) {
      const std::int64_t last = least(t + chunk, longest);
      const Sequence* ahead = lane + 2 * lanes <= in.known ? in.tokens + lane + lanes : nullptr;
      gather_chunk(in.tokens + lane, ahead, in.token_scalar, count, t, last, d, z);
      if (in.pairs != nullptr) {
        chosen_moments(z, last - t, d, in.pairs, in.pairs_chosen, s_sums);
      } else {
        second_moment(z, last - t, d, lanes, s_sums, lanes);
      }
      if (d_out == 0) continue;
      gather_chunk(in.targets + lane, nullptr, in.target_scalar, count, t, last, d_out, y);
      moment<false>(y, z, last - t, d_out, d, lanes, map_sums, lanes);
      for (std::int64_t i = 0; i < (last - t) * d_out; ++i) {
        vectors(energy_sums)[i % d_out] += vectors(y)[i] * vectors(y)[i];
      }
    }
    copy_out(s_sums, pairs, s + lane, stride);
    if (d_out > 0) {
      copy_out(map_sums, d_out * d, maps + lane, stride);
      copy_out(energy_sums, d_out, energy + lane, stride);
    }
  }
}

// Sequences of one length, each lane's one after the other from in.tokens[lane] on, in C order: s (pairs) = S and z (d)
// = the last token of `count` vectors of them, in rows of `stride`.
template <typename T>
void lane_sequences_of(const SequenceColumns& in, std::int64_t count, double* scratch, double* s, double* z,
                       std::int64_t stride) {
  const std::int64_t length = in.tokens[0].length, size = length * in.d;
  const T* starts[lanes];
  for (int i = 0; i < lanes; ++i) starts[i] = static_cast<const T*>(in.tokens[i].data);
  const bool by_token = in.pairs == nullptr && in.d >= shortest_token && in.d <= longest_lane_token;
  if (by_token && length >= fewest_tokens) {
    lane_moments_of_width<T>(in.d, starts, count, length, scratch, s, stride);
  } else {
    Sequence sequences[lanes];
    for (int i = 0; i < lanes; ++i) sequences[i] = in.tokens[i];
    SequenceColumns own = in;
    own.tokens = sequences;
    for (std::int64_t v = 0; v < count; ++v) {
      for (int i = 0; i < lanes; ++i) sequences[i].data = starts[i] + v * size;
      sequence_moments(own, lanes, scratch, s + v * lanes, nullptr, nullptr, stride);
    }
  }
  for (int i = 0; i < lanes; ++i) starts[i] += size - in.d;
  for (std::int64_t v = 0; v < count; ++v) {
    gather_tokens(starts, in.d, z + v * lanes, stride);
    for (int i = 0; i < lanes; ++i) starts[i] += size;
  }
}

inline void lane_sequences(const SequenceColumns& in, std::int64_t count, double* scratch, double* s, double* z,
                           std::int64_t stride) {
  if (in.token_scalar == Scalar::float32) {
    lane_sequences_of<float>(in, count, scratch, s, z, stride);
  } else {
    lane_sequences_of<double>(in, count, scratch, s, z, stride);
  }
}

// Rows k .. k + N of the pairs (j, .): N running sums side by side hide the latency of each addition.
template <int N>
void prefix_rows(const double* z, std::int64_t stride, std::int64_t j, std::int64_t k, std::int64_t first,
                 std::int64_t last, double* s) {
  double sums[N] = {};
  const double* left = z + j * stride;
  const double* right = z + k * stride;
  for (std::int64_t i = first; i < last; ++i) {
    for (int a = 0; a < N; ++a) {
      sums[a] += left[i] * right[a * stride + i];
      s[a * stride + i] = sums[a];
    }
  }
}

// s[(j,k)][i] = sum over columns first .. i of z[j] z[k]: S of every prefix of tokens that lie side by side.
inline void prefix_moments(const double* z, std::int64_t d, std::int64_t stride, std::int64_t first, std::int64_t last,
                           double* s) {
  for (std::int64_t j = 0; j < d; ++j) {
    double* rows = s + pair_index(j, j, d) * stride;
    std::int64_t k = j;
    for (; k + 4 <= d; k += 4) prefix_rows<4>(z, stride, j, k, first, last, rows + (k - j) * stride);
    for (; k < d; ++k) prefix_rows<1>(z, stride, j, k, first, last, rows + (k - j) * stride);
  }
}
