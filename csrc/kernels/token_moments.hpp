// S of sequences whose tokens lie side by side in memory, one sequence after the other: row j of S is the sum of z_t[j]
// times the token itself, a vector of coordinates. Tokens are read in the order of memory and need no transposition, which
// is what short tokens cost most; S, which is small, is transposed instead. Every entry is summed in the order, and with
// the roundings, of the path for sequences of any form (second_moment.hpp).

// Tokens of at least `shortest_token` and at most `longest_token` coordinates: fewer would wait for each addition, more
// do not fit the registers.
constexpr std::int64_t shortest_token = 4, longest_token = 2 * lanes;
constexpr std::int64_t fewest_tokens = 8;  // below, transposing S costs more than transposing the tokens

template <int D>
constexpr int token_vectors = (D + static_cast<int>(lanes) - 1) / static_cast<int>(lanes);

// out (D rows of token_vectors<D>) += sum over tokens of z z', upper triangle. A token is read a vector past its end, so the
// last one of a sequence is copied first.
template <typename T, int D>
void add_tokens(const T* z, std::int64_t tokens, bool ends, Lanes* out) {
  constexpr int V = token_vectors<D>;
  Lanes sums[D][V];
  clear(sums);
  const auto add = [&sums](const T* token) {
    Lanes right[V];
    for (int v = 0; v < V; ++v) right[v] = load(token + v * lanes);
    for (int j = 0; j < D; ++j) {
      const double left = static_cast<double>(token[j]);
      for (int v = j / static_cast<int>(lanes); v < V; ++v) sums[j][v] += left * right[v];
    }
  };
  for (tokens -= ends; tokens > 0; --tokens, z += D) add(z);
  if (ends) {
    T last[V * lanes] = {};
    for (int j = 0; j < D; ++j) last[j] = z[j];
    add(last);
  }
  for (int j = 0; j < D; ++j) {
    for (int v = j / static_cast<int>(lanes); v < V; ++v) out[j * V + v] += sums[j][v];
  }
}

// s (pairs, rows of `stride`), one vector of columns = S of `count` sequences; other columns are zero.
template <typename T, int D>
void token_moments(const Sequence* sequences, std::int64_t count, double* s, std::int64_t stride) {
  constexpr int V = token_vectors<D>, size = D * V;
  const std::int64_t chunk = chunk_tokens(D, 0);
  Lanes sums[lanes][size] = {};
  for (std::int64_t i = 0; i < count; ++i) {
    const T* z = static_cast<const T*>(sequences[i].data);
    const std::int64_t length = sequences[i].length;
    for (std::int64_t t = 0; t < length; t += chunk) {
      add_tokens<T, D>(z + t * D, least(chunk, length - t), t + chunk >= length, sums[i]);
    }
  }
  for (int j = 0; j < D; ++j) {
    for (int v = j / static_cast<int>(lanes); v < V; ++v) {
      Lanes square[lanes];
      for (int i = 0; i < lanes; ++i) square[i] = sums[i][j * V + v];
      transpose(square);
      for (int k = 0; k < lanes; ++k) {
        const std::int64_t column = v * lanes + k;
        if (column >= j && column < D) *vectors(s + pair_index(j, column, D) * stride) = square[k];
      }
    }
  }
}

template <typename T, int D>
void token_moments_of_width(std::int64_t d, const Sequence* sequences, std::int64_t count, double* s,
                            std::int64_t stride) {
  if (d == D) {
    token_moments<T, D>(sequences, count, s, stride);
  } else {
    if constexpr (D > shortest_token) token_moments_of_width<T, D - 1>(d, sequences, count, s, stride);
  }
}

// As token_moments, for sequences that it is made for; false for others.
inline bool by_tokens(const Sequence* sequences, Scalar scalar, std::int64_t count, std::int64_t d, double* s,
                      std::int64_t stride) {
  if (count == 0 || d < shortest_token || d > longest_token) return false;
  for (std::int64_t i = 0; i < count; ++i) {
    const Sequence& sequence = sequences[i];
    if (sequence.length < fewest_tokens || sequence.column_stride != 1 || sequence.row_stride != d) return false;
  }
  if (scalar == Scalar::float32) {
    token_moments_of_width<float, longest_token>(d, sequences, count, s, stride);
  } else {
    token_moments_of_width<double, longest_token>(d, sequences, count, s, stride);
  }
  return true;
}
