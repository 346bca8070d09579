#include "layer.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "../common/block_sizes.hpp"
#include "../common/index.hpp"

namespace linattn {

namespace {

// Heads as matrices that are applied to many coordinates at once.
struct HeadMatrices {
  std::int64_t heads, d_out, d;
  std::vector<double> values, values_by_head;                   // V: (d_out, H d) and (H d_out, d)
  std::vector<double> queries, transposed_by_head, transposed;  // Q_h (H d, d); Q_h' as (H d, d) and as (d, H d)
  std::vector<double> by_query;                                 // coefficients (d_out d, q); empty: not formed
};

// Multiply-adds that are done at once where they save others later: they take no longer than starting a thread.
constexpr std::int64_t few_multiply_adds = std::int64_t{1} << 16;

// Which way is cheapest depends on the number of queries to one S:
//   one            y = [V_1 .. V_H] (S Q_1 z; ..; S Q_H z)                          H (2 d^2 + d_out d) multiply-adds
//   many           y = M z with M = sum_h (V_h S) Q_h                              2 H d_out d^2 once, d_out d a query
//   small d        the same, M[a,l] = sum_u C[a,(u,l)] s_u from the coefficients    d_out d q once, d_out d a query
//   every prefix   M_t = M_(t-1) + sum_h (V_h z_t) (Q_h' z_t)', S is not needed     H (d^2 + 2 d_out d) + d_out d
class HeadsLayer final : public Layer {
 public:
  HeadsLayer(const Kernels& kernels, std::shared_ptr<const HeadMatrices> matrices)
      : kernels_(kernels),
        matrices_(std::move(matrices)),
        heads_(matrices_->heads),
        d_out_(matrices_->d_out),
        d_(matrices_->d),
        left_(heads_ * std::max(d_, d_out_) * group_samples),
        right_(heads_ * d_ * group_samples),
        map_(d_out_ * d_ * group_samples) {}

  void attend(const double* s, std::int64_t width, std::int64_t queries) override {
    s_ = s;
    const std::int64_t one = heads_ * (2 * d_ * d_ + d_out_ * d_), mapping = d_out_ * d_ * (pair_count(d_) + 1);
    const bool expanded = !matrices_->by_query.empty();
    mapped_ = queries > d_out_ || (expanded && mapping < one + one / 8);  // one product is faster than three
    if (!mapped_) return;
    if (!expanded) return form_map(width);
    kernels_.apply(matrices_->by_query.data(), d_out_ * d_, pair_count(d_), s, width, map_.data());
  }

  const double* map() const override { return mapped_ ? map_.data() : nullptr; }

  void query(const double* z, std::int64_t width, double* y) override {
    if (mapped_) return kernels_.contract(map_.data(), d_out_, d_, z, width, y);
    kernels_.apply(matrices_->queries.data(), heads_ * d_, d_, z, width, left_.data());
    kernels_.apply_symmetric(s_, d_, left_.data(), heads_, width, right_.data());
    kernels_.apply(matrices_->values.data(), d_out_, heads_ * d_, right_.data(), width, y);
  }

  void start(std::int64_t width) override { std::fill_n(map_.data(), d_out_ * d_ * width, 0.0); }

  void follow(const double* z, std::int64_t width, double* y) override {
    kernels_.apply(matrices_->values_by_head.data(), heads_ * d_out_, d_, z, width, left_.data());
    kernels_.apply(matrices_->transposed_by_head.data(), heads_ * d_, d_, z, width, right_.data());
    kernels_.add_outer(left_.data(), right_.data(), heads_, d_out_, d_, width, map_.data());
    kernels_.contract(map_.data(), d_out_, d_, z, width, y);
  }

 private:
  // Row a of M: S times the rows a of the V_h, the same for every sample, then the Q_h'.
  void form_map(std::int64_t width) {
    const double* value = matrices_->values.data();
    for (std::int64_t a = 0; a < d_out_; ++a) {
      for (std::int64_t i = 0; i < heads_ * d_; ++i) std::fill_n(left_.data() + i * width, width, *value++);
      kernels_.apply_symmetric(s_, d_, left_.data(), heads_, width, right_.data());
      kernels_.apply(matrices_->transposed.data(), d_, heads_ * d_, right_.data(), width, map_.data() + a * d_ * width);
    }
  }

  const Kernels& kernels_;
  std::shared_ptr<const HeadMatrices> matrices_;
  std::int64_t heads_, d_out_, d_;
  Buffer left_, right_;  // H d (or H d_out) and H d x width
  Buffer map_;           // M: d_out d x width
  const double* s_ = nullptr;
  bool mapped_ = false;
};

// y = M z with M[a,l] = sum_u C[a,(u,l)] s_u, formed once for all queries of a sequence
class CoefficientLayer final : public Layer {
 public:
  CoefficientLayer(const Kernels& kernels, std::shared_ptr<const std::vector<double>> by_query, std::int64_t d_out,
                   std::int64_t d)
      : kernels_(kernels), by_query_(std::move(by_query)), d_out_(d_out), d_(d), map_(d_out * d * group_samples) {}

