// Answers y_t = M z_t to every token of one sequence whose tokens lie side by side, straight from the caller's memory.
// Each output takes a transposition of its own, so this is for few outputs and short tokens; others are answered many
// sequences at a time (layer.hpp).
constexpr std::int64_t longest_answered = 4 * lanes, most_outputs = 2;

// A vector of answers of one output: sum over l of factors[l] z_t[l]. Tokens are read past their end, where the factors
// are zero.
template <typename T, int V>
LINATTN_INLINE Lanes answers(const T* z, std::int64_t d, const Lanes (&factors)[V]) {
  Lanes products[lanes];  // token by token
  for (int i = 0; i < lanes; ++i) {
    products[i] = factors[0] * load(z + i * d);
    for (int v = 1; v < V; ++v) products[i] += factors[v] * load(z + i * d + v * lanes);
  }
  transpose(products);
  for (int i = 1; i < lanes; ++i) products[0] += products[i];
  return products[0];
}

// y[t * step] = sum over l of row[l] z_t[l]; `row` has zeros up to V whole vectors.
template <typename T, int V>
void answer_tokens(const T* z, std::int64_t tokens, std::int64_t d, const double* row, double* y, std::int64_t step) {
  Lanes factors[V];
  for (int v = 0; v < V; ++v) factors[v] = load(row + v * lanes);
  const std::int64_t last_whole =
      tokens - lanes - (V * lanes - 1) / d;  // the last vector may reach over several tokens
  std::int64_t t = 0;
  for (; t <= last_whole; t += lanes) {
    const Lanes found = answers<T, V>(z + t * d, d, factors);
    if (step == 1) {
      store(found, y + t);
    } else {
      for (int i = 0; i < lanes; ++i) y[(t + i) * step] = found[i];
    }
  }
  // The last ones from a copy, for nothing may lie behind them.
  for (; t < tokens; t += lanes) {
    const std::int64_t count = least(lanes, tokens - t);
    T end[(lanes - 1) * longest_answered + V * lanes] = {};
    for (std::int64_t i = 0; i < count * d; ++i) end[i] = z[t * d + i];
    const Lanes found = answers<T, V>(end, d, factors);
    for (std::int64_t i = 0; i < count; ++i) y[(t + i) * step] = found[i];
  }
}

template <typename T, int V>
void answer_outputs(const T* z, std::int64_t tokens, std::int64_t d, const double* map, std::int64_t stride,
                    std::int64_t d_out, double* y) {
  if constexpr (V > 1) {
    if (d <= (V - 1) * lanes) return answer_outputs<T, V - 1>(z, tokens, d, map, stride, d_out, y);
  }
  for (std::int64_t a = 0; a < d_out; ++a) {
    double row[V * lanes] = {};
    for (std::int64_t l = 0; l < d; ++l) row[l] = map[(a * d + l) * stride];
    answer_tokens<T, V>(z, tokens, d, row, y + a, d_out);
  }
}

inline bool answer_sequence(const Sequence& sequence, Scalar scalar, std::int64_t d, const double* map,
                            std::int64_t stride, std::int64_t d_out, double* y) {
  if (d > longest_answered || d_out > most_outputs || sequence.column_stride != 1 || sequence.row_stride != d) {
    return false;
  }
  if (scalar == Scalar::float32) {
    answer_outputs<float, 4>(static_cast<const float*>(sequence.data), sequence.length, d, map, stride, d_out, y);
  } else {
    answer_outputs<double, 4>(static_cast<const double*>(sequence.data), sequence.length, d, map, stride, d_out, y);
  }
  return true;
}
