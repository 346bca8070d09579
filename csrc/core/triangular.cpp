#include "triangular.hpp"

#include <algorithm>
#include <atomic>
#include <vector>

#include "../common/block_sizes.hpp"
#include "../common/buffer.hpp"
#include "../common/team.hpp"

namespace linattn {

namespace {

// From so many rows on a matrix is large.
constexpr std::int64_t large_rows = 1536;

// Rows and columns of what is left that one task updates: its packed columns stay in L2.
std::int64_t chunk_edge(std::int64_t n) { return (n < large_rows ? 2 : 5) * task_rows; }

// As long as a second thread takes to start, about.
constexpr std::int64_t multiply_adds_worth_a_thread = 1 << 22;

constexpr std::int64_t round_up(std::int64_t number, std::int64_t unit) { return (number + unit - 1) / unit * unit; }

struct Minus {
  double values[block_samples];
  Minus() { std::fill_n(values, block_samples, -1.0); }
};
const Minus minus;

// Rows of the triangle L, or those of L' in reverse order of both, which is a lower triangle again: with it the same
// code solves with L'.
struct TriangleRows {
  const double* factor;
  std::int64_t n;
  bool reversed;

  // out[i * block_stride + k] = entry (row + i, column + k); zero up to `padded` columns.
  void copy(std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns, std::int64_t padded,
            double* out) const {
    for (std::int64_t i = 0; i < rows; ++i) {
      double* const to = out + i * block_stride;
      if (!reversed) std::copy_n(factor + (row + i) * n + column, columns, to);
      std::fill(to + columns, to + padded, 0.0);
    }
    if (!reversed) return;
    for (std::int64_t k = 0; k < columns; ++k) {
      const double* const from = factor + (n - 1 - column - k) * n + (n - 1 - row);
      for (std::int64_t i = 0; i < rows; ++i) out[i * block_stride + k] = from[-i];
    }
  }
};

// The diagonal triangle of one block, ready to solve with: X L' = B, rows of B at a time.
class DiagonalTriangle {
 public:
  DiagonalTriangle(const Kernels& kernels, std::int64_t columns)
      : kernels_(kernels),
        rows_(triangle_step * block_stride),
        triangles_(columns * triangle_step),
        reciprocals_(columns),
        packed_(columns * columns / 2),
        aside_(triangle_step * block_samples) {}

  // Factorises a symmetric block whose lower triangle has rows of `stride`; returns the number of good pivots.
  std::int64_t factor(double* matrix, std::int64_t stride, std::int64_t columns) {
    columns_ = columns;
    for (std::int64_t first = 0; first < columns; first += triangle_step) {
      const std::int64_t count = std::min(triangle_step, columns - first);
      double* const rows = rows_.data();
      for (std::int64_t i = 0; i < count; ++i) {
        std::copy_n(matrix + (first + i) * stride, first + i + 1, rows + i * block_stride);
      }
      solve(rows, count, first, aside_.data());
      pack_rows(first, count);
      if (first > 0) {
        double* targets[triangle_step];
        for (std::int64_t i = 0; i < count; ++i) targets[i] = rows + i * block_stride + first;
        kernels_.float64.multiply(aside_.data(), count, packed_.data() + offset(first), count, first, nullptr, nullptr,
                                  nullptr, targets);
      }
      keep_triangle(first, count);
      double* const triangle = triangle_at(first);
      const std::int64_t good = kernels_.factor_triangle(triangle, count, reciprocals_.data() + first);
      if (good < count) return first + good;
      for (std::int64_t i = 0; i < count; ++i) {
        double* const out = matrix + (first + i) * stride;
        std::copy_n(rows + i * block_stride, first, out);
        for (std::int64_t k = 0; k <= i; ++k) out[first + k] = triangle[k * triangle_step + i];
      }
    }
    return columns;
  }

  // A triangle that is known.
  void load(const TriangleRows& from, std::int64_t block, std::int64_t columns) {
    columns_ = columns;
    for (std::int64_t first = 0; first < columns; first += triangle_step) {
      const std::int64_t count = std::min(triangle_step, columns - first);
      from.copy(block + first, count, block, first + count, first + count, rows_.data());
      pack_rows(first, count);
      keep_triangle(first, count);
      for (std::int64_t j = 0; j < triangle_step; ++j) {
        reciprocals_.data()[first + j] = j < count ? 1 / triangle_at(first)[j * triangle_step + j] : 0.0;
      }
    }
  }

