#include "many.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <vector>

#include "../common/index.hpp"
#include "../common/team.hpp"
#include "moments.hpp"
#include "triangular.hpp"

namespace linattn {

namespace {

// From so many features on, the blocked factorisation is faster than rows one by one.
constexpr std::int64_t blocked_features = 128;

// Mean squares of features beyond which products have lost digits to underflow, or may overflow.
constexpr double smallest = 1e-280, largest = 1e280;

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

// target[i] -= factor * row[i]
void subtract(std::int64_t count, double factor, const double* row, double* target) {
  for (std::int64_t i = 0; i < count; ++i) target[i] -= factor * row[i];
}

// One problem at a time: the sums, the matrix, and its factor. One per thread.
class SmallProblem {
 public:
  SmallProblem(const Kernels& kernels, const Samples& shape, const std::vector<std::int64_t>& places)
      : kernels_(kernels),
        places_(places),
        p_(shape.pairs() * shape.queries()),
        gram_(static_cast<std::size_t>(gram_size(shape))),
        cross_(static_cast<std::size_t>(shape.d_out() * p_)),
        energy_(static_cast<std::size_t>(shape.d_out())),
        upper_(static_cast<std::size_t>(p_ * p_)),
        inverse_(static_cast<std::size_t>(p_ * p_)),
        scale_(static_cast<std::size_t>(p_)),
        sums_(static_cast<std::size_t>(p_)) {}

  // The condition number, bounded from above.
  double solve(const Samples& data, double weight, double alpha, double* C, double* energy, double* explained) {
    std::fill(gram_.begin(), gram_.end(), 0.0);
    std::fill(cross_.begin(), cross_.end(), 0.0);
    std::fill(energy_.begin(), energy_.end(), 0.0);
    const MomentSums sums{gram_.data(), cross_.data(), energy_.data()};
    accumulate_moments(kernels_, data, Precision::float64, 1, [](std::int64_t) {}, sums);
    *energy = 0;
    for (const double each : energy_) *energy += each / weight;
    form(weight, alpha);
    if (!visible_ || !factorise()) return std::numeric_limits<double>::infinity();
    const double condition = norm_ * squared_inverse();
    *explained = 0;
    const std::int64_t q = data.pairs(), k = data.queries();
    for (std::int64_t a = 0; a < data.d_out(); ++a) {
      double* const x = C + a * p_;
      const double* const b = cross_.data() + a * p_;  // (k, q)
      for (std::int64_t u = 0; u < q; ++u) {
        for (std::int64_t l = 0; l < k; ++l) x[u * k + l] = b[l * q + u] * scale_[at(u * k + l)];
      }
      substitute(x);
      for (std::int64_t i = 0; i < p_; ++i) x[i] *= scale_[at(i)];
      double sum = 0;
      for (std::int64_t u = 0; u < q; ++u) {
        for (std::int64_t l = 0; l < k; ++l) sum += x[u * k + l] * b[l * q + u];
      }
      *explained += sum / weight;
    }
    return condition;
  }

 private:
  static std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

  // A = D (W Lambda + W alpha I) D with W the weight, its upper triangle, and its largest row sum.
  void form(double weight, double alpha) {
    const std::int64_t* place = places_.data();
    bool seen = false;
    visible_ = true;
    for (std::int64_t i = 0; i < p_; ++i) {
      double* const row = upper_.data() + i * p_;
      for (std::int64_t j = i; j < p_; ++j) row[j] = gram_[at(*place++)];
      if (row[i] > 0 && !(row[i] > smallest * weight && row[i] < largest)) visible_ = false;
      seen = seen || row[i] > 0;
      row[i] += alpha * weight;
      int exponent = 0;
      std::frexp(row[i], &exponent);
      scale_[at(i)] = std::ldexp(1.0, -(exponent >> 1));  // a power of two rounds nothing
    }
    visible_ = visible_ && seen;
    std::fill(sums_.begin(), sums_.end(), 0.0);
    for (std::int64_t i = 0; i < p_; ++i) {
      double* const row = upper_.data() + i * p_;
      const double own = scale_[at(i)];
      for (std::int64_t j = i; j < p_; ++j) row[j] *= own * scale_[at(j)];
      double sum = 0;
      for (std::int64_t j = i; j < p_; ++j) sum += std::abs(row[j]);
      sums_[at(i)] += sum;
      for (std::int64_t j = i + 1; j < p_; ++j) sums_[at(j)] += std::abs(row[j]);
    }
    norm_ = *std::max_element(sums_.begin(), sums_.end());
  }

