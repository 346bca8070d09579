// Vectors over samples, written with the vector types of GCC and Clang so that one source serves every instruction
// set. Included inside the namespace of one instruction set: nothing here may be shared between two of them, or the
// linker could keep the copy that the processor cannot run. For the same reason no standard library template is used.

constexpr std::int64_t lanes = LINATTN_VECTOR_BYTES / 8;

typedef double Lanes __attribute__((vector_size(LINATTN_VECTOR_BYTES)));
typedef double UnalignedLanes __attribute__((vector_size(LINATTN_VECTOR_BYTES), aligned(8)));
typedef double HalfLanes __attribute__((vector_size(LINATTN_VECTOR_BYTES / 2)));
typedef double UnalignedHalf __attribute__((vector_size(LINATTN_VECTOR_BYTES / 2), aligned(8)));
typedef float FloatLanes __attribute__((vector_size(LINATTN_VECTOR_BYTES)));      // twice as many
typedef float HalfFloats __attribute__((vector_size(LINATTN_VECTOR_BYTES / 2)));  // as many as Lanes
typedef float UnalignedFloats __attribute__((vector_size(LINATTN_VECTOR_BYTES / 2), aligned(4)));
typedef float UnalignedHalfFloats __attribute__((vector_size(LINATTN_VECTOR_BYTES / 4), aligned(4)));

template <typename T>
struct VectorOf;
template <>
struct VectorOf<double> {
  typedef Lanes type;
};
template <>
struct VectorOf<float> {
  typedef FloatLanes type;
};
template <typename T>
using Vector = typename VectorOf<T>::type;

constexpr std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

template <typename T>
inline const Vector<T>* vectors(const T* row) {
  return reinterpret_cast<const Vector<T>*>(row);
}
template <typename T>
inline Vector<T>* vectors(T* row) {
  return reinterpret_cast<Vector<T>*>(row);
}

// Sums that are to live in registers. The loop that follows must run at least once, or the compiler keeps them in
// memory; hence the do-while loops.
template <int M, int N, typename V>
inline void clear(V (&sums)[M][N]) {
  for (int i = 0; i < M; ++i) {
    for (int j = 0; j < N; ++j) sums[i][j] = V{};
  }
}

inline Lanes load(const double* source) { return *reinterpret_cast<const UnalignedLanes*>(source); }
inline Lanes load(const float* source) {
  return __builtin_convertvector(*reinterpret_cast<const UnalignedFloats*>(source), Lanes);
}

inline HalfLanes load_half(const double* source) { return *reinterpret_cast<const UnalignedHalf*>(source); }
inline HalfLanes load_half(const float* source) {
  return __builtin_convertvector(*reinterpret_cast<const UnalignedHalfFloats*>(source), HalfLanes);
}

inline void store(const Lanes& vector, double* out) { *reinterpret_cast<UnalignedLanes*>(out) = vector; }
inline void store(const HalfLanes& half, double* out) { *reinterpret_cast<UnalignedHalf*>(out) = half; }

// Where sums must not leave the registers.
#define LINATTN_INLINE __attribute__((always_inline)) inline
#define LINATTN_INLINE_LAMBDA __attribute__((always_inline))

// Two vectors' elements in a new order. GCC has had Clang's name for it since version 12.
#if defined(__clang__) || __GNUC__ >= 12
#define LINATTN_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
typedef long long LaneNumbers __attribute__((vector_size(LINATTN_VECTOR_BYTES)));
#define LINATTN_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, LaneNumbers{__VA_ARGS__})
#endif

// f(0), f(1), .. for every lane, and for half of them.
#if LINATTN_VECTOR_BYTES == 16
#define LINATTN_EACH_HALF(f) f(0)
#define LINATTN_EACH_LANE(f) f(0), f(1)
#elif LINATTN_VECTOR_BYTES == 32
#define LINATTN_EACH_HALF(f) f(0), f(1)
#define LINATTN_EACH_LANE(f) f(0), f(1), f(2), f(3)
#else
#define LINATTN_EACH_HALF(f) f(0), f(1), f(2), f(3)
#define LINATTN_EACH_LANE(f) f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7)
#endif

// Two halves as one vector, and the halves of one.
inline Lanes join(const HalfLanes& lower, const HalfLanes& upper) {
#if defined(__clang__) || __GNUC__ >= 12
#define LINATTN_LANE(i) i
  return __builtin_shufflevector(lower, upper, LINATTN_EACH_LANE(LINATTN_LANE));
#else
#define LINATTN_LANE(i) ((i) < lanes / 2 ? lower[(i) % (lanes / 2)] : upper[(i) % (lanes / 2)])
  return Lanes{LINATTN_EACH_LANE(LINATTN_LANE)};
#endif
#undef LINATTN_LANE
}
template <int Number>
inline HalfLanes half_of(const Lanes& vector) {
#define LINATTN_LANE(i) vector[(i) + Number * lanes / 2]
  return HalfLanes{LINATTN_EACH_HALF(LINATTN_LANE)};
#undef LINATTN_LANE
}