  std::int64_t padded() const { return round_up(columns_, triangle_step); }

  // Rows (of block_stride, aligned, `padded` of them columns that count or are zero) become X; `packed` is X as left
  // factor of a product, padded() samples.
  void solve(double* rows, std::int64_t count, double* packed) const { solve(rows, count, padded(), packed); }

 private:
  // Only the first `columns`, a multiple of triangle_step.
  void solve(double* rows, std::int64_t count, std::int64_t columns, double* packed) const {
    const std::int64_t tile = kernels_.float64.tile_rows;
    for (std::int64_t panel = 0; panel < count; panel += tile) {
      const std::int64_t height = std::min(tile, count - panel), width = round_up(height, kernels_.lanes);
      double* const left = packed + panel * columns;
      double* targets[task_rows];
      for (std::int64_t first = 0; first < columns; first += triangle_step) {
        double* const from = rows + panel * block_stride + first;
        double* const x = left + first * width;
        if (first > 0) {
          for (std::int64_t i = 0; i < height; ++i) targets[i] = from + i * block_stride;
          const std::int64_t wide = std::min(triangle_step, columns_ - first);
          kernels_.float64.multiply(left, height, packed_.data() + offset(first), wide, first, nullptr, nullptr,
                                    nullptr, targets);
        }
        kernels_.float64.pack_left_rows(from, block_stride, height, triangle_step, nullptr, x);
        kernels_.substitute(triangle_at(first), reciprocals_.data() + first, width, x);
        kernels_.unpack_panel(x, width, from, block_stride);
      }
    }
  }

  // Where the rows of the triangle from `first` on are packed, `first` columns of them.
  static std::int64_t offset(std::int64_t first) { return first * (first - triangle_step) / 2; }
  double* triangle_at(std::int64_t first) const { return triangles_.data() + first * triangle_step; }

  void pack_rows(std::int64_t first, std::int64_t count) {
    if (first == 0) return;
    kernels_.float64.pack_right_rows(rows_.data(), block_stride, count, first, minus.values,
                                     packed_.data() + offset(first));
  }

  void keep_triangle(std::int64_t first, std::int64_t count) {
    double* const triangle = triangle_at(first);
    std::fill_n(triangle, triangle_step * triangle_step, 0.0);
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::int64_t k = 0; k <= i; ++k) {
        triangle[k * triangle_step + i] = rows_.data()[i * block_stride + first + k];
      }
    }
    std::fill_n(reciprocals_.data() + first, triangle_step, 0.0);
  }

  const Kernels& kernels_;
  std::int64_t columns_ = 0;
  Buffer rows_, triangles_, reciprocals_, packed_, aside_;
};

int useful_threads(std::int64_t multiply_adds, int threads) {
  return static_cast<int>(std::clamp<std::int64_t>(multiply_adds / multiply_adds_worth_a_thread, 1, threads));
}

// A task's rows of a block's columns: from `matrix` into `rows`, and back.
void take(const double* matrix, std::int64_t stride, std::int64_t count, std::int64_t columns, std::int64_t padded,
          double* rows) {
  for (std::int64_t i = 0; i < count; ++i) {
    double* const to = rows + i * block_stride;
    std::copy_n(matrix + i * stride, columns, to);
    std::fill(to + columns, to + padded, 0.0);
  }
}

void give(const double* rows, std::int64_t count, std::int64_t columns, double* matrix, std::int64_t stride) {
  for (std::int64_t i = 0; i < count; ++i) std::copy_n(rows + i * block_stride, columns, matrix + i * stride);
}

// matrix (count x columns, rows of stride) -= X L', both packed, X as left factor and -L as right factor.
void subtract_product(const Kernels& kernels, const double* left, std::int64_t count, const double* right,
                      std::int64_t columns, std::int64_t samples, double* matrix, std::int64_t stride) {
  double* targets[task_rows];
  for (std::int64_t i = 0; i < count; ++i) targets[i] = matrix + i * stride;
  kernels.float64.multiply(left, count, right, columns, samples, nullptr, nullptr, nullptr, targets);
}