  void attend(const double* s, std::int64_t width, std::int64_t) override {
    kernels_.apply(by_query_->data(), d_out_ * d_, pair_count(d_), s, width, map_.data());
  }

  const double* map() const override { return map_.data(); }

  void query(const double* z, std::int64_t width, double* y) override {
    kernels_.contract(map_.data(), d_out_, d_, z, width, y);
  }

  void start(std::int64_t width) override {
    if (prefix_.data() == nullptr) prefix_ = Buffer(pair_count(d_) * group_samples);
    std::fill_n(prefix_.data(), pair_count(d_) * width, 0.0);
  }

  void follow(const double* z, std::int64_t width, double* y) override {
    kernels_.add_token(z, d_, width, prefix_.data());
    attend(prefix_.data(), width, 1);
    query(z, width, y);
  }

 private:
  const Kernels& kernels_;
  std::shared_ptr<const std::vector<double>> by_query_;  // (d_out d, q)
  std::int64_t d_out_, d_;
  Buffer map_;     // d_out d x width
  Buffer prefix_;  // S of the tokens so far: q x width
};

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

double largest_magnitude(const double* numbers, std::int64_t count) {
  double largest = 0.0;
  for (std::int64_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(numbers[i]));
  return largest;
}

// C[a,(j,k),l] = sum_h V_h[a,j] Q_h[k,l] + V_h[a,k] Q_h[j,l], the second where j < k: (d_out d, q). Empty where M is
// formed from heads with fewer multiply-adds, this would take long, or products of heads alone leave the range of
// numbers.
std::vector<double> expanded(const double* v, const double* q, std::int64_t heads, std::int64_t d_out, std::int64_t d) {
  const std::int64_t pairs = pair_count(d), entries = d_out * d * pairs;
  if (pairs >= 2 * heads * d || entries > few_multiply_adds / (2 * heads)) return {};
  const double largest = largest_magnitude(v, heads * d_out * d) * largest_magnitude(q, heads * d * d);
  if (!(largest > 1e-200 && largest < 1e200)) return {};
  std::vector<double> by_query(size(entries));
  for (std::int64_t a = 0; a < d_out; ++a) {
    for (Pair pair{0, 0}; pair.j < d; pair = next_pair(pair, d)) {
      double* const entry = by_query.data() + a * d * pairs + pair_index(pair.j, pair.k, d);
      for (std::int64_t h = 0; h < heads; ++h) {
        const double *values = v + (h * d_out + a) * d, *queries = q + h * d * d;
        const double left = values[pair.j], right = pair.j < pair.k ? values[pair.k] : 0.0;
        for (std::int64_t l = 0; l < d; ++l) {
          entry[l * pairs] += left * queries[pair.k * d + l] + right * queries[pair.j * d + l];
        }
      }
    }
  }
  return by_query;
}

}  // namespace

LayerFactory layer_from_heads(const Kernels& kernels, const double* v, const double* q, std::int64_t heads,
                              std::int64_t d_out, std::int64_t d) {
  auto matrices = std::make_shared<HeadMatrices>();
  *matrices = {
      heads, d_out, d, {}, {v, v + heads * d_out * d}, {q, q + heads * d * d}, {}, {}, expanded(v, q, heads, d_out, d)};
  matrices->values.resize(size(d_out * heads * d));
  matrices->transposed_by_head.resize(size(heads * d * d));
  matrices->transposed.resize(size(heads * d * d));
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t a = 0; a < d_out; ++a) {
      std::copy_n(v + (h * d_out + a) * d, d, matrices->values.data() + (a * heads + h) * d);
    }
    for (std::int64_t k = 0; k < d; ++k) {
      for (std::int64_t l = 0; l < d; ++l) {
        const double entry = q[(h * d + k) * d + l];
        matrices->transposed_by_head[size((h * d + l) * d + k)] = entry;
        matrices->transposed[size((l * heads + h) * d + k)] = entry;
      }
    }
  }
  return [&kernels, matrices] { return std::make_unique<HeadsLayer>(kernels, matrices); };
}

LayerFactory layer_from_coefficients(const Kernels& kernels, const double* coefficients, std::int64_t d_out,
                                     std::int64_t d) {
  const std::int64_t pairs = pair_count(d);
  auto by_query = std::make_shared<std::vector<double>>(static_cast<std::size_t>(d_out * d * pairs));
  for (std::int64_t a = 0; a < d_out; ++a) {
    for (std::int64_t u = 0; u < pairs; ++u) {
      for (std::int64_t l = 0; l < d; ++l) {
        (*by_query)[static_cast<std::size_t>((a * d + l) * pairs + u)] = coefficients[(a * pairs + u) * d + l];
      }
    }
  }
  return [=, &kernels] { return std::make_unique<CoefficientLayer>(kernels, by_query, d_out, d); };
}

}  // namespace linattn