// rows[i][j] -> rows[j][i] for a square of lanes x lanes: interleave ever larger pieces of two rows.
#if LINATTN_VECTOR_BYTES == 16
inline void transpose(Lanes* r) {
  const Lanes a = r[0], b = r[1];
  r[0] = LINATTN_SHUFFLE(a, b, 0, 2);
  r[1] = LINATTN_SHUFFLE(a, b, 1, 3);
}
#elif LINATTN_VECTOR_BYTES == 32
inline void transpose(Lanes* r) {
  Lanes t[4];
  for (int i = 0; i < 4; i += 2) {
    t[i] = LINATTN_SHUFFLE(r[i], r[i + 1], 0, 4, 2, 6);
    t[i + 1] = LINATTN_SHUFFLE(r[i], r[i + 1], 1, 5, 3, 7);
  }
  for (int i = 0; i < 2; ++i) {
    r[i] = LINATTN_SHUFFLE(t[i], t[i + 2], 0, 1, 4, 5);
    r[i + 2] = LINATTN_SHUFFLE(t[i], t[i + 2], 2, 3, 6, 7);
  }
}
#else
inline void transpose(Lanes* r) {
  Lanes t[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = LINATTN_SHUFFLE(r[i], r[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
    t[i + 1] = LINATTN_SHUFFLE(r[i], r[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
  }
  for (int i = 0; i < 8; i += 4) {
    for (int j = i; j < i + 2; ++j) {
      r[j] = LINATTN_SHUFFLE(t[j], t[j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
      r[j + 2] = LINATTN_SHUFFLE(t[j], t[j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
  for (int i = 0; i < 4; ++i) {
    const Lanes a = r[i], b = r[i + 4];
    r[i] = LINATTN_SHUFFLE(a, b, 0, 1, 2, 3, 8, 9, 10, 11);
    r[i + 4] = LINATTN_SHUFFLE(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
  }
}
#endif

// The same within each half: rows[i][j] -> rows[j][i] for j < lanes / 2, and for the others.
#if LINATTN_VECTOR_BYTES == 16
inline void transpose_halves(Lanes*) {}
#elif LINATTN_VECTOR_BYTES == 32
inline void transpose_halves(Lanes* r) {
  const Lanes a = r[0], b = r[1];
  r[0] = LINATTN_SHUFFLE(a, b, 0, 4, 2, 6);
  r[1] = LINATTN_SHUFFLE(a, b, 1, 5, 3, 7);
}
#else
inline void transpose_halves(Lanes* r) {
  Lanes t[4];
  for (int i = 0; i < 4; i += 2) {
    t[i] = LINATTN_SHUFFLE(r[i], r[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
    t[i + 1] = LINATTN_SHUFFLE(r[i], r[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
  }
  for (int i = 0; i < 2; ++i) {
    r[i] = LINATTN_SHUFFLE(t[i], t[i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
    r[i + 2] = LINATTN_SHUFFLE(t[i], t[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
  }
}
#endif

// The sum of the lanes of r[i], in lane i: halves that two vectors keep of each other, in every step.
#if LINATTN_VECTOR_BYTES == 16
inline Lanes sums_of_lanes(const Lanes* r) {
  return LINATTN_SHUFFLE(r[0], r[1], 0, 2) + LINATTN_SHUFFLE(r[0], r[1], 1, 3);
}
#elif LINATTN_VECTOR_BYTES == 32
inline Lanes sums_of_lanes(const Lanes* r) {
  Lanes t[2];
  for (int i = 0; i < 2; ++i) {
    const Lanes a = r[2 * i], b = r[2 * i + 1];
    t[i] = LINATTN_SHUFFLE(a, b, 0, 4, 2, 6) + LINATTN_SHUFFLE(a, b, 1, 5, 3, 7);
  }
  return LINATTN_SHUFFLE(t[0], t[1], 0, 1, 4, 5) + LINATTN_SHUFFLE(t[0], t[1], 2, 3, 6, 7);
}
#else
inline Lanes sums_of_lanes(const Lanes* r) {
  Lanes t[4], f[2];
  for (int i = 0; i < 4; ++i) {
    const Lanes a = r[2 * i], b = r[2 * i + 1];
    t[i] = LINATTN_SHUFFLE(a, b, 0, 8, 2, 10, 4, 12, 6, 14) + LINATTN_SHUFFLE(a, b, 1, 9, 3, 11, 5, 13, 7, 15);
  }
  for (int i = 0; i < 2; ++i) {
    const Lanes a = t[2 * i], b = t[2 * i + 1];
    f[i] = LINATTN_SHUFFLE(a, b, 0, 1, 8, 9, 4, 5, 12, 13) + LINATTN_SHUFFLE(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
  }
  return LINATTN_SHUFFLE(f[0], f[1], 0, 1, 2, 3, 8, 9, 10, 11) +
         LINATTN_SHUFFLE(f[0], f[1], 4, 5, 6, 7, 12, 13, 14, 15);
}
#endif
