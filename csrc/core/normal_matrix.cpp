#include "normal_matrix.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "../common/index.hpp"
#include "../common/team.hpp"

namespace linattn {

namespace {

// Entries that are written in the time a second thread takes to start, about.
constexpr std::int64_t entries_worth_a_thread = 1 << 18;

std::int64_t sorted_pair(std::int64_t a, std::int64_t b, std::int64_t n) {
  return pair_index(std::min(a, b), std::max(a, b), n);
}

std::int64_t sorted_triple(std::int64_t u, std::int64_t v, std::int64_t w, std::int64_t q) {
  const std::int64_t low = std::min({u, v, w}), high = std::max({u, v, w}), middle = u + v + w - low - high;
  return triple_start(low, middle, q) + high - middle;
}

// Sum of absolute values, in eight sums so that none waits for another.
double absolute_sum(const double* row, std::int64_t count) {
  constexpr std::int64_t together = 8;
  double sums[together] = {};
  std::int64_t i = 0;
  for (; i + together <= count; i += together) {
    for (std::int64_t u = 0; u < together; ++u) sums[u] += std::abs(row[i + u]);
  }
  for (; i < count; ++i) sums[0] += std::abs(row[i]);
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// The larger one; NaN if either is.
double larger(double a, double b) { return b <= a ? a : (a != a ? a : b); }

// The rows (u, .) of A, or their columns (v, .) for v in a range, one u at a time. One per thread.
class RowsOfPair {
 public:
  RowsOfPair(const CompactGram& gram, double weight, double ridge, const double* scale, PairRange columns)
      : gram_(gram),
        weight_(weight),
        ridge_(ridge),
        scale_(scale),
        columns_(columns),
        distinct_(count(pair_count(gram.queries))) {
    for (std::int64_t l = 0; l < gram.queries; ++l) {
      for (std::int64_t m = 0; m < gram.queries; ++m) places_.push_back(sorted_pair(l, m, gram.queries));
    }
  }

  // Returns the largest row sum of absolute values.
  double write(std::int64_t u, double* rows) {
    const std::int64_t k = gram_.queries, p = columns_.count() * k;
    for (std::int64_t v = columns_.first; v < columns_.last; ++v) {
      take(u, v);
      for (std::int64_t l = 0; l < k; ++l) {
        double* const out = rows + l * p + (v - columns_.first) * k;
        const std::int64_t* const places = places_.data() + l * k;
        for (std::int64_t m = 0; m < k; ++m) out[m] = distinct_[count(places[m])];
      }
    }
    double largest = 0.0;
    for (std::int64_t l = 0; l < k; ++l) {
      double* const row = rows + l * p;
      if (columns_.has(u)) row[(u - columns_.first) * k + l] += ridge_;
      if (scale_ != nullptr) {
        const double own = scale_[u * k + l], *const others = scale_ + columns_.first * k;
        for (std::int64_t i = 0; i < p; ++i) row[i] = row[i] * others[i] * own;
      }
      largest = larger(largest, absolute_sum(row, p));
    }
    return largest;
  }

 private:
  static std::size_t count(std::int64_t number) { return static_cast<std::size_t>(number); }

  // The distinct entries (l, m) of the block (u, v), over the weight.
  void take(std::int64_t u, std::int64_t v) {
    const std::int64_t entries = pair_count(gram_.queries), q = gram_.pairs;
    if (gram_.triples) {
      for (std::int64_t w = 0; w < entries; ++w) distinct_[count(w)] = gram_.entries[sorted_triple(u, v, w, q)];
    } else {
      std::copy_n(gram_.entries + sorted_pair(u, v, q) * entries, entries, distinct_.data());
    }
    if (weight_ == 1.0) return;
    for (std::int64_t w = 0; w < entries; ++w) distinct_[count(w)] /= weight_;
  }

  const CompactGram& gram_;
  double weight_, ridge_;
  const double* scale_;
  PairRange columns_;
  std::vector<double> distinct_;
  std::vector<std::int64_t> places_;  // of (l, m) among them
};

}  // namespace

double CompactGram::at(std::int64_t u, std::int64_t v, std::int64_t l, std::int64_t m) const {
  const std::int64_t w = sorted_pair(l, m, queries);
  return entries[triples ? sorted_triple(u, v, w, pairs) : sorted_pair(u, v, pairs) * pair_count(queries) + w];
}

void gram_diagonal(const CompactGram& gram, double* out) {
  for (std::int64_t u = 0; u < gram.pairs; ++u) {
    for (std::int64_t l = 0; l < gram.queries; ++l) *out++ = gram.at(u, u, l, l);
  }
}

void gram_magnitudes(const CompactGram& gram, std::int64_t d, double* out) {
  for (std::int64_t j = 0; j < d; ++j) {
    for (std::int64_t k = j; k < d; ++k) {
      const std::int64_t first = pair_index(j, j, d), second = pair_index(k, k, d);
      for (std::int64_t l = 0; l < gram.queries; ++l) *out++ = gram.at(first, second, l, l);
    }
  }
}

void power_of_two_scale(const double* sizes, std::int64_t n, double* scale) {
  for (std::int64_t i = 0; i < n; ++i) {
    scale[i] = sizes[i] > 0 ? std::exp2(-std::nearbyint(std::log2(sizes[i]) / 2)) : 1.0;
  }
}

double dense_gram(const CompactGram& gram, double weight, double ridge, const double* scale, int threads,
                  double* matrix) {
  const PairRange all{0, gram.pairs};
  return dense_gram_block(gram, weight, ridge, scale, all, all, threads, matrix);
}

double dense_gram_block(const CompactGram& gram, double weight, double ridge, const double* scale, PairRange rows,
                        PairRange columns, int threads, double* matrix) {
  const std::int64_t height = gram.queries, width = gram.queries * columns.count();
  const std::int64_t entries = rows.count() * height * width;
  const auto useful = std::clamp<std::int64_t>(entries / entries_worth_a_thread, 1, threads);
  std::vector<double> largest(static_cast<std::size_t>(rows.count()));
  Team::run(static_cast<int>(useful), [&](Team& team, int) {
    RowsOfPair pair(gram, weight, ridge, scale, columns);
    team.for_each(rows.count(), [&](std::int64_t i) {
      largest[static_cast<std::size_t>(i)] = pair.write(rows.first + i, matrix + i * height * width);
    });
  });
  double norm = 0.0;
  for (const double each : largest) norm = larger(norm, each);
  return norm;
}

}  // namespace linattn