  // U in the place of A; false where a pivot is not positive.
  bool factorise() {
    if (p_ >= blocked_features) return factorise_in_blocks();
    for (std::int64_t k = 0; k < p_; ++k) {
      double* const row = upper_.data() + k * p_;
      if (!(row[k] > 0)) return false;
      const double pivot = 1 / std::sqrt(row[k]);
      for (std::int64_t j = k; j < p_; ++j) row[j] *= pivot;
      for (std::int64_t i = k + 1; i < p_; ++i) subtract(p_ - i, row[i], row + i, upper_.data() + i * p_ + i);
    }
    return true;
  }

  bool factorise_in_blocks() {
    for (std::int64_t i = 0; i < p_; ++i) {
      for (std::int64_t j = i + 1; j < p_; ++j) upper_[at(j * p_ + i)] = upper_[at(i * p_ + j)];
    }
    if (factor_cholesky(kernels_, upper_.data(), p_, 1, [](std::int64_t) {}) != 0) return false;
    for (std::int64_t i = 0; i < p_; ++i) {
      for (std::int64_t j = i + 1; j < p_; ++j) upper_[at(i * p_ + j)] = upper_[at(j * p_ + i)];
    }
    return true;
  }

  // ||U^-1||_F^2: the rows of U^-1 from the last one up.
  double squared_inverse() {
    double total = 0;
    for (std::int64_t i = p_ - 1; i >= 0; --i) {
      double* const row = inverse_.data() + i * p_;
      std::fill(row + i, row + p_, 0.0);
      row[i] = 1;
      const double* const factors = upper_.data() + i * p_;
      for (std::int64_t k = i + 1; k < p_; ++k) subtract(p_ - k, factors[k], inverse_.data() + k * p_ + k, row + k);
      const double pivot = 1 / factors[i];
      double sums[4] = {};
      std::int64_t j = i;
      for (; j + 4 <= p_; j += 4) {
        for (int part = 0; part < 4; ++part) {
          const double entry = row[j + part] *= pivot;
          sums[part] += entry * entry;
        }
      }
      for (; j < p_; ++j) {
        row[j] *= pivot;
        sums[0] += row[j] * row[j];
      }
      total += (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }
    return total;
  }

  // x becomes A^-1 x.
  void substitute(double* x) const {
    for (std::int64_t i = 0; i < p_; ++i) {
      const double* const row = upper_.data() + i * p_;
      x[i] /= row[i];
      subtract(p_ - i - 1, x[i], row + i + 1, x + i + 1);
    }
    for (std::int64_t i = p_ - 1; i >= 0; --i) {
      const double* const row = upper_.data() + i * p_;
      double sum = x[i];
      for (std::int64_t j = i + 1; j < p_; ++j) sum -= row[j] * x[j];
      x[i] = sum / row[i];
    }
  }

  const Kernels& kernels_;
  const std::vector<std::int64_t>& places_;
  std::int64_t p_;
  std::vector<double> gram_, cross_, energy_, upper_, inverse_, scale_, sums_;
  double norm_ = 0;
  bool visible_ = true;
};

}  // namespace

void solve_many(const Kernels& kernels, const Samples& all, std::int64_t problems, const double* alphas, int threads,
                const Monitor& monitor, const ManyFits& out) {
  const std::int64_t count = all.tokens.count() / problems, d = all.d(), d_out = all.d_out();
  const std::int64_t p = all.pairs() * all.queries();
  const Sequence first = all.tokens[0], first_target = (*all.targets)[0];
  const double weight = static_cast<double>(all.positions == Positions::last ? count : count * first.length);
  const std::vector<std::int64_t> places = places_of(all);
  std::atomic<std::int64_t> done{0};
  Team::run(static_cast<int>(std::min<std::int64_t>(threads, problems)), [&](Team& team, int rank) {
    SmallProblem small(kernels, all, places);
    team.for_each(problems, [&](std::int64_t b) {
      const Tokens tokens =
          Tokens::dense(all.tokens[b * count], all.tokens.scalar(), count, d, first.length * first.row_stride);
      const Tokens targets = Tokens::dense((*all.targets)[b * count], all.targets->scalar(), count, d_out,
                                           first_target.length * first_target.row_stride);
      const Samples data{tokens, &targets, nullptr, all.positions, all.selection};
      out.condition[b] =
          small.solve(data, weight, alphas[b], out.coefficients + b * d_out * p, out.energy + b, out.explained + b);
      const std::int64_t so_far = ++done;
      if (rank == 0) monitor(so_far);
    });
  });
}

}  // namespace linattn
