// S of sequences whose tokens lie side by side, straight from the caller's memory. A token is one vector of coordinates
// x, or two, x and y, and the pairs of coordinates are in the products
//
//   x[i] x[(i + k) % width],   k = 0 .. width / 2     x with itself, rotated
//   x[i] y[k],                 k = 0 .. width - 1     x with one number of y
//
// Tokens are read in the order of memory and need no transposition, which is what short tokens cost most; S, which is
// small, is transposed instead. Every entry is summed in the order, and with the roundings, of the path for sequences
// of any form (second_moment.hpp).

// Tokens of at least `shortest_token` and at most `longest_token` coordinates: fewer leave most of a vector empty, the
// sums of more do not fit the registers.
constexpr std::int64_t shortest_token = 4, longest_token = 2 * lanes;
constexpr std::int64_t longest_lane_token = least(6, longest_token);  // of problems that are solved one a lane
constexpr std::int64_t fewest_tokens = 8;  // below, transposing S costs more than transposing the tokens

// Bytes between what is read and what is asked for, into the L1 cache: what memory delivers in half a microsecond.
constexpr std::int64_t bytes_ahead = 12 * 1024;

// A vector of products: numbers of the two vectors, and k.
struct Product {
  int x, y, k;
};

// The products that make S of tokens of D coordinates.
template <int D>
struct Products {
  // Short tokens leave room in a vector for those of another sequence.
  static constexpr int width = D <= lanes / 2 ? static_cast<int>(lanes) / 2 : static_cast<int>(lanes);
  static constexpr int side = static_cast<int>(lanes) / width;    // sequences in a vector
  static constexpr int vectors = static_cast<int>(lanes) / side;  // vectors of as many sequences as there are lanes
  static constexpr int pieces = (D + width - 1) / width;          // vectors of a token
  static constexpr bool reads_past_end = pieces * width > D;

  // The pair of coordinates at place i, as row of s; -1 where there is none, or has been one before.
  static constexpr std::int64_t pair(const Product& of, int i) {
    const int j = of.x * width + i, k = of.y * width + (of.x == of.y ? (i + of.k) % width : of.k);
    if (j >= D || k >= D || (of.x == of.y && 2 * of.k == width && i >= of.k)) return -1;
    return j < k ? pair_index(j, k, D) : pair_index(k, j, D);
  }
  static constexpr bool has_pairs(const Product& of) {
    for (int i = 0; i < width; ++i) {
      if (pair(of, i) >= 0) return true;
    }
    return false;
  }
  // Number `wanted` of them, or how many there are, as k of {0, 0, k}.
  static constexpr Product find(int wanted) {
    int number = 0;
    for (int x = 0; x < pieces; ++x) {
      for (int y = x; y < pieces; ++y) {
        for (int k = 0; k <= (x == y ? width / 2 : width - 1); ++k) {
          if (has_pairs({x, y, k}) && number++ == wanted) return {x, y, k};
        }
      }
    }
    return {0, 0, number};
  }
  static constexpr int count = find(-1).k;
  // Vectors of sequences taken together, so that additions need not wait for each other, as registers allow.
  static constexpr int most_sums = LINATTN_REGISTERS == 32 ? 20 : 12;
  static constexpr int together = 4 * count <= most_sums && vectors >= 4 ? 4 : 2 * count <= most_sums ? 2 : 1;
};

// x[i] -> x[(i + K) % Width] in each part of Width lanes.
template <int Width, int K>
constexpr int rotated(int i) {
  return i / Width * Width + (i % Width + K) % Width;
}
template <int Width, int K>
LINATTN_INLINE Lanes rotate(const Lanes& x) {
#define LINATTN_FROM(i) rotated<Width, K>(i)
  return LINATTN_SHUFFLE(x, x, LINATTN_EACH_LANE(LINATTN_FROM));
#undef LINATTN_FROM
}

