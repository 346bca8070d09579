#include "heads_by_ranks.hpp"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "../common/index.hpp"
#include "head_factors.hpp"
#include "head_spans.hpp"

namespace linattn {

namespace {

// Equations over unknowns, at the least: with several outputs, and with one.
constexpr std::int64_t times = 2, times_one = 3;
// Times that each factor is solved for again.
constexpr int most_rounds = 3;
// Size of a matrix up to which this way is fast.
constexpr std::int64_t most_unknowns = 256;

std::int64_t ceiling(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// ------------------------------------------------------------------------------------------------ what ranks say

// M(x) = left' diag(sizes) right at one point: r x n, r, r x k.
struct Square {
  Matrix left, right;
  std::vector<double> sizes;
};

std::int64_t count_above(const std::vector<double>& values, double bound) {
  return std::count_if(values.begin(), values.end(), [bound](double each) { return each > bound; });
}

std::int64_t count_below(const std::vector<double>& values, double bound) {
  return std::count_if(values.begin(), values.end(), [bound](double each) { return each < bound; });
}

class Ranks {
 public:
  Ranks(const RankQuestion& question, Coefficients coefficients)
      : asked_(question),
        E_(std::move(coefficients)),
        size_(norm(E_.entries)),
        threshold_(question.tolerance * size_),
        rounding_(question.rounding * size_) {}

  std::optional<RankAnswer> answer();

 private:
  std::vector<Square> squares_at(std::int64_t first, std::int64_t count) const;
  std::vector<Form> forms_at(std::int64_t first, std::int64_t count) const;
  double residual_of_fewer(std::int64_t H) const;
  std::optional<Factors> from_forms();
  std::optional<Factors> from_squares(bool rows);
  bool reproduces(const Coefficients& E, Factors& heads) const;
  RankAnswer reported(const Factors& heads, std::int64_t least) const;

  const double* point(std::int64_t i) const { return asked_.points + i * E_.d; }
  const double* output(std::int64_t i) const { return asked_.outputs + i * E_.n; }

  const RankQuestion& asked_;
  Coefficients E_;  // n = d_out, k = d
  double size_, threshold_, rounding_;
  std::vector<Square> squares_;
  std::vector<Form> forms_;
  std::int64_t rank_ = 1, least_ = 1;
};

std::vector<Square> Ranks::squares_at(std::int64_t first, std::int64_t count) const {
  const std::int64_t d = E_.d, n = E_.n, k = E_.k;
  Matrix products(count, E_.entries.rows());
  for (std::int64_t i = 0; i < count; ++i) {
    const double* const x = point(first + i);
    double* out = products[i];
    for (std::int64_t j = 0; j < d; ++j) {
      for (std::int64_t l = j; l < d; ++l) *out++ = x[j] * x[l];
    }
  }
  const Matrix all = product(products, E_.entries);
  std::vector<Square> found;
  for (std::int64_t i = 0; i < count; ++i) {
    Matrix M(n, k);
    std::copy_n(all[i], n * k, M[0]);
    Reduced parts = reduced(std::move(M), asked_.negligible * size_, std::min(n, k));
    std::vector<double> sizes = orthogonalise(parts.right, &parts.left);
    for (std::int64_t r = 0; r < parts.right.rows(); ++r) {
      const double length = sizes[static_cast<std::size_t>(r)];
      for (std::int64_t c = 0; c < k && length > 0; ++c) parts.right[r][c] /= length;
    }
    found.push_back({std::move(parts.left), std::move(parts.right), std::move(sizes)});
  }
  return found;
}

std::vector<Form> Ranks::forms_at(std::int64_t first, std::int64_t count) const {
  const std::int64_t d = E_.d, n = E_.n, k = E_.k;
  std::vector<Form> found;
  Matrix weights(1, n * k);
  for (std::int64_t m = first; m < first + count; ++m) {
    for (std::int64_t a = 0; a < n; ++a) {
      for (std::int64_t l = 0; l < k; ++l) weights[0][a * k + l] = output(m)[a] * point(m)[l];
    }
    Matrix B(d, d);
    for (std::int64_t i = 0, u = 0; i < d; ++i) {
      for (std::int64_t j = i; j < d; ++j, ++u) {
        const double value = dot(E_.entries[u], weights[0], n * k);
        B[i][j] = B[j][i] = i == j ? value : 0.5 * value;
      }
    }
    const Reduced parts = reduced(B, asked_.negligible * size_, d);  // B = left' (right left') left
    const std::int64_t r = parts.left.rows();
    Matrix K(r, r);
    for (std::int64_t i = 0; i < r; ++i) {
      for (std::int64_t j = 0; j < r; ++j) K[i][j] = dot(parts.right[i], parts.left[j], d);
    }
    for (std::int64_t i = 0; i < r; ++i) {
      for (std::int64_t j = 0; j < i; ++j) K[i][j] = K[j][i] = 0.5 * (K[i][j] + K[j][i]);
    }
    std::vector<double> values = eigendecompose(K);
    found.push_back({std::move(B), std::move(values), n == 1 ? product(K, parts.left) : Matrix()});
  }
  return found;
}

// See Ranks.residual_of_fewer in ranks.py.
double Ranks::residual_of_fewer(std::int64_t H) const {
  if (H == 0) return size_;
  double largest = 0;
  const auto from = static_cast<std::size_t>(H);
  const auto square = [](double x) { return x * x; };
  for (const Form& form : forms_) {
    const std::size_t r = form.values.size();
    double positive = 0, negative = 0;
    for (std::size_t i = from; i < r; ++i) {
      positive += square(std::max(0.0, form.values[i]));
      negative += square(std::min(0.0, form.values[r - 1 - i]));
    }
    largest = std::max({largest, positive, negative});
  }
  for (const Square& each : squares_) {
    double rest = 0;
    for (std::size_t i = from; i < each.sizes.size(); ++i) rest += square(each.sizes[i]);
    largest = std::max(largest, rest);
  }
  const double lost = std::sqrt(static_cast<double>(std::max(E_.d, E_.n))) * rounding_;
  return std::max(0.0, std::sqrt(largest) - lost);
}

std::optional<RankAnswer> Ranks::answer() {
  const double above = threshold_ + rounding_;
  if (E_.n > 1) {
    const std::int64_t most = std::min(E_.n, E_.k);
    rank_ = 0;
    std::int64_t surely = 0;
    // At the first point, whether columns or rows can give heads at all
    squares_ = squares_at(0, 1);
    if (E_.n == E_.k && count_above(squares_[0].sizes, threshold_) == most) return std::nullopt;
    for (Square& each : squares_at(1, asked_.squares - 1)) squares_.push_back(std::move(each));
    for (const Square& each : squares_) {
      rank_ = std::max(rank_, count_above(each.sizes, threshold_));
      surely = std::max(surely, count_above(each.sizes, above));
    }
    least_ = std::max<std::int64_t>(1, surely);
    if (rank_ != least_ || rank_ >= asked_.fewer_than) return std::nullopt;
  }
  forms_ = forms_at(0, asked_.forms);
  for (const Form& form : forms_) {
    least_ = std::max({least_, count_above(form.values, above), count_below(form.values, -above)});
  }
  if (least_ >= asked_.fewer_than) return std::nullopt;
  if (E_.n == 1) {
    const std::optional<Factors> heads = from_forms();
    return heads ? std::optional(reported(*heads, least_)) : std::nullopt;
  }
  if (rank_ != least_) return std::nullopt;
  for (const bool rows : {false, true}) {
    if (const std::optional<Factors> heads = from_squares(rows)) return reported(*heads, least_);
  }
  return std::nullopt;
}

// The other factor by least squares; then, where rounding has grown on the way, each in turn a few times.
bool Ranks::reproduces(const Coefficients& E, Factors& heads) const {
  const auto completed = [&](const Coefficients& target) {
    return complete(target, heads) && norm(remainder(target, heads).entries) <= rounding_;
  };
  if (completed(E)) return true;
  if (heads.G.rows() == 0) return false;
  const Coefficients turned = E.transposed();
  for (int round = 0; round < most_rounds; ++round) {
    std::swap(heads.F, heads.G);
    const bool done = completed(turned);
    std::swap(heads.F, heads.G);
    if (done || completed(E)) return true;
  }
  return false;
}

// ------------------------------------------------------------------------------------------------ one output

std::optional<Factors> Ranks::from_forms() {
  const std::int64_t H = least_, d = E_.d;
  std::optional<Matrix> V;
  if (H * d > most_unknowns) return std::nullopt;
  if (2 * H < d) {
    const std::int64_t formed = asked_.forms, needed = ceiling(times_one * (d - H), d - 2 * H);
    if (needed > asked_.available) return std::nullopt;
    std::vector<Form> forms = forms_;
    for (Form& form : forms_at(formed, std::max<std::int64_t>(0, needed - formed))) forms.push_back(std::move(form));
    V = values_in_ranges(forms, d, H);
  }
  if (2 * H == d) V = values_by_pencils(forms_, d, H);
  if (!V) return std::nullopt;
  Factors heads{std::move(*V), Matrix()};
  return reproduces(E_, heads) ? std::optional(std::move(heads)) : std::nullopt;
}

// ------------------------------------------------------------------------------------------------ several outputs

// V from the columns of M(x), or Q from its rows; the other by least squares.
std::optional<Factors> Ranks::from_squares(bool rows) {
  const Coefficients turned = rows ? E_.transposed() : Coefficients{};
  const Coefficients& E = rows ? turned : E_;
  const std::int64_t H = rank_, d = E.d, n = E.n, k = E.k;
  if (n <= H || H * d > most_unknowns) return std::nullopt;
  const std::int64_t needed = ceiling(times * H * d, std::min(H, n - H));
  if (needed > asked_.available) return std::nullopt;
  std::vector<Square> more;
  if (needed > asked_.squares) more = squares_at(asked_.squares, needed - asked_.squares);
  std::vector<Matrix> bases;
  const Square* best = nullptr;
  std::size_t base = 0;
  for (const std::vector<Square>* squares : {&squares_, &more}) {
    for (const Square& each : *squares) {
      if (static_cast<std::int64_t>(each.sizes.size()) < H) return std::nullopt;
      const auto smallest = [H](const Square& M) { return M.sizes[static_cast<std::size_t>(H - 1)]; };
      if (best == nullptr || smallest(each) > smallest(*best)) best = &each, base = bases.size();
      bases.push_back(rows ? each.right : each.left);
      bases.back().keep_rows(0, H);
    }
  }
  // 2 M(x0, e_j) = sum_i x0_i E[(i,j)], twice on the diagonal; times W0 / S0, (n x k) (k x H)
  const double* const x0 = point(static_cast<std::int64_t>(base));
  const Matrix& W0 = rows ? best->left : best->right;
  std::vector<Matrix> near;
  for (std::int64_t j = 0; j < d; ++j) {
    Matrix M(n, k), beside(H, n);
    for (std::int64_t i = 0; i < d; ++i) add_multiple(i == j ? 2 * x0[i] : x0[i], E.at(i, j), n * k, M[0]);
    for (std::int64_t h = 0; h < H; ++h) {
      for (std::int64_t a = 0; a < n; ++a) {
        beside[h][a] = dot(M[a], W0[h], k) / best->sizes[static_cast<std::size_t>(h)];
      }
    }
    near.push_back(std::move(beside));
  }
  std::optional<Matrix> F = spanned(asked_.points, d, bases, base, std::move(near));
  if (!F) return std::nullopt;
  Factors heads{std::move(*F), Matrix()};
  if (!reproduces(E, heads)) return std::nullopt;
  if (rows) std::swap(heads.F, heads.G);
  return heads;
}

RankAnswer Ranks::reported(const Factors& heads, std::int64_t least) const {
  Factors normal = in_normal_form(heads, E_.n == 1);
  const double residual = norm(remainder(E_, normal).entries) / size_;
  const double left = residual_of_fewer(normal.F.rows() - 1) / size_;
  Matrix V = with_signs(normal, E_.d);
  return {std::move(V), std::move(normal.G), residual, least, left};
}

}  // namespace

std::optional<RankAnswer> heads_by_ranks(const RankQuestion& question) {
  const std::int64_t d = question.d, n = question.d_out, q = pair_count(d), count = n * q * d;
  double largest = 0;
  for (std::int64_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(question.coefficients[i]));
  if (!(largest > 0) || !std::isfinite(largest)) return std::nullopt;
  // A power of four, so that nothing overflows and the square root for V and Q rounds nothing
  const int half = static_cast<int>(std::min(511.0, std::nearbyint(std::log2(largest) / 2)));
  const double scale = std::ldexp(1.0, 2 * half);
  Coefficients E{d, n, d, Matrix(q, n * d)};
  for (std::int64_t a = 0; a < n; ++a) {
    for (std::int64_t u = 0; u < q; ++u) {
      for (std::int64_t l = 0; l < d; ++l) {
        E.entries[u][a * d + l] = question.coefficients[(a * q + u) * d + l] / scale;
      }
    }
  }
  std::optional<RankAnswer> found = Ranks(question, std::move(E)).answer();
  if (!found) return found;
  const double root = std::ldexp(1.0, half);
  for (Matrix* each : {&found->V, &found->Q}) {
    for (std::int64_t i = 0; i < each->size(); ++i) (*each)[0][i] *= root;
  }
  return found;
}

}  // namespace linattn