// Calls body(first row, rows, first column, columns) for the parts of the lower triangle of n rows that tasks of
// a team work at: chunks with the last rows first, because these are whole.
template <typename Body>
void for_lower_chunks(Team& team, std::int64_t n, std::int64_t edge, const Body& body) {
  const std::int64_t chunks = (n + edge - 1) / edge;
  team.for_each(chunks * (chunks + 1) / 2, [&](std::int64_t task) {
    std::int64_t down = chunks - 1;
    for (; task > down; --down) task -= down + 1;
    const std::int64_t column = task * edge;
    for (std::int64_t first = down * edge; first < std::min((down + 1) * edge, n); first += task_rows) {
      const std::int64_t count = std::min(task_rows, n - first);
      body(first, count, column, std::min(edge, first + count - column));  // up to the diagonal
    }
  });
}

// Rows from which packed products are faster than readings of L for `abreast` of them.
constexpr std::int64_t many_rows = 2 * abreast;

// A few rows (count x n), `abreast` of them at a time.
void solve_few(const Kernels& kernels, const double* factor, std::int64_t n, Side side, double* rows,
               std::int64_t count) {
  const Buffer x(n * abreast);
  for (std::int64_t first = 0; first < count; first += abreast, rows += n * abreast) {
    const std::int64_t taken = std::min(abreast, count - first);
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t c = 0; c < taken; ++c) x.data()[i * abreast + c] = rows[c * n + i];
    }
    (side == Side::lower ? kernels.solve_lower : kernels.solve_upper)(factor, n, x.data());
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t c = 0; c < taken; ++c) rows[c * n + i] = x.data()[i * abreast + c];
    }
  }
}

}  // namespace

// Small matrices have fewer, because the diagonal triangle of a block is one thread's work.
std::int64_t block_columns(std::int64_t n) { return n < large_rows ? block_samples / 2 : block_samples; }

std::int64_t factor_cholesky(const Kernels& kernels, double* matrix, std::int64_t n, int threads,
                             const Monitor& monitor) {
  const std::int64_t columns = block_columns(n), edge = chunk_edge(n);
  DiagonalTriangle triangle(kernels, columns);
  const std::int64_t below_first = round_up(std::max<std::int64_t>(n - columns, 0), task_rows);
  const Buffer left(below_first * columns), right(below_first * columns);
  std::atomic<std::int64_t> failed{0};
  Team::run(useful_threads(n * n * n / 6, threads), [&](Team& team, int rank) {
    const Buffer rows(task_rows * block_stride);
    for (std::int64_t block = 0; block < n; block += columns) {
      if (rank == 0) monitor(block);
      const std::int64_t here = std::min(columns, n - block), below = n - block - here;
      team.for_each(1, [&](std::int64_t) {
        const std::int64_t good = triangle.factor(matrix + block * n + block, n, here);
        if (good < here) failed = block + good + 1;
      });
      if (failed != 0 || below == 0) return;
      const std::int64_t samples = round_up(here, triangle_step);
      double* const rest = matrix + (block + here) * n + block;  // the rows below, from this block's columns on
      team.for_each((below + task_rows - 1) / task_rows, [&](std::int64_t task) {
        const std::int64_t first = task * task_rows, count = std::min(task_rows, below - first);
        double* const panel = rest + first * n;
        take(panel, n, count, here, samples, rows.data());
        triangle.solve(rows.data(), count, left.data() + first * samples);
        give(rows.data(), count, here, panel, n);
        kernels.float64.pack_right_rows(rows.data(), block_stride, count, samples, minus.values,
                                        right.data() + first * samples);
      });
      for_lower_chunks(
          team, below, edge, [&](std::int64_t first, std::int64_t count, std::int64_t column, std::int64_t wide) {
            subtract_product(kernels, left.data() + first * samples, count, right.data() + column * samples, wide,
                             samples, rest + first * n + here + column, n);
          });
    }
  });
  return failed;
}

