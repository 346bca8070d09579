#include "ritz.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "../common/buffer.hpp"
#include "../common/team.hpp"
#include "tridiagonal.hpp"

namespace linattn {

namespace {

constexpr std::int64_t square = abreast * abreast;
// A vector of a block that keeps less than this of its length outside the others of the block adds nothing to it.
constexpr double independent = 1e-10;
// As long as a second thread takes to start, about.
constexpr std::int64_t multiply_adds_worth_a_thread = 1 << 20;

// R and R^-1, upper triangular, for the Gram G = R'R of a block; false where its vectors are dependent.
bool root(const double* G, double* R, double* inverse) {
  std::fill_n(R, square, 0.0);
  double length[abreast];
  for (std::int64_t i = 0; i < abreast; ++i) {
    length[i] = std::sqrt(G[i * abreast + i]);
    if (!(length[i] > 0 && length[i] < HUGE_VAL)) return false;
  }
  for (std::int64_t i = 0; i < abreast; ++i) {  // of the vectors brought to length one
    for (std::int64_t j = i; j < abreast; ++j) {
      double sum = G[i * abreast + j] / length[i] / length[j];
      for (std::int64_t k = 0; k < i; ++k) sum -= R[k * abreast + i] * R[k * abreast + j];
      if (j > i) {
        R[i * abreast + j] = sum / R[i * abreast + i];
      } else if (sum > independent * independent) {
        R[i * abreast + i] = std::sqrt(sum);
      } else {
        return false;
      }
    }
  }
  for (std::int64_t j = 0; j < abreast; ++j) {
    for (std::int64_t i = abreast - 1; i >= 0; --i) {
      double sum = i == j ? 1.0 : 0.0;
      for (std::int64_t k = i + 1; k <= j; ++k) sum -= R[i * abreast + k] * inverse[k * abreast + j];
      inverse[i * abreast + j] = i > j ? 0.0 : sum / R[i * abreast + i];
    }
  }
  for (std::int64_t i = 0; i < abreast; ++i) {
    for (std::int64_t j = i; j < abreast; ++j) {
      inverse[i * abreast + j] /= length[i];
      R[i * abreast + j] *= length[j];
    }
  }
  return true;
}

void multiply(const double* a, const double* b, double* out) {
  for (std::int64_t i = 0; i < abreast; ++i) {
    for (std::int64_t j = 0; j < abreast; ++j) {
      double sum = 0.0;
      for (std::int64_t k = 0; k < abreast; ++k) sum += a[i * abreast + k] * b[k * abreast + j];
      out[i * abreast + j] = sum;
    }
  }
}

// One block of the basis after the other; the last three are kept.
class Lanczos {
 public:
  Lanczos(const Kernels& kernels, std::int64_t n)
      : kernels_(kernels), n_(n), before_(n * abreast), own_(n * abreast), next_(n * abreast), aside_(n * abreast) {
    fill_with_noise(next_.data(), n * abreast);
  }

  // Makes `next` a block, with next = block R before; false where its vectors are dependent. Twice, for the first time
  // leaves them orthogonal only to rounding times their condition.
  bool advance(double* R) {
    alignas(64) double G[square], first[square], second[square];
    if (!make_orthonormal(first)) return false;
    kernels_.inner_products(own_.data(), next_.data(), n_, G);
    kernels_.add_combination(own_.data(), G, -1.0, n_, next_.data());
    if (!make_orthonormal(second)) return false;
    multiply(second, first, R);
    std::swap(before_, own_);
    std::swap(own_, next_);
    return true;
  }

  // next = K own - before B' - own A, and A, where apply(x) makes K x of x and next = own B when own was made.
  template <typename Apply>
  void extend(const Apply& apply, const double* B, double* A) {
    std::copy_n(own_.data(), n_ * abreast, next_.data());
    apply(next_.data());
    alignas(64) double turned[square];
    for (std::int64_t i = 0; i < square; ++i) turned[i] = B[i % abreast * abreast + i / abreast];
    kernels_.add_combination(before_.data(), turned, -1.0, n_, next_.data());
    kernels_.inner_products(own_.data(), next_.data(), n_, A);
    kernels_.add_combination(own_.data(), A, -1.0, n_, next_.data());
  }

 private:
  // next = next R^-1, with R from next'next = R'R.
  bool make_orthonormal(double* R) {
    alignas(64) double G[square], inverse[square];
    kernels_.inner_products(next_.data(), next_.data(), n_, G);
    if (!root(G, R, inverse)) return false;
    std::fill_n(aside_.data(), n_ * abreast, 0.0);
    kernels_.add_combination(next_.data(), inverse, 1.0, n_, aside_.data());
    std::swap(next_, aside_);
    return true;
  }

