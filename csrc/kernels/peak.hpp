// The fastest that multiply-adds can go: nothing but independent ones, all in registers.
inline double multiply_adds(std::int64_t rounds) {
  Lanes sums[1][independent_vectors];
  clear(sums);
  // All different, or the compiler computes them once.
  for (int i = 0; i < independent_vectors; ++i) sums[0][i] += 1e-3 * i;
  Lanes factor = Lanes{} + 0.999, term = Lanes{} + 1e-9;
  do {
    for (int i = 0; i < independent_vectors; ++i) sums[0][i] = sums[0][i] * factor + term;
  } while (--rounds > 0);
  double total = 0.0;
  for (int i = 0; i < independent_vectors; ++i) total += sums[0][i][0];
  return total;
}
