#include "small_problem.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "../common/index.hpp"
#include "triangular.hpp"

namespace linattn {

namespace {

// From so many features on, the blocked factorisation is faster than rows one by one.
constexpr std::int64_t blocked_features = 128;

// Mean squares of features beyond which products have lost digits to underflow, or may overflow.
constexpr double smallest = 1e-280, largest = 1e280;

// Mean squared error, relative to the targets', below which it is computed from the data: from moments it is the
// difference of two larger numbers.
constexpr double cancelled = 1e-6;

}  // namespace

bool squares_visible(double square, double weight) { return square > smallest * weight && square < largest; }
bool error_cancels(double error, double energy) { return !(error > cancelled * energy); }

// Where each entry of the upper triangle of Lambda lies in the compact Gram, row by row.
std::vector<std::int64_t> places_of(const Samples& data) {
  const std::int64_t q = data.pairs(), k = data.queries();
  std::vector<std::int64_t> places;
  places.reserve(static_cast<std::size_t>(pair_count(q * k)));
  for (std::int64_t u = 0; u < q; ++u) {
    for (std::int64_t l = 0; l < k; ++l) {
      for (std::int64_t v = u; v < q; ++v) {
        for (std::int64_t m = v == u ? l : 0; m < k; ++m) {
          const std::int64_t low = pair_index(std::min(l, m), std::max(l, m), k);
          if (data.triples()) {
            std::int64_t each[] = {u, v, low};
            std::sort(each, each + 3);
            places.push_back(triple_start(each[0], each[1], q) + each[2] - each[1]);
          } else {
            places.push_back(pair_index(u, v, q) * pair_count(k) + low);
          }
        }
      }
    }
  }
  return places;
}

SmallProblem::SmallProblem(const Kernels& kernels, const Samples& data, double weight,
                           const std::vector<std::int64_t>& places)
    : kernels_(kernels),
      data_(data),
      weight_(weight),
      places_(places),
      p_(data.pairs() * data.queries()),
      stride_((p_ + most_lanes - 1) / most_lanes * most_lanes),
      moments_(kernels, data),
      gram_(static_cast<std::size_t>(gram_size(data))),
      cross_(static_cast<std::size_t>(data.d_out() * p_)),
      energy_(static_cast<std::size_t>(data.d_out())),
      upper_(p_ * stride_),
      inverse_(p_ * stride_),
      reciprocals_(stride_),
      x_(stride_),
      scale_(static_cast<std::size_t>(p_)),
      sums_(static_cast<std::size_t>(p_)) {}

double SmallProblem::solve(double alpha, double* C, double* energy, double* error) {
  std::fill(gram_.begin(), gram_.end(), 0.0);
  std::fill(cross_.begin(), cross_.end(), 0.0);
  std::fill(energy_.begin(), energy_.end(), 0.0);
  moments_.add({gram_.data(), cross_.data(), energy_.data()});
  *energy = 0;
  for (const double each : energy_) *energy += each / weight_;
  *error = *energy;
  form(alpha);
  if (!visible_ || !factorise()) return std::numeric_limits<double>::infinity();
  const double condition =
      norm_ * kernels_.squared_inverse(upper_.data(), reciprocals_.data(), p_, stride_, inverse_.data());
  const std::int64_t q = data_.pairs(), k = data_.queries();
  double explained = 0, ridge = 0;
  for (std::int64_t a = 0; a < data_.d_out(); ++a) {
    const double* const b = cross_.data() + a * p_;  // (k, q)
    double* const x = x_.data();
    for (std::int64_t u = 0; u < q; ++u) {
      for (std::int64_t l = 0; l < k; ++l) x[u * k + l] = b[l * q + u] * scale_[at(u * k + l)];
    }
    kernels_.solve_small(upper_.data(), reciprocals_.data(), p_, stride_, x);
    double sum = 0;
    for (std::int64_t u = 0; u < q; ++u) {
      for (std::int64_t l = 0; l < k; ++l) {
        const std::int64_t i = u * k + l;
        const double entry = C[a * p_ + i] = x[i] * scale_[at(i)];
        sum += entry * b[l * q + u];
        ridge += entry * entry;
      }
    }
    explained += sum / weight_;
  }
  *error -= explained + alpha * ridge;
  if (error_cancels(*error, *energy) && condition < std::numeric_limits<double>::infinity()) {
    *error = error_on_data(C);
  }
  return condition;
}

// The mean of ||C h - y||^2, sample by sample.
double SmallProblem::error_on_data(const double* C) {
  moments_.squared_error(C, energy_.data());
  double sum = 0;
  for (const double each : energy_) sum += each;
  return sum / weight_;
}

// A = D (W Lambda + W alpha I) D with W the weight, its upper triangle, and its largest row sum.
void SmallProblem::form(double alpha) {
  const std::int64_t* place = places_.data();
  bool seen = false;
  visible_ = true;
  for (std::int64_t i = 0; i < p_; ++i) {
    double* const row = upper_.data() + i * stride_;
    for (std::int64_t j = i; j < p_; ++j) row[j] = gram_[at(*place++)];
    if (row[i] > 0 && !squares_visible(row[i], weight_)) visible_ = false;
    seen = seen || row[i] > 0;
    row[i] += alpha * weight_;
    int exponent = 0;
    std::frexp(row[i], &exponent);
    scale_[at(i)] = std::ldexp(1.0, -(exponent >> 1));  // a power of two rounds nothing
  }
  visible_ = visible_ && seen;
  std::fill(sums_.begin(), sums_.end(), 0.0);
  for (std::int64_t i = 0; i < p_; ++i) {
    double* const row = upper_.data() + i * stride_;
    std::fill(row + i / most_lanes * most_lanes, row + i, 0.0);
    const double own = scale_[at(i)];
    double sum = 0;
    for (std::int64_t j = i; j < p_; ++j) {
      row[j] *= own * scale_[at(j)];
      const double size = std::abs(row[j]);
      sums_[at(j)] += size;
      sum += size;
    }
    sums_[at(i)] += sum - std::abs(row[i]);
  }
  norm_ = *std::max_element(sums_.begin(), sums_.end());
}

// U in the place of A; false where a pivot is not positive.
bool SmallProblem::factorise() {
  if (p_ < blocked_features) return kernels_.factor_small(upper_.data(), p_, stride_, reciprocals_.data()) == p_;
  double* const lower = inverse_.data();  // p x p
  for (std::int64_t i = 0; i < p_; ++i) {
    for (std::int64_t j = i; j < p_; ++j) lower[j * p_ + i] = upper_.data()[i * stride_ + j];
  }
  if (factor_cholesky(kernels_, lower, p_, 1, [](std::int64_t) {}) != 0) return false;
  for (std::int64_t i = 0; i < p_; ++i) {
    for (std::int64_t j = i; j < p_; ++j) upper_.data()[i * stride_ + j] = lower[j * p_ + i];
    reciprocals_.data()[i] = 1 / lower[i * p_ + i];
  }
  return true;
}

}  // namespace linattn
