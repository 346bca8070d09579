// What a query of a stream attends to, a running sum of outer products with gates:
//
//   M_t = g_t M_(t-1) + a_t b_t'
//
// M is kept row by row without gaps, row j from column first(j) on: 0, or j where only pairs j <= k count. Rows are
// written in vectors, past their ends where the row that follows is written after them; hence the two memories.

// Row j, C vectors from column k on, after `count` keys. Every entry goes through the same operations in the same
// order whatever the number of keys that are taken at once.
template <int C>
LINATTN_INLINE void run_entries(const double* before, const double* a, std::int64_t a_stride, const double* b,
                                std::int64_t b_stride, const double* gates, std::int64_t count, double* after) {
  Lanes sums[C];
  for (int i = 0; i < C; ++i) sums[i] = load(before + i * lanes);
  for (std::int64_t t = 0; t < count; ++t) {
    if (gates != nullptr) {
      for (int i = 0; i < C; ++i) sums[i] = sums[i] * gates[t];
    }
    for (int i = 0; i < C; ++i) sums[i] += load(b + i * lanes) * *a;
    a += a_stride;
    b += b_stride;
  }
  for (int i = 0; i < C; ++i) store(sums[i], after + i * lanes);
}

inline void running_memory(const KeyRows& keys, const double* before, double* after) {
  for (std::int64_t j = 0; j < keys.d_v; ++j) {
    const double* const a = keys.values + j;
    std::int64_t k = keys.symmetric ? j : 0;
    const std::int64_t width = keys.d_k - k;
    for (std::int64_t done = 0; done < width;) {
      const double* const b = keys.keys + k + done;
      if (width - done > 3 * lanes) {
        run_entries<4>(before + done, a, keys.d_v_stride, b, keys.d_k_stride, keys.gates, keys.count, after + done);
        done += 4 * lanes;
      } else if (width - done > lanes) {
        run_entries<2>(before + done, a, keys.d_v_stride, b, keys.d_k_stride, keys.gates, keys.count, after + done);
        done += 2 * lanes;
      } else {
        run_entries<1>(before + done, a, keys.d_v_stride, b, keys.d_k_stride, keys.gates, keys.count, after + done);
        done += lanes;
      }
    }
    before += width;
    after += width;
  }
}