// body(Number<i>) for every product: recursion instead of loops keeps the sums in registers.
template <int I>
struct Number {
  static constexpr int value = I;
};
template <int D, int I = 0, typename Body>
LINATTN_INLINE void each_product(const Body& body) {
  if constexpr (I < Products<D>::count) {
    body(Number<I>{});
    each_product<D, I + 1>(body);
  }
}

// The tokens at z, of one sequence or of those that share a vector.
template <int D>
LINATTN_INLINE void load_tokens(const double* const* z, Lanes* token) {
  if constexpr (Products<D>::side == 1) {
    for (int v = 0; v < Products<D>::pieces; ++v) token[v] = load(z[0] + v * lanes);
  } else {
    token[0] = join(load_half(z[0]), load_half(z[1]));
  }
}

// Of K vectors of sequences.
template <int D, int K>
using Sums = Lanes[K][Products<D>::count];

// sums = sums of the products over tokens, for K vectors of sequences. Tokens are read past their end; the last ones of
// all are read from `ends`, if that is not null. With Ask, what lies `ahead` bytes on is asked for.
template <int D, int K, bool Ask>
LINATTN_INLINE void sum_tokens(const double* const* z, std::int64_t tokens, const double* const* ends,
                               std::int64_t ahead, Sums<D, K>& sums) {
  constexpr int side = Products<D>::side, sequences = K * side, bytes = sequences * D * 8;
  const double* at[sequences];
  for (int i = 0; i < sequences; ++i) at[i] = z[i];
  each_product<D>([&sums](auto number) LINATTN_INLINE_LAMBDA {
    for (int k = 0; k < K; ++k) sums[k][decltype(number)::value] = Lanes{};
  });
  const char* wanted = reinterpret_cast<const char*>(z[0]) + ahead;
  do {
    for (int i = 0; Ask && i < bytes; i += 64) __builtin_prefetch(wanted + i);
    wanted += bytes;
    if (Products<D>::reads_past_end && tokens == 1 && ends != nullptr) {
      for (int i = 0; i < sequences; ++i) at[i] = ends[i];
    }
    for (int k = 0; k < K; ++k) {
      Lanes token[Products<D>::pieces];
      load_tokens<D>(at + k * side, token);
      each_product<D>([&](auto number) LINATTN_INLINE_LAMBDA {
        constexpr Product of = Products<D>::find(decltype(number)::value);
        Lanes& sum = sums[k][decltype(number)::value];
        if constexpr (of.x == of.y) {
          sum += token[of.x] * rotate<Products<D>::width, of.k>(token[of.y]);
        } else {
          sum += token[of.x] * at[k][of.y * lanes + of.k];
        }
      });
    }
    for (int i = 0; i < sequences; ++i) at[i] += D;
  } while (--tokens > 0);
}

// Float64 tokens as they lie, and float32 tokens widened, a chunk at a time.
template <typename T, int D>
struct Chunk;
template <int D>
struct Chunk<double, D> {
  static constexpr bool lies_in_memory = true;
  static const double* of(const double* z, std::int64_t, std::int64_t, double*) { return z; }
};
template <int D>
struct Chunk<float, D> {
  static constexpr bool lies_in_memory = false;
  static const double* of(const float* z, std::int64_t tokens, std::int64_t ahead, double* wide) {
    const std::int64_t count = tokens * D;
    const char* wanted = reinterpret_cast<const char*>(z) + ahead;
    std::int64_t i = 0;
    for (; i + 16 <= count; i += 16) {
      __builtin_prefetch(wanted + 4 * i);
      for (int j = 0; j < 16; j += static_cast<int>(lanes)) store(load(z + i + j), wide + i + j);
    }
    for (; i < count; ++i) wide[i] = static_cast<double>(z[i]);
    for (int j = 0; j < lanes; ++j) wide[count + j] = 0.0;  // read past the end
    return wide;
  }
};

