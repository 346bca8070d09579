#include "ritz.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "../common/buffer.hpp"

namespace linattn {

namespace {

constexpr std::int64_t square = abreast * abreast;
// A vector of a block that keeps less than this of its length outside the others of the block adds nothing to it.
constexpr double independent = 1e-10;

// R^-1, upper triangular, for the Gram G = R'R of a block; false where its vectors are dependent.
bool inverse_root(const double* G, double* inverse) {
  double R[square] = {}, length[abreast];
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
    for (std::int64_t j = i; j < abreast; ++j) inverse[i * abreast + j] /= length[i];
  }
  return true;
}

class KrylovSpace {
 public:
  KrylovSpace(const Kernels& kernels, std::int64_t n, std::int64_t steps)
      : kernels_(kernels), n_(n), basis_(steps * n * abreast), next_(n * abreast), aside_(n * abreast) {}

  double* next() { return next_.data(); }
  const double* block(std::int64_t j) const { return basis_.data() + j * n_ * abreast; }

  // H = V_j' next for a block j; next -= V_j H.
  void project_out(std::int64_t j, double* H) {
    kernels_.inner_products(block(j), next(), n_, H);
    kernels_.add_combination(block(j), H, -1.0, n_, next());
  }

  // Makes `next`, with orthonormal columns, the block j; false where they are dependent. Twice, for the first time
  // leaves them orthogonal only to rounding times their condition.
  bool append(std::int64_t j) {
    alignas(64) double H[square], G[square], inverse[square];
    for (int time = 0; time < 2; ++time) {
      for (std::int64_t k = 0; k < j; ++k) project_out(k, H);
      kernels_.inner_products(next(), next(), n_, G);
      if (!inverse_root(G, inverse)) return false;
      std::fill_n(aside_.data(), n_ * abreast, 0.0);
      kernels_.add_combination(next(), inverse, 1.0, n_, aside_.data());
      std::swap(next_, aside_);
    }
    std::copy_n(next(), n_ * abreast, basis_.data() + j * n_ * abreast);
    return true;
  }

 private:
  const Kernels& kernels_;
  std::int64_t n_;
  Buffer basis_, next_, aside_;
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

void project_on_krylov_space(const Kernels& kernels, const double* factor, const double* scale, std::int64_t n,
                             bool inverse, std::int64_t steps, double* T) {
  const std::int64_t size = abreast * steps;
  KrylovSpace space(kernels, n, steps);
  fill_with_noise(space.next(), n * abreast);
  alignas(64) double H[square];
  for (std::int64_t step = 0; step < steps; ++step) {
    if (!space.append(step)) return;
    std::copy_n(space.block(step), n * abreast, space.next());
    apply(kernels, factor, scale, n, inverse, space.next());
    for (std::int64_t j = 0; j <= step; ++j) {
      space.project_out(j, H);
      for (std::int64_t r = 0; r < abreast; ++r) {
        for (std::int64_t c = 0; c < abreast; ++c) {
          T[(j * abreast + r) * size + step * abreast + c] = H[r * abreast + c];
          T[(step * abreast + c) * size + j * abreast + r] = H[r * abreast + c];
        }
      }
    }
  }
}

}  // namespace linattn
