#include "small_fit.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <vector>

#include "../common/buffer.hpp"
#include "../common/index.hpp"
#include "floating_point.hpp"
#include "kept_rows.hpp"
#include "normal_matrix.hpp"
#include "ritz.hpp"
#include "tridiagonal.hpp"

namespace linattn {

namespace {

constexpr double eps = std::numeric_limits<double>::epsilon();
// Sums of squares of features between which neither these nor their products have lost digits or overflown.
constexpr double smallest_square = 1e-280, largest_square = 1e280;
// Norms between which squares are exact enough.
constexpr double smallest_norm = 1e-120, largest_norm = 1e120;
// A first correction is at most half of the solution; condition times level is at most this, so that steps need no
// check; what corrections leave is at most the last.
constexpr double first_step = 0.5, trusted = 1e-3, converged = 1e-10;
// Rounding of an objective, relative to it.
constexpr double worse = 1e-12;
// Fractions of an estimate of lambda_min that are tried as bounds.
constexpr double fractions[] = {0.999, 0.99, 0.9};
// Products that eigenvalues are estimated with, and steps of inverse iteration from there.
constexpr std::int64_t krylov_steps = 12, inverse_steps = 4;
constexpr double settled = 1e-13;

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

double dot(const double* x, const double* y, std::int64_t n) {
  double even = 0, odd = 0;
  std::int64_t i = 0;
  for (; i + 2 <= n; i += 2) {
    even += x[i] * y[i];
    odd += x[i + 1] * y[i + 1];
  }
  return (i < n ? even + x[i] * y[i] : even) + odd;
}

// Whether a norm is that of numbers whose squares are exact enough.
bool is_plain(double norm) { return norm > smallest_norm && norm < largest_norm; }

// Seconds since it was last asked.
class Clock {
 public:
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - before_).count();
    before_ = now;
    return seconds;
  }

 private:
  std::chrono::steady_clock::time_point before_ = std::chrono::steady_clock::now();
};

class SmallSystem {
 public:
  SmallSystem(const Kernels& kernels, const Samples& data, double weight, double alpha, const SmallLimits& limits,
              double* C)
      : kernels_(kernels),
        weight_(weight),
        alpha_(alpha),
        limits_(limits),
        C_(C),
        q_(data.pairs()),
        d_(data.d()),
        d_out_(data.d_out()),
        p_(q_ * d_),
        stride_((p_ + most_lanes - 1) / most_lanes * most_lanes),
        longer_(p_ * d_out_),
        rows_(kernels, data),
        gram_(pair_count(q_) * pair_count(d_)),
        cross_(longer_),
        energy_(d_out_),
        scaled_(p_ * stride_),
        factor_(p_ * stride_),
        inverse_(p_ * stride_),
        aside_(p_ * stride_),
        whole_inverse_(p_ * stride_),
        reciprocals_(stride_),
        shifted_reciprocals_(stride_),
        x_(stride_),
        y_(stride_),
        scale_(stride_),
        diagonal_(stride_),
        magnitudes_(stride_),
        gradient_(longer_),
        change_(longer_) {}

  SmallFit fit(bool certify) {
    Clock clock;
    if (!sum()) return {};
    found_.seconds[0] = clock.lap();
    if (!factorise()) return {};
    solve();
    found_.seconds[1] = clock.lap();
    if (!refine()) return {};
    found_.seconds[2] = clock.lap();
    if (certify && !prove()) return {};
    found_.seconds[3] = clock.lap();
    found_.safe = true;
    return found_;
  }

 private:
  // ------------------------------------------------------------------------------------------- the matrix

  // G, sum w y h' and sum w y^2; false where products underflow, or queries never occur together, which is faster in
  // blocks.
  bool sum() {
    std::atomic<bool> underflow{false};
    {
      const UnderflowWatch watch(underflow);
      rows_.sum({gram_.data(), cross_.data(), energy_.data()});
    }
    for (std::int64_t a = 0; a < d_out_; ++a) found_.mean_target += energy_.data()[a] / weight_;
    bool together = !underflow && std::isfinite(found_.mean_target);
    for (std::int64_t l = 0; l < d_; ++l) together = together && gram_.data()[l] != 0;
    return together;
  }