// sums = the products of K vectors of sequences of one length; part i of vector k is data[k + i * step]. wide: a chunk
// of each sequence, and a vector.
template <typename T, int D, int K, bool Ask = true>
LINATTN_INLINE void sequence_products(const T* const* data, int step, std::int64_t length, std::int64_t ahead,
                                      double* wide, Lanes (*sums)[Products<D>::count]) {
  constexpr int side = Products<D>::side, count = K * side, whole = Products<D>::pieces * Products<D>::width;
  constexpr bool in_memory = Chunk<T, D>::lies_in_memory, copies_end = in_memory && Products<D>::reads_past_end;
  const std::int64_t chunk = chunk_tokens(D, 0);
  double last[count][whole] = {};
  const double* ends[count];
  for (int i = 0; copies_end && i < count; ++i) {
    const T* const end = data[i / side + i % side * step] + (length - 1) * D;
    for (int j = 0; j < D; ++j) last[i][j] = static_cast<double>(end[j]);
    ends[i] = last[i];
  }
  for (std::int64_t t = 0; t < length; t += chunk) {
    const std::int64_t tokens = least(chunk, length - t);
    const double* z[count];
    for (int i = 0; i < count; ++i) {
      z[i] =
          Chunk<T, D>::of(data[i / side + i % side * step] + t * D, tokens, ahead, wide + i * (chunk_numbers + lanes));
    }
    Sums<D, K> found{};
    sum_tokens<D, K, in_memory && Ask>(z, tokens, copies_end && t + chunk >= length ? ends : nullptr, ahead, found);
    each_product<D>([&](auto number) LINATTN_INLINE_LAMBDA {
      constexpr int place = decltype(number)::value;
      for (int k = 0; k < K; ++k) sums[k][place] = t > 0 ? sums[k][place] + found[k][place] : found[k][place];
    });
  }
}

// Do sequences of one length follow each other in memory?
template <typename T, int D>
bool follow_each_other(const Sequence* sequences, std::int64_t count) {
  for (std::int64_t i = 1; i < count; ++i) {
    const Sequence& before = sequences[i - 1];
    if (sequences[i].length != before.length ||
        static_cast<const T*>(sequences[i].data) != static_cast<const T*>(before.data) + before.length * D) {
      return false;
    }
  }
  return true;
}

// The products of a vector of sequences one by one: of different lengths, or those from `count` on missing.
template <typename T, int D>
void uneven_products(const Sequence* sequences, int first, std::int64_t count, double* wide, Lanes* sums) {
  using Of = Products<D>;
  for (int place = 0; place < Of::count; ++place) sums[place] = Lanes{};
  for (int i = 0; i < Of::side; ++i) {
    const int number = first + i * Of::vectors;
    if (number >= count) continue;
    const T* const data = static_cast<const T*>(sequences[number].data);
    Lanes alone[1][Of::count] = {};
    sequence_products<T, D, 1>(&data, 0, sequences[number].length, 0, wide, alone);
    for (int place = 0; place < Of::count; ++place) {
      if constexpr (Of::side == 1) {
        sums[place] = alone[0][place];
      } else {
        sums[place] = i == 0 ? join(half_of<0>(alone[0][place]), half_of<1>(sums[place]))
                             : join(half_of<0>(sums[place]), half_of<1>(alone[0][place]));
      }
    }
  }
}

// s (pairs, rows of `stride`), one vector of columns = the pairs in these products.
template <int D>
LINATTN_INLINE void store_pairs(const Lanes (*sums)[Products<D>::count], double* s, std::int64_t stride) {
  using Of = Products<D>;
  each_product<D>([&](auto number) LINATTN_INLINE_LAMBDA {
    constexpr int place = decltype(number)::value;
    Lanes square[Of::vectors];
    for (int v = 0; v < Of::vectors; ++v) square[v] = sums[v][place];
    if constexpr (Of::side == 1) {
      transpose(square);
    } else {
      transpose_halves(square);
    }
    for (int i = 0; i < Of::width; ++i) {
      const std::int64_t row = Of::pair(Of::find(place), i);
      if (row >= 0) *vectors(s + row * stride) = square[i];
    }
  });
}