void subtract_square(const Kernels& kernels, const double* X, std::int64_t columns, double* matrix, std::int64_t n,
                     int threads, const Monitor& monitor) {
  const std::int64_t wide_block = block_columns(n), edge = chunk_edge(n), tile = kernels.float64.tile_rows;
  const Buffer left(round_up(n, task_rows) * wide_block), right(round_up(n, task_rows) * wide_block);
  Team::run(useful_threads(n * n * columns / 2, threads), [&](Team& team, int rank) {
    const Buffer rows(task_rows * block_stride);
    for (std::int64_t block = 0; block < columns; block += wide_block) {
      if (rank == 0) monitor(block);
      const std::int64_t here = std::min(wide_block, columns - block), samples = round_up(here, triangle_step);
      team.for_each((n + task_rows - 1) / task_rows, [&](std::int64_t task) {
        const std::int64_t first = task * task_rows, count = std::min(task_rows, n - first);
        take(X + first * columns + block, columns, count, here, samples, rows.data());
        for (std::int64_t panel = 0; panel < count; panel += tile) {
          kernels.float64.pack_left_rows(rows.data() + panel * block_stride, block_stride,
                                         std::min(tile, count - panel), samples, nullptr,
                                         left.data() + (first + panel) * samples);
        }
        kernels.float64.pack_right_rows(rows.data(), block_stride, count, samples, minus.values,
                                        right.data() + first * samples);
      });
      for_lower_chunks(
          team, n, edge, [&](std::int64_t first, std::int64_t count, std::int64_t column, std::int64_t wide) {
            subtract_product(kernels, left.data() + first * samples, count, right.data() + column * samples, wide,
                             samples, matrix + first * n + column, n);
          });
    }
  });
}

void solve_triangular(const Kernels& kernels, const double* factor, std::int64_t n, Side side, double* rows,
                      std::int64_t count, int threads, const Monitor& monitor) {
  if (count < many_rows) return solve_few(kernels, factor, n, side, rows, count);
  const TriangleRows source{factor, n, side == Side::transposed};
  const std::int64_t columns = block_columns(n), edge = chunk_edge(n);
  const std::int64_t tasks = (count + task_rows - 1) / task_rows;
  const auto rows_of = [&](std::int64_t task) { return std::min(task_rows, count - task * task_rows); };
  DiagonalTriangle triangle(kernels, columns);
  const Buffer left(tasks * task_rows * columns), right(round_up(n, task_rows) * columns);
  Team::run(useful_threads(n * n * count / 2, threads), [&](Team& team, int rank) {
    const Buffer aside(task_rows * block_stride);
    const auto turn_around = [&] {
      if (side == Side::lower) return;
      team.for_each(count, [&](std::int64_t i) { std::reverse(rows + i * n, rows + (i + 1) * n); });
    };
    turn_around();
    for (std::int64_t block = 0; block < n; block += columns) {
      if (rank == 0) monitor(block);
      const std::int64_t here = std::min(columns, n - block), below = n - block - here;
      const std::int64_t samples = round_up(here, triangle_step);
      team.for_each(1 + (below + task_rows - 1) / task_rows, [&](std::int64_t task) {
        if (task == 0) return triangle.load(source, block, here);
        const std::int64_t first = (task - 1) * task_rows, height = std::min(task_rows, below - first);
        source.copy(block + here + first, height, block, here, samples, aside.data());
        kernels.float64.pack_right_rows(aside.data(), block_stride, height, samples, minus.values,
                                        right.data() + first * samples);
      });
      team.for_each(tasks, [&](std::int64_t task) {
        double* const from = rows + task * task_rows * n + block;
        take(from, n, rows_of(task), here, samples, aside.data());
        triangle.solve(aside.data(), rows_of(task), left.data() + task * task_rows * samples);
        give(aside.data(), rows_of(task), here, from, n);
      });
      const std::int64_t chunks = (below + edge - 1) / edge;
      team.for_each(chunks * tasks, [&](std::int64_t number) {
        const std::int64_t task = number / chunks, column = number % chunks * edge;
        subtract_product(kernels, left.data() + task * task_rows * samples, rows_of(task),
                         right.data() + column * samples, std::min(edge, below - column), samples,
                         rows + task * task_rows * n + block + here + column, n);
      });
    }
    turn_around();
  });
}

}  // namespace linattn