  // D and S; false where squares may have lost digits, or a feature may be rounding alone.
  bool scale() {
    const CompactGram gram{gram_.data(), q_, d_, false};
    gram_diagonal(gram, diagonal_.data());
    gram_magnitudes(gram, d_, magnitudes_.data());
    for (std::int64_t i = 0; i < p_; ++i) {
      const double square = diagonal_.data()[i], summands = magnitudes_.data()[i], own = square + alpha_ * weight_;
      if (!(square > smallest_square * weight_ && summands < largest_square && own < largest_square)) return false;
      if (!(own > limits_.cancelled * summands && summands >= 0.99 * square)) return false;
      int exponent = 0;
      std::frexp(own, &exponent);
      const double unit = scale_.data()[i] = std::ldexp(1.0, -(exponent >> 1));  // a power of two rounds nothing
      found_.largest_summand = std::max(found_.largest_summand, std::sqrt(summands) * unit);
      found_.largest_scale = std::max(found_.largest_scale, unit * std::sqrt(weight_));
    }
    const double* entry = gram_.data();
    for (std::int64_t u = 0; u < q_; ++u) {
      for (std::int64_t v = u; v < q_; ++v) {
        for (std::int64_t l = 0; l < d_; ++l) {
          for (std::int64_t m = l; m < d_; ++m) {
            put(u * d_ + l, v * d_ + m, *entry);
            put(u * d_ + m, v * d_ + l, *entry++);
          }
        }
      }
    }
    return true;
  }

  void put(std::int64_t i, std::int64_t j, double entry) {
    const double own = entry * scale_.data()[i] * scale_.data()[j];
    scaled_.data()[i * stride_ + j] = scaled_.data()[j * stride_ + i] = own;
  }

  // U, U^-1, A^-1 and the condition number in the 1-norm; false where a pivot is not positive, or too little is left
  // of the digits for corrections to be trusted.
  bool factorise() {
    if (!scale()) return false;
    std::copy_n(scaled_.data(), p_ * stride_, factor_.data());
    double norm = 0;
    for (std::int64_t i = 0; i < p_; ++i) {
      double* const row = factor_.data() + i * stride_;
      row[i] += alpha_ * weight_ * scale_.data()[i] * scale_.data()[i];
      double sums[most_lanes] = {};
      for (std::int64_t j = 0; j < stride_; j += most_lanes) {
        for (std::int64_t k = 0; k < most_lanes; ++k) sums[k] += std::abs(row[j + k]);
      }
      double total = 0;
      for (const double each : sums) total += each;
      norm = std::max(norm, total);
    }
    if (kernels_.factor_small(factor_.data(), p_, stride_, reciprocals_.data()) != p_) return false;
    kernels_.squared_inverse(factor_.data(), reciprocals_.data(), p_, stride_, inverse_.data());
    found_.condition =
        norm * kernels_.inverse_from_factor(inverse_.data(), p_, stride_, aside_.data(), whole_inverse_.data());
    return found_.condition * limits_.level < trusted && (alpha_ == 0 || found_.condition <= limits_.ridge);
  }

  // ------------------------------------------------------------------------------------- the coefficients

  // out (d_out x p) = D A^-1 D b for each of the rows b.
  void divide(const double* b, double* out) {
    for (std::int64_t a = 0; a < d_out_; ++a, b += p_, out += p_) {
      for (std::int64_t i = 0; i < p_; ++i) x_.data()[i] = b[i] * scale_.data()[i];
      kernels_.solve_small(factor_.data(), reciprocals_.data(), p_, stride_, x_.data());
      for (std::int64_t i = 0; i < p_; ++i) out[i] = x_.data()[i] * scale_.data()[i];
    }
  }

  // C from the moments.
  void solve() {
    for (std::int64_t a = 0; a < d_out_; ++a) {
      for (std::int64_t u = 0; u < q_; ++u) {
        for (std::int64_t l = 0; l < d_; ++l) {
          gradient_.data()[a * p_ + u * d_ + l] = cross_.data()[(a * d_ + l) * q_ + u];
        }
      }
    }
    divide(gradient_.data(), C_);
  }

  // |x| and |x / D|, the latter in units of mean squares, for x (d_out x p).
  double norm(const double* x) const { return std::sqrt(dot(x, x, longer_)); }
  double scaled_norm(const double* x) {
    double total = 0;
    for (std::int64_t a = 0; a < d_out_; ++a) {
      for (std::int64_t i = 0; i < p_; ++i) y_.data()[i] = x[a * p_ + i] / scale_.data()[i];
      total += dot(y_.data(), y_.data(), p_);
    }
    return std::sqrt(total / weight_);
  }

