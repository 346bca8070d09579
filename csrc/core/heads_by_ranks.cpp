#include "heads_by_ranks.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "../common/index.hpp"

namespace linattn {

namespace {

constexpr double eps = std::numeric_limits<double>::epsilon();
// What is added to a diagonal before a factorisation, relative to the trace.
constexpr double lifted = 100 * eps;
// Smallest eigenvalue over the largest of a matrix that is not divided by.
constexpr double singular = 1e-12;
// Entries equal up to rounding tie, and the first of them decides on the sign of a head.
constexpr double same_size = 1 - 1e-8;
// Equations over unknowns, at the least: with several outputs, and with one.
constexpr std::int64_t times = 2, times_one = 3;
// Times that each factor is solved for again.
constexpr int most_rounds = 3;
// Size of a matrix up to which this way is fast.
constexpr std::int64_t most_unknowns = 256;

std::int64_t ceiling(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::int64_t pair_of(std::int64_t j, std::int64_t k, std::int64_t d) {
  return j <= k ? pair_index(j, k, d) : pair_index(k, j, d);
}

// Coefficients by pairs, E[(j,k)] (n x k): n entries for the factor F that is sought first, k for the other, G:
//
//   E[(j,k)] = sum_h F_h[j] G_h[k]' + F_h[k] G_h[j]'         F_h (d x n), G_h (d x k);  the diagonal counts once
//
// (F_h, G_h) = (V_h', Q_h), or (Q_h, V_h') with E transposed.
struct Coefficients {
  std::int64_t d, n, k;
  Matrix entries;  // pairs x (n k)

  double* at(std::int64_t i, std::int64_t j) { return entries[pair_of(i, j, d)]; }
  const double* at(std::int64_t i, std::int64_t j) const { return entries[pair_of(i, j, d)]; }

  Coefficients transposed() const {
    Coefficients other{d, k, n, Matrix(entries.rows(), entries.columns())};
    for (std::int64_t u = 0; u < entries.rows(); ++u) {
      for (std::int64_t i = 0; i < n; ++i) {
        for (std::int64_t j = 0; j < k; ++j) other.entries[u][j * n + i] = entries[u][i * k + j];
      }
    }
    return other;
  }
};

// Heads: F is H x (d n), G is H x (d k).
struct Factors {
  Matrix F, G;
};

// E - E(F, G).
Coefficients remainder(const Coefficients& E, const Factors& heads) {
  Coefficients left = E;
  const std::int64_t H = heads.F.rows(), d = E.d, n = E.n, k = E.k;
  Matrix minus = heads.F;
  for (std::int64_t i = 0; i < minus.size(); ++i) minus[0][i] = -minus[0][i];
  const auto subtract = [&](std::int64_t i, std::int64_t j, double* out) {
    add_product(n, H, k, {minus[0] + i * n, 1, d * n}, {heads.G[0] + j * k, d * k}, out, k);
  };
  for (std::int64_t i = 0; i < d; ++i) {
    for (std::int64_t j = i; j < d; ++j) {
      subtract(i, j, left.at(i, j));
      if (i != j) subtract(j, i, left.at(i, j));
    }
  }
  return left;
}

// r r', (Hd x Hd): F_h . F_g at j = i, otherwise F_h[i] . F_g[j]; lifted where heads that repeat leave zeros.
Matrix block_of(const Matrix& F, std::int64_t d) {
  const std::int64_t H = F.rows(), n = F.columns() / d;
  Matrix block(H * d, H * d);
  double trace = 0;
  for (std::int64_t h = 0; h < H; ++h) {
    for (std::int64_t g = 0; g <= h; ++g) {
      const double whole = dot(F[h], F[g], d * n);
      for (std::int64_t j = 0; j < d; ++j) {
        for (std::int64_t i = 0; i < d; ++i) block[h * d + j][g * d + i] = dot(F[h] + i * n, F[g] + j * n, n);
        block[h * d + j][g * d + j] = whole;
      }
      if (h == g) trace += whole * static_cast<double>(d);
    }
  }
  const double lift = lifted * trace + std::numeric_limits<double>::min();
  for (std::int64_t i = 0; i < H * d; ++i) block[i][i] += lift;
  return block;
}

// The factor G that is best beside F, by least squares; false where F does not determine it.
bool complete(const Coefficients& E, Factors& heads) {
  const std::int64_t H = heads.F.rows(), d = E.d, n = E.n, k = E.k;
  Matrix factor = block_of(heads.F, d);
  if (!factor_cholesky(factor)) return false;
  const auto add_solution = [&](const Coefficients& target) {
    Matrix right(H * d, k);  // (h, j): sum_i F_h[i] E[(i,j)]
    for (std::int64_t j = 0; j < d; ++j) {
      for (std::int64_t i = 0; i < d; ++i) {
        add_product(H, n, k, {heads.F[0] + i * n, d * n}, {target.at(i, j), k}, right[j], d * k);
      }
    }
    solve_cholesky(factor, right);
    add_multiple(1.0, right[0], right.size(), heads.G[0]);
  };
  heads.G = Matrix(H, d * k);
  add_solution(E);
  add_solution(remainder(E, heads));  // the factor is not quite that of the block
  return true;
}

// ------------------------------------------------------------------------------------------------ what ranks say

// M(x) = left' diag(sizes) right at one point: r x n, r, r x k.
struct Square {
  Matrix left, right;
  std::vector<double> sizes;
};

// B(u,c), d x d, and the part of it that is not negligible: eigenvalues, the largest first, and eigenvectors, r x d.
struct Form {
  Matrix matrix;
  std::vector<double> values;
  Matrix vectors;
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
  std::optional<Matrix> values_in_ranges(std::int64_t H);
  std::optional<Matrix> values_by_pencils(std::int64_t H) const;
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
  const std::int64_t H = least_;
  std::optional<Matrix> V;
  if (H * E_.d > most_unknowns) return std::nullopt;
  if (2 * H < E_.d) V = values_in_ranges(H);
  if (2 * H == E_.d) V = values_by_pencils(H);
  if (!V) return std::nullopt;
  Factors heads{std::move(*V), Matrix()};
  return reproduces(E_, heads) ? std::optional(std::move(heads)) : std::nullopt;
}

// All v_h lie in the range of every B(c). Of one range, those with the smallest parts outside the others.
std::optional<Matrix> Ranks::values_in_ranges(std::int64_t H) {
  const std::int64_t d = E_.d, needed = ceiling(times_one * (d - H), d - 2 * H);
  if (needed > asked_.available) return std::nullopt;
  std::vector<Form> more;
  const auto formed = static_cast<std::int64_t>(forms_.size());
  if (needed > formed) more = forms_at(formed, needed - formed);
  std::vector<Matrix> ranges;
  std::size_t base = 0;
  double farthest = -1;  // of the smallest eigenvalue of a range from zero
  for (std::vector<Form>* forms : {&forms_, &more}) {
    for (Form& form : *forms) {
      const auto r = static_cast<std::int64_t>(form.values.size());
      const std::int64_t kept = std::min(r, 2 * H);
      Matrix range(kept, d);
      double smallest = kept == 2 * H ? HUGE_VAL : 0;
      for (std::int64_t i = 0; i < kept; ++i) {
        const std::int64_t from = i < H || kept < 2 * H ? i : r - 2 * H + i;
        std::copy_n(form.vectors[from], d, range[i]);
        smallest = std::min(smallest, std::abs(form.values[static_cast<std::size_t>(from)]));
      }
      if (smallest > farthest) base = ranges.size(), farthest = smallest;
      ranges.push_back(std::move(range));
    }
  }
  Matrix basis = ranges[base];
  const std::int64_t r = basis.rows();
  if (r < H) return std::nullopt;
  const auto count = static_cast<std::int64_t>(ranges.size());
  Matrix outside(r, count * d);
  for (std::int64_t i = 0; i < count; ++i) {
    const Matrix& range = ranges[static_cast<std::size_t>(i)];
    for (std::int64_t v = 0; v < r; ++v) {
      double* const part = outside[v] + i * d;
      if (i == static_cast<std::int64_t>(base)) continue;
      std::copy_n(basis[v], d, part);
      for (std::int64_t w = 0; w < range.rows(); ++w) add_multiple(-dot(range[w], part, d), range[w], d, part);
    }
  }
  orthogonalise(outside, &basis);
  basis.keep_rows(r - H, H);
  return basis;
}

// The rows of p(N) span the v_h, p(t)^2 = det (t - N), N = B(c0)^-1 B(c).
std::optional<Matrix> Ranks::values_by_pencils(std::int64_t H) const {
  const std::int64_t d = E_.d;
  const Form* base = nullptr;
  double farthest = 0, largest = 0;
  for (const Form& form : forms_) {
    if (form.values.empty()) continue;
    const auto size = [](double a, double b) { return std::abs(a) < std::abs(b); };
    const auto [low, high] = std::minmax_element(form.values.begin(), form.values.end(), size);
    largest = std::max(largest, std::abs(*high));
    if (static_cast<std::int64_t>(form.values.size()) < d || std::abs(*low) <= farthest) continue;
    farthest = std::abs(*low);
    base = &form;
  }
  if (base == nullptr || farthest <= singular * largest) return std::nullopt;
  const auto trace = [d](const Matrix& N) {
    double sum = 0;
    for (std::int64_t i = 0; i < d; ++i) sum += N[i][i];
    return sum;
  };
  const auto scale = [](Matrix& N, double factor) {
    for (std::int64_t i = 0; i < N.size(); ++i) N[0][i] *= factor;
  };
  const auto brought_to_one = [&](Matrix& N) {
    const double length = norm(N);
    if (length > 0) scale(N, 1 / length);
  };
  Matrix rows(d, static_cast<std::int64_t>(forms_.size() - 1) * d);  // of all p(N), as columns
  std::int64_t column = 0;
  for (const Form& form : forms_) {
    if (&form == base) continue;
    Matrix N = form.matrix;
    solve(base->matrix, N);
    // Of mean eigenvalue zero and norm one: less cancels in p, and no power overflows
    const double mean = trace(N) / static_cast<double>(d);
    for (std::int64_t i = 0; i < d; ++i) N[i][i] -= mean;
    brought_to_one(N);
    // Newton's identities: k e_k = sum_i (-1)^(i-1) e_(k-i) s_i, s_i = tr N^i / 2
    std::vector<double> e{1.0}, s{0.0};
    std::vector<Matrix> powers(1, Matrix(d, d));
    for (std::int64_t i = 0; i < d; ++i) powers[0][i][i] = 1;
    for (std::size_t k = 1; k <= static_cast<std::size_t>(H); ++k) {
      powers.push_back(k == 1 ? N : product(powers.back(), N));
      s.push_back(trace(powers.back()) / 2);
      double sum = 0;
      for (std::size_t i = 1; i <= k; ++i) sum += (i % 2 == 1 ? 1 : -1) * e[k - i] * s[i];
      e.push_back(sum / static_cast<double>(k));
    }
    Matrix p(d, d);
    for (std::size_t k = 0; k < e.size(); ++k) {
      add_multiple((k % 2 == 0 ? 1 : -1) * e[k], powers[e.size() - 1 - k][0], d * d, p[0]);
    }
    brought_to_one(p);
    for (std::int64_t i = 0; i < d; ++i, ++column) {
      for (std::int64_t j = 0; j < d; ++j) rows[j][column] = p[i][j];
    }
  }
  Matrix span(d, d);
  for (std::int64_t i = 0; i < d; ++i) span[i][i] = 1;
  orthogonalise(rows, &span);
  span.keep_rows(0, H);
  return span;
}

// ------------------------------------------------------------------------------------------------ several outputs

// F (H x (d n)) with F x in U(x), by the normal equations for X in span.py. U(x) (H x n) are the rows of `bases`,
// x0 the point of the number `base`, and near[j] = (2 M(x0, e_j) W0 / S0)', H x n.
std::optional<Matrix> spanned(const double* points, std::int64_t d, const std::vector<Matrix>& bases, std::size_t base,
                              std::vector<Matrix> near) {
  const Matrix& U0 = bases[base];
  const double* const x0 = points + static_cast<std::int64_t>(base) * d;
  const std::int64_t H = U0.rows(), n = U0.columns();
  for (Matrix& each : near) {  // N(e_j)
    for (std::int64_t h = 0; h < H; ++h) {
      for (int time = 0; time < 2; ++time) {
        for (std::int64_t g = 0; g < H; ++g) add_multiple(-dot(each[h], U0[g], n), U0[g], n, each[h]);
      }
    }
  }
  Matrix matrix(d * H, d * H), right(d * H, H), G(H, H), at(H, n), weights(H, H), pulled(H, H);
  for (std::size_t m = 0; m <= bases.size(); ++m) {
    const bool last = m == bases.size();  // X(x0) = I, as one more point whose weights are one
    const double* const x = last ? x0 : points + static_cast<std::int64_t>(m) * d;
    at = Matrix(H, n);
    for (std::int64_t j = 0; j < d && !last; ++j)
      add_multiple(x[j], near[static_cast<std::size_t>(j)][0], H * n, at[0]);
    for (std::int64_t g = 0; g < H && !last; ++g) {
      for (std::int64_t h = 0; h < H; ++h) G[g][h] = dot(bases[m][g], U0[h], n);
    }
    for (std::int64_t g = 0; g < H; ++g) {
      for (std::int64_t h = 0; h < H; ++h) {
        weights[g][h] = pulled[g][h] = g == h ? 1.0 : 0.0;
        if (last) continue;
        pulled[g][h] = 0;
        for (std::int64_t i = 0; i < H; ++i) {
          weights[g][h] -= G[i][g] * G[i][h];
          pulled[g][h] += G[i][g] * dot(bases[m][i], at[h], n);
        }
      }
    }
    for (std::int64_t j = 0; j < d; ++j) {
      for (std::int64_t g = 0; g < H; ++g) {
        add_multiple(x[j], pulled[g], H, right[j * H + g]);
        for (std::int64_t i = 0; i <= j; ++i) add_multiple(x[j] * x[i], weights[g], H, matrix[j * H + g] + i * H);
      }
    }
  }
  if (!factor_cholesky(matrix)) return std::nullopt;
  solve_cholesky(matrix, right);
  Matrix F(H, d * n);
  for (std::int64_t j = 0; j < d; ++j) {
    Matrix& N = near[static_cast<std::size_t>(j)];
    for (std::int64_t h = 0; h < H; ++h) {
      for (std::int64_t g = 0; g < H; ++g) add_multiple(right[j * H + g][h], U0[g], n, N[h]);
      std::copy_n(N[h], n, F[h] + j * n);
    }
  }
  return F;
}

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

// ------------------------------------------------------------------------------------------------ normal form

// For one output and orthonormal F_h: of all G that give the same output, the smallest, whose products F_g' G_h are
// symmetric in g and h. See smallest_queries in span.py.
void make_smallest(Factors& heads) {
  const std::int64_t H = heads.F.rows(), d = heads.F.columns();
  const Factors before = heads;
  for (std::int64_t h = 0; h < H; ++h) {
    for (std::int64_t g = 0; g < H; ++g) {
      Matrix half(1, d);  // of F_g' G_h - F_h' G_g
      for (std::int64_t i = 0; i < d; ++i) {
        add_multiple(0.5 * before.F[g][i], before.G[h] + i * d, d, half[0]);
        add_multiple(-0.5 * before.F[h][i], before.G[g] + i * d, d, half[0]);
      }
      for (std::int64_t i = 0; i < d; ++i) add_multiple(-before.F[g][i], half[0], d, heads.G[h] + i * d);
    }
  }
}

// Heads whose sum of F_h (x) G_h is the same, and an SVD; those that repeat are merged. See normal_form in heads.py.
Factors in_normal_form(const Factors& heads, bool one_output) {
  const std::int64_t H = heads.F.rows();
  Matrix columns(heads.F.columns(), H);
  for (std::int64_t h = 0; h < H; ++h) {
    for (std::int64_t i = 0; i < columns.rows(); ++i) columns[i][h] = heads.F[h][i];
  }
  Reduced parts = reduced(std::move(columns), 0.0, H);  // F = left' right
  Factors normal{std::move(parts.left), product(parts.right, heads.G)};
  if (one_output && H > 1) make_smallest(normal);
  const std::vector<double> sizes = orthogonalise(normal.G, &normal.F);
  const std::int64_t count =
      std::max<std::int64_t>(1, count_above(sizes, 10 * static_cast<double>(H) * eps * sizes.front()));
  normal.F.keep_rows(0, count);
  normal.G.keep_rows(0, count);
  for (std::int64_t h = 0; h < count; ++h) {
    const double root = std::sqrt(sizes[static_cast<std::size_t>(h)]);
    for (std::int64_t i = 0; i < normal.F.columns(); ++i) normal.F[h][i] *= root;
    for (std::int64_t i = 0; i < normal.G.columns(); ++i) normal.G[h][i] /= root;
  }
  return normal;
}

// V_h of F_h = V_h', with the first of its largest entries positive.
Matrix with_signs(Factors& heads, std::int64_t d) {
  const std::int64_t n = heads.F.columns() / d;
  Matrix V(heads.F.rows(), heads.F.columns());
  for (std::int64_t h = 0; h < V.rows(); ++h) {
    double* const v = V[h];
    double largest = 0;
    for (std::int64_t a = 0; a < n; ++a) {
      for (std::int64_t j = 0; j < d; ++j) {
        v[a * d + j] = heads.F[h][j * n + a];
        largest = std::max(largest, std::abs(v[a * d + j]));
      }
    }
    const double* first = v;
    while (std::abs(*first) < same_size * largest) ++first;
    if (!(*first < 0)) continue;
    for (std::int64_t i = 0; i < V.columns(); ++i) v[i] = -v[i];
    for (std::int64_t i = 0; i < heads.G.columns(); ++i) heads.G[h][i] = -heads.G[h][i];
  }
  return V;
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
