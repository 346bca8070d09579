// S of sequences whose tokens lie side by side in memory, one sequence after the other: row j of S is the sum of z_t[j]
// times the token itself, a vector of coordinates. Tokens are read in the order of memory and need no transposition,
// which is what short tokens cost most; S, which is small, is transposed instead. Every entry is summed in the order,
// and with the roundings, of the path for sequences of any form (second_moment.hpp).

// Tokens of at least `shortest_token` and at most `longest_token` coordinates: fewer would wait for each addition, more
// do not fit the registers.
constexpr std::int64_t shortest_token = 4, longest_token = 2 * lanes;
constexpr std::int64_t fewest_tokens = 8;  // below, transposing S costs more than transposing the tokens

// Row j of S has the columns from j to the end, in whole vectors. Where vectors are so wide that half of one costs
// less, it starts with the half that holds column j, and ends with a half if no more is needed.
constexpr int whole = static_cast<int>(lanes), unit = whole == 8 ? whole / 2 : whole;
constexpr int rounded_up(int columns, int step) { return (columns + step - 1) / step * step; }

template <int D>
struct Triangle {
  static constexpr int columns = rounded_up(D, unit);  // that are read
  static constexpr int stride = rounded_up(D, whole);  // of a row in memory

  Lanes vectors[D][stride / whole];
  HalfLanes first[D], last[D];

  // body(row, column, part) for every part of every row. Recursion instead of loops: all indices are constants, and the
  // parts live in registers.
  template <int J = 0, int Column = 0, typename Body>
  LINATTN_INLINE void each(const Body& body) {
    if constexpr (Column % whole != 0) {
      body(J, Column, first[J]);
      each<J, Column + unit>(body);
    } else if constexpr (Column + whole <= columns) {
      body(J, Column, vectors[J][Column / whole]);
      each<J, Column + whole>(body);
    } else {
      if constexpr (Column < columns) body(J, Column, last[J]);
      if constexpr (J + 1 < D) each<J + 1, (J + 1) / unit * unit>(body);
    }
  }
};

// sums = sum over tokens of z z'. Tokens are read past their end; the last of all is read from `end`, if that is not
// null. Tokens at `ahead` are asked for at the same pace.
template <typename T, int D>
LINATTN_INLINE void sum_tokens(const T* z, std::int64_t tokens, const T* end, const T* ahead, Triangle<D>& sums) {
  sums.each([](int, int, auto& part) LINATTN_INLINE_LAMBDA { part = zero_like(part); });
  do {
    const T* const token = tokens == 1 && end != nullptr ? end : z;
    for (int i = 0; i < D; i += 64 / static_cast<int>(sizeof(T))) __builtin_prefetch(ahead + i, 0, 2);
    sums.each([token](int j, int column, auto& part)
                  LINATTN_INLINE_LAMBDA { part += static_cast<double>(token[j]) * load_like(part, token + column); });
    z += D;
    ahead += D;
  } while (--tokens > 0);
}

// rows (D rows of Triangle<D>::stride, of which the upper triangle is written) = S of one sequence. `next` is a later
// one.
template <typename T, int D>
void sequence_triangle(const Sequence& sequence, const Sequence& next, double* rows) {
  constexpr std::int64_t stride = Triangle<D>::stride;
  constexpr bool reads_past_end = Triangle<D>::columns > D;
  const std::int64_t length = sequence.length, chunk = chunk_tokens(D, 0);
  const T* const z = static_cast<const T*>(sequence.data);
  T end[stride] = {};
  if (reads_past_end) {
    for (int j = 0; j < D; ++j) end[j] = z[(length - 1) * D + j];
  }
  for (std::int64_t t = 0; t < length; t += chunk) {
    const bool ends = t + chunk >= length;
    Triangle<D> sums;
    sum_tokens<T, D>(z + t * D, ends ? length - t : chunk, reads_past_end && ends ? end : nullptr,
                     ends ? static_cast<const T*>(next.data) : z + (t + chunk) * D, sums);
    if (t == 0) {
      sums.each([rows](int j, int column, auto& part)
                    LINATTN_INLINE_LAMBDA { store(part, rows + j * stride + column); });
    } else {
      sums.each([rows](int j, int column, auto& part) LINATTN_INLINE_LAMBDA {
        store(load_like(part, rows + j * stride + column) + part, rows + j * stride + column);
      });
    }
  }
}

// s (pairs, rows of `stride`), one vector of columns = S of `count` sequences; other columns are zero. `known`
// sequences can be looked at; scratch holds the rows of a vector of sequences.
template <typename T, int D>
void token_moments(const Sequence* sequences, std::int64_t count, std::int64_t known, double* scratch, double* s,
                   std::int64_t stride) {
  constexpr std::int64_t row = Triangle<D>::stride, size = D * row;
  for (std::int64_t i = 0; i < count; ++i) {
    sequence_triangle<T, D>(sequences[i], sequences[i + lanes < known ? i + lanes : i], scratch + i * size);
  }
  for (std::int64_t i = count * size; i < lanes * size; ++i) scratch[i] = 0.0;
  for (int j = 0; j < D; ++j) {
    for (std::int64_t first = j / whole * whole; first < D; first += lanes) {
      Lanes square[lanes];
      for (int i = 0; i < lanes; ++i) square[i] = *vectors(scratch + i * size + j * row + first);
      transpose(square);
      for (int k = 0; k < lanes; ++k) {
        const std::int64_t column = first + k;
        if (column >= j && column < D) *vectors(s + pair_index(j, column, D) * stride) = square[k];
      }
    }
  }
}

template <typename T, int D>
void token_moments_of_width(std::int64_t d, const Sequence* sequences, std::int64_t count, std::int64_t known,
                            double* scratch, double* s, std::int64_t stride) {
  if (d == D) {
    token_moments<T, D>(sequences, count, known, scratch, s, stride);
  } else {
    if constexpr (D > shortest_token) {
      token_moments_of_width<T, D - 1>(d, sequences, count, known, scratch, s, stride);
    }
  }
}

// As token_moments, for sequences that it is made for; false for others.
inline bool by_tokens(const Sequence* sequences, Scalar scalar, std::int64_t count, std::int64_t known, std::int64_t d,
                      double* scratch, double* s, std::int64_t stride) {
  if (count == 0 || d < shortest_token || d > longest_token) return false;
  for (std::int64_t i = 0; i < count; ++i) {
    const Sequence& sequence = sequences[i];
    if (sequence.length < fewest_tokens || sequence.column_stride != 1 || sequence.row_stride != d) return false;
  }
  if (scalar == Scalar::float32) {
    token_moments_of_width<float, longest_token>(d, sequences, count, known, scratch, s, stride);
  } else {
    token_moments_of_width<double, longest_token>(d, sequences, count, known, scratch, s, stride);
  }
  return true;
}