  // Corrections as refine_on_data makes them (solvers/accuracy.py), where their steps need no check.
  bool refine() {
    double before = std::numeric_limits<double>::infinity(), last = 2 * first_step;
    while (found_.corrections < most_corrections) {
      const double error = rows_.residuals(C_, gradient_.data()) / weight_;
      const double size = norm(C_), scaled = scaled_norm(C_), objective = error + alpha_ * size * size;
      if (!is_plain(size) || !is_plain(scaled) || !(objective <= before * (1 + worse))) return false;
      for (std::int64_t i = 0; i < longer_; ++i) change_.data()[i] = gradient_.data()[i] - alpha_ * weight_ * C_[i];
      divide(change_.data(), change_.data());
      const double own = norm(change_.data()) / size, step = std::max(own, scaled_norm(change_.data()) / scaled);
      if (!(step <= last / 2)) return false;  // NaN too
      for (std::int64_t i = 0; i < longer_; ++i) C_[i] += change_.data()[i];
      found_.steps[at(found_.corrections++)] = own;
      before = objective;
      last = step;
      if (step < std::sqrt(eps)) return finish(error);
    }
    return false;
  }

  // The error after the last step, by an identity where that does not cancel, else from the data.
  bool finish(double before) {
    const double gain =
        dot(change_.data(), gradient_.data(), longer_) / weight_ + alpha_ * dot(change_.data(), C_, longer_);
    const double doubt = found_.condition * limits_.level * std::abs(gain);
    found_.mean_error = before - gain;
    if (!(found_.mean_error > before / 2 && doubt <= 32 * eps * found_.mean_error)) {
      found_.mean_error = rows_.residuals(C_, nullptr) / weight_;
    }
    found_.size = norm(C_);
    found_.scaled_size = scaled_norm(C_);
    const std::int64_t count = found_.corrections;
    const double step = found_.steps[at(count - 1)];
    const double rate = count > 1 ? step / found_.steps[at(count - 2)] : found_.condition * limits_.level;
    return std::isfinite(found_.mean_error) && !(step * std::min(1.0, rate) > converged);
  }

  // ------------------------------------------------------------------------------------------- the proof

  // The largest Ritz value of a symmetric matrix on a Krylov space from a fixed vector, and its vector (p) in y. The
  // matrix is E M E for E = diag(2^k) or its inverse.
  double largest_ritz_value(const double* matrix, bool divided) {
    const std::int64_t steps = std::min(krylov_steps, p_);
    const Buffer basis(steps * stride_), product(stride_);
    std::vector<double> own, beside;
    double* v = basis.data();
    fill_with_noise(v, p_);
    double size = std::sqrt(dot(v, v, p_));
    for (std::int64_t j = 0; j < steps; ++j, v += stride_) {
      for (std::int64_t i = 0; i < p_; ++i) v[i] /= size;
      for (std::int64_t i = 0; i < p_; ++i) x_.data()[i] = divided ? v[i] / scale_.data()[i] : v[i] * scale_.data()[i];
      kernels_.symmetric_times(matrix, p_, stride_, x_.data(), product.data());
      for (std::int64_t i = 0; i < p_; ++i) {
        product.data()[i] = divided ? product.data()[i] / scale_.data()[i] : product.data()[i] * scale_.data()[i];
      }
      const double before = std::sqrt(dot(product.data(), product.data(), p_));
      for (std::int64_t k = j; k >= 0; --k) {  // orthogonal to all, because rounding would let the first ones return
        const double* const other = basis.data() + k * stride_;
        const double part = dot(product.data(), other, p_);
        if (k == j) own.push_back(part);
        for (std::int64_t i = 0; i < p_; ++i) product.data()[i] -= part * other[i];
      }
      size = std::sqrt(dot(product.data(), product.data(), p_));
      if (j + 1 == steps || !(size > 1e-10 * before)) break;
      beside.push_back(size);
      std::copy_n(product.data(), p_, v + stride_);
    }
    const double value = largest_eigenvalue(own.data(), beside.data(), static_cast<std::int64_t>(own.size()));
    // (T - value) c = 0 from the top, which a value at the end of the spectrum allows
    std::fill_n(y_.data(), p_, 0.0);
    double previous = 0, c = 1;
    for (std::size_t j = 0; j < own.size(); ++j) {
      const double* const each = basis.data() + static_cast<std::int64_t>(j) * stride_;
      for (std::int64_t i = 0; i < p_; ++i) y_.data()[i] += c * each[i];
      if (j < beside.size()) {
        const double next = ((value - own[j]) * c - (j > 0 ? beside[j - 1] : 0.0) * previous) / beside[j];
        previous = c;
        c = next;
      }
    }
    return value;
  }