// s, one vector of columns = S of `count` sequences; other columns are zero. scratch holds a chunk of the sequences
// that are taken together.
template <typename T, int D>
void token_moments(const Sequence* sequences, std::int64_t count, double* scratch, double* s, std::int64_t stride) {
  using Of = Products<D>;
  static_assert(Of::together * Of::side * (chunk_numbers + lanes) <=
                most_lanes * (chunk_numbers / D * D + pair_count(D)));  // sequence_scratch
  const std::int64_t ahead = follow_each_other<T, D>(sequences, count) ? bytes_ahead : 0;
  bool even = count == lanes;
  for (int i = 1; even && i < lanes; ++i) even = sequences[i].length == sequences[0].length;
  const T* data[lanes];
  for (int i = 0; even && i < lanes; ++i) data[i] = static_cast<const T*>(sequences[i].data);
  Lanes sums[Of::vectors][Of::count] = {};
  for (int first = 0; first < Of::vectors; first += Of::together) {
    if (even) {
      sequence_products<T, D, Of::together>(data + first, Of::vectors, sequences[0].length, ahead, scratch,
                                            sums + first);
    } else {
      for (int i = first; i < first + Of::together; ++i) uneven_products<T, D>(sequences, i, count, scratch, sums[i]);
    }
  }
  store_pairs<D>(sums, s, stride);
}

// The same for `count` vectors of sequences of one length: those of a lane follow each other from starts[lane] on.
template <typename T, int D>
void lane_moments(const T* const* starts, std::int64_t count, std::int64_t length, double* scratch, double* s,
                  std::int64_t stride) {
  using Of = Products<D>;
  const T* data[lanes];
  for (int i = 0; i < lanes; ++i) data[i] = starts[i];
  for (std::int64_t v = 0; v < count; ++v, s += lanes) {
    Lanes sums[Of::vectors][Of::count] = {};
    for (int first = 0; first < Of::vectors; first += Of::together) {
      sequence_products<T, D, Of::together, false>(data + first, Of::vectors, length, 0, scratch, sums + first);
    }
    store_pairs<D>(sums, s, stride);
    for (int i = 0; i < lanes; ++i) data[i] += length * D;
  }
}

template <typename T, int D>
void token_moments_of_width(std::int64_t d, const Sequence* sequences, std::int64_t count, double* scratch, double* s,
                            std::int64_t stride) {
  if (d == D) {
    token_moments<T, D>(sequences, count, scratch, s, stride);
  } else {
    if constexpr (D > shortest_token) {
      token_moments_of_width<T, D - 1>(d, sequences, count, scratch, s, stride);
    }
  }
}

template <typename T, int D = static_cast<int>(longest_lane_token)>
void lane_moments_of_width(std::int64_t d, const T* const* starts, std::int64_t count, std::int64_t length,
                           double* scratch, double* s, std::int64_t stride) {
  if (d == D) {
    lane_moments<T, D>(starts, count, length, scratch, s, stride);
  } else {
    if constexpr (D > shortest_token) {
      lane_moments_of_width<T, D - 1>(d, starts, count, length, scratch, s, stride);
    }
  }
}

// As token_moments, for sequences that it is made for; false for others.
inline bool by_tokens(const Sequence* sequences, Scalar scalar, std::int64_t count, std::int64_t d, double* scratch,
                      double* s, std::int64_t stride) {
  if (count == 0 || d < shortest_token || d > longest_token) return false;
  for (std::int64_t i = 0; i < count; ++i) {
    const Sequence& sequence = sequences[i];
    if (sequence.length < fewest_tokens || sequence.column_stride != 1 || sequence.row_stride != d) return false;
  }
  if (scalar == Scalar::float32) {
    token_moments_of_width<float, longest_token>(d, sequences, count, scratch, s, stride);
  } else {
    token_moments_of_width<double, longest_token>(d, sequences, count, scratch, s, stride);
  }
  return true;
}