  const Kernels& kernels_;
  std::int64_t n_;
  Buffer before_, own_, next_, aside_;  // n x abreast; zero at first
};

void apply(const Kernels& kernels, const double* factor, const double* scale, std::int64_t n, bool inverse, double* x) {
  const auto scaled = [&] {
    for (std::int64_t i = 0; i < n; ++i) {
      const double unit = inverse ? scale[i] : 1 / scale[i];
      for (std::int64_t c = 0; c < abreast; ++c) x[i * abreast + c] *= unit;
    }
  };
  scaled();
  (inverse ? kernels.solve_lower : kernels.multiply_upper)(factor, n, x);
  (inverse ? kernels.solve_upper : kernels.multiply_lower)(factor, n, x);
  scaled();
}

// The largest eigenvalue of a symmetric matrix A (n x n), n a multiple of most_lanes, which is overwritten; NaN where
// it is not finite.
double largest_of_dense(const Kernels& kernels, double* A, std::int64_t n) {
  double largest = 0.0;
  for (std::int64_t i = 0; i < n * n; ++i) {
    if (!std::isfinite(A[i])) return std::nan("");
    largest = std::max(largest, std::abs(A[i]));
  }
  if (largest == 0.0) return 0.0;
  const int exponent = std::ilogb(largest) + 1;  // to entries of at most one, so that squares do not overflow
  const double unit = std::ldexp(1.0, -exponent / 2), other = std::ldexp(1.0, -exponent - -exponent / 2);
  for (std::int64_t i = 0; i < n * n; ++i) A[i] = A[i] * unit * other;
  const Buffer diagonal(n), beside(n), v(n), w(n);
  kernels.tridiagonalise(A, n, diagonal.data(), beside.data(), v.data(), w.data());
  return std::ldexp(largest_eigenvalue(diagonal.data(), beside.data(), n), exponent);
}

// The largest eigenvalue of the projection. Blocks are left zero from where the space does not grow any more, or
// numbers overflow: K has no negative eigenvalues, so that zeros change nothing.
double largest_on_krylov_space(const Kernels& kernels, const double* factor, const double* scale, std::int64_t n,
                               bool inverse, std::int64_t steps) {
  const std::int64_t size = abreast * steps;
  const Buffer T(size * size);
  const auto entry = [&](std::int64_t i, std::int64_t j) -> double& { return T.data()[i * size + j]; };
  Lanczos space(kernels, n);
  alignas(64) double A[square], B[square];
  for (std::int64_t step = 0; step < steps && space.advance(B); ++step) {
    const std::int64_t at = step * abreast;
    for (std::int64_t i = 0; step > 0 && i < square; ++i) {
      entry(at + i / abreast, at - abreast + i % abreast) = entry(at - abreast + i % abreast, at + i / abreast) = B[i];
    }
    space.extend([&](double* x) { apply(kernels, factor, scale, n, inverse, x); }, B, A);
    for (std::int64_t r = 0; r < abreast; ++r) {
      for (std::int64_t c = 0; c < abreast; ++c) {
        entry(at + r, at + c) = A[r * abreast + c] / 2 + A[c * abreast + r] / 2;  // the sum alone might overflow
      }
    }
  }
  return largest_of_dense(kernels, T.data(), size);
}

}  // namespace

void fill_with_noise(double* x, std::int64_t count) {
  std::uint64_t state = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint64_t bits = state += 0x9e3779b97f4a7c15u;
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
    x[i] = static_cast<double>(static_cast<std::int64_t>(bits ^ (bits >> 31))) * 0x1p-63;
  }
}

RitzValues ritz_values(const Kernels& kernels, const double* factor, const double* scale, std::int64_t n,
                       std::int64_t inverse_steps, std::int64_t forward_steps, int threads) {
  double found[2];
  const bool worth_a_thread = forward_steps * n * n * abreast > multiply_adds_worth_a_thread;
  Team::run(worth_a_thread ? std::min(threads, 2) : 1, [&](Team& team, int) {
    team.for_each(2, [&](std::int64_t i) {
      found[i] = largest_on_krylov_space(kernels, factor, scale, n, i == 0, i == 0 ? inverse_steps : forward_steps);
    });
  });
  return {found[0], found[1]};
}

}  // namespace linattn