  // Whether G - lost diag(m) - tau I is proved to be positive; leaves the factor of the scaled matrix in `aside`.
  bool exceeds(double tau) {
    std::copy_n(scaled_.data(), p_ * stride_, aside_.data());
    double trace = 0;
    const auto entry = [&](std::int64_t i) -> double& { return aside_.data()[i * (stride_ + 1)]; };
    for (std::int64_t i = 0; i < p_; ++i) {
      const double square = scale_.data()[i] * scale_.data()[i];
      entry(i) -= (limits_.lost * (magnitudes_.data()[i] * square) + tau * square) * limits_.rounding;
      if (!(entry(i) > 0)) return false;  // NaN too
      trace += entry(i);
    }
    const double theta = limits_.backward * trace + limits_.margin;
    for (std::int64_t i = 0; i < p_; ++i) {
      entry(i) -= theta;
      if (!(entry(i) > 0)) return false;
    }
    if (kernels_.factor_small(aside_.data(), p_, stride_, shifted_reciprocals_.data()) != p_) return false;
    for (std::int64_t i = 0; i < p_; ++i) {
      if (!std::isfinite(entry(i))) return false;
    }
    return true;
  }

  // lambda_min of G by inverse iteration from the vector in y: G - tau I, whose factor is in `aside`, has one
  // eigenvalue that is small beside the others.
  double polished() {
    double found = std::numeric_limits<double>::infinity();
    for (std::int64_t step = 0; step < inverse_steps; ++step) {
      const double size = std::sqrt(dot(y_.data(), y_.data(), p_));
      for (std::int64_t i = 0; i < p_; ++i) x_.data()[i] = y_.data()[i] / size * scale_.data()[i];
      kernels_.solve_small(aside_.data(), shifted_reciprocals_.data(), p_, stride_, x_.data());
      for (std::int64_t i = 0; i < p_; ++i) y_.data()[i] = x_.data()[i] * scale_.data()[i];  // x = y / D
      kernels_.symmetric_times(scaled_.data(), p_, stride_, x_.data(), diagonal_.data());
      const double before = found;
      found = dot(x_.data(), diagonal_.data(), p_) / dot(y_.data(), y_.data(), p_);
      if (!(std::abs(before - found) > settled * found)) break;
    }
    return found;
  }

  // Extreme eigenvalues, and the largest of a few bounds that is proved; false where none is.
  bool prove() {
    const double largest = largest_ritz_value(scaled_.data(), /*divided=*/true);
    const double ridge = alpha_ * weight_, with_ridge = 1 / largest_ritz_value(whole_inverse_.data(), false);
    if (!(with_ridge > 2 * ridge && largest < largest_square)) return false;
    const double estimate = with_ridge - ridge;
    for (const double fraction : fractions) {
      if (!exceeds(fraction * estimate)) continue;
      found_.tau = fraction * estimate;
      found_.fraction = fraction;
      const double smallest = polished();
      if (fraction < fractions[0] && exceeds(fractions[0] * smallest)) {
        found_.tau = fractions[0] * smallest;
        found_.fraction = fractions[0];
      }
      found_.smallest = smallest / weight_;
      found_.largest = std::max(largest, smallest) / weight_;
      return std::isfinite(found_.smallest) && found_.smallest > 0;
    }
    return false;
  }

  const Kernels& kernels_;
  const double weight_, alpha_;
  const SmallLimits& limits_;
  double* const C_;
  const std::int64_t q_, d_, d_out_, p_, stride_, longer_;
  KeptRows rows_;
  const Buffer gram_, cross_, energy_;
  const Buffer scaled_, factor_, inverse_, aside_, whole_inverse_;  // p rows of `stride`: S, U, U^-1, -, A^-1
  const Buffer reciprocals_, shifted_reciprocals_, x_, y_, scale_, diagonal_, magnitudes_;
  const Buffer gradient_, change_;
  SmallFit found_;
};

}  // namespace

SmallFit fit_small(const Kernels& kernels, const Samples& data, double weight, double alpha, const SmallLimits& limits,
                   bool certify, double* C) {
  const KeptEnvironment before;
  std::fesetenv(FE_DFL_ENV);  // numbers below 2^-1022 are what they are, whatever another library has said
  if (!keeps_subnormals()) return {};
  return SmallSystem(kernels, data, weight, alpha, limits, C).fit(certify);
}

}  // namespace linattn
