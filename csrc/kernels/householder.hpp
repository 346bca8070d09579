// A symmetric matrix of some dozens of rows brought to tridiagonal form by reflections, one column after the other:
//
//   H = I - beta v v'     H A H = A - v w' - w v'     w = p - (beta / 2) (p'v) v     p = beta A v
//
// Both triangles are kept, so that every loop runs along rows.

LINATTN_INLINE double sum_of(const Lanes& vector) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < lanes; ++i) sum += vector[i];
  return sum;
}

// Entries `first` and on of x'y, first a multiple of lanes.
inline double inner_product(const double* x, const double* y, std::int64_t first, std::int64_t n) {
  Lanes sum = {};
  for (std::int64_t c = first; c < n; c += lanes) sum += *vectors(x + c) * *vectors(y + c);
  return sum_of(sum);
}

// A (n x n), n a multiple of most_lanes, with entries whose squares neither overflow nor lose what counts; it is
// overwritten. diagonal (n) and beside (n, the last one 0) are the tridiagonal matrix; v and w (n) are scratch.
inline void tridiagonalise(double* A, std::int64_t n, double* diagonal, double* beside, double* v, double* w) {
  for (std::int64_t k = 0; k < n; ++k) {
    const double* const row = A + k * n;
    diagonal[k] = row[k];
    if (k + 1 == n) {
      beside[k] = 0.0;
      return;
    }
    const std::int64_t first = (k + 1) / lanes * lanes;  // v and w are zero up to k
    for (std::int64_t c = first; c < n; ++c) v[c] = c > k ? row[c] : 0.0;
    const double length = __builtin_sqrt(inner_product(v, v, first, n)), head = v[k + 1];
    beside[k] = head > 0 ? -length : length;
    if (length == 0.0) continue;
    v[k + 1] = head - beside[k];
    const double beta = 1 / (length * (length + (head > 0 ? head : -head)));
    for (std::int64_t c = first; c < n; c += lanes) {
      Lanes even = {}, odd = {};  // two chains of additions
      std::int64_t j = k + 1;
      for (; j + 1 < n; j += 2) {
        even += *vectors(A + j * n + c) * v[j];
        odd += *vectors(A + (j + 1) * n + c) * v[j + 1];
      }
      if (j < n) even += *vectors(A + j * n + c) * v[j];
      *vectors(w + c) = (even + odd) * beta;
    }
    for (std::int64_t c = first; c <= k; ++c) w[c] = 0.0;
    const double half = beta / 2 * inner_product(w, v, first, n);
    for (std::int64_t c = first; c < n; c += lanes) *vectors(w + c) -= *vectors(v + c) * half;
    for (std::int64_t j = k + 1; j < n; ++j) {
      for (std::int64_t c = first; c < n; c += lanes) {
        *vectors(A + j * n + c) -= *vectors(w + c) * v[j] + *vectors(v + c) * w[j];
      }
    }
  }
}
