#include "query_sums.hpp"

#include <algorithm>
#include <vector>

#include "../common/block_sizes.hpp"
#include "../common/buffer.hpp"
#include "../common/index.hpp"
#include "../common/team.hpp"

namespace linattn {

namespace {

// As long as a second thread takes to start, about.
constexpr std::int64_t multiply_adds_worth_a_thread = 1 << 20;
// Blocks filled before the threads turn to the matrix products; at least one for each of a few threads.
constexpr std::int64_t blocks_at_once = 4;

// A block of queries, one row a quantity and one column a query, and the right factors packed.
struct QueryBlock {
  explicit QueryBlock(const Queries& queries)
      : x(queries.d * block_stride),
        A(queries.p * block_stride),
        G(queries.d_out * queries.p * block_stride),
        squares(pair_count(queries.p) * block_stride),
        x_groups((queries.d + most_lanes) * block_samples),
        pair_columns(pair_count(queries.d) * block_samples),
        G_columns(queries.d_out * queries.p * block_samples) {}

  std::int64_t samples = 0;  // columns in use, a multiple of sample_quantum
  Buffer x, A, G, squares, x_groups, pair_columns, G_columns;
};

// Fills blocks; block b holds queries b * block_samples and on. Holds scratch memory: one per thread.
class QueryBlockFiller {
 public:
  QueryBlockFiller(const Kernels& kernels, const Queries& queries)
      : kernels_(kernels), queries_(queries), scratch_(sequence_scratch(queries.p, 0)), rows_(block_samples) {
    pairs_.reserve(static_cast<std::size_t>(pair_count(queries.d)));
    for (std::int64_t l = 0; l < queries.d; ++l) {
      for (std::int64_t m = l; m < queries.d; ++m) {
        pairs_.push_back({static_cast<std::int32_t>(l), static_cast<std::int32_t>(m)});
      }
    }
  }

  void fill(QueryBlock& block, std::int64_t b) {
    const std::int64_t first = b * block_samples, count = std::min(block_samples, queries_.count - first);
    const std::int64_t d = queries_.d, p = queries_.p, d_out = queries_.d_out;
    block.samples = padded_samples(count);
    transpose(queries_.x + first * d, count, d, block.samples, block.x.data());
    transpose(queries_.A + first * p, count, p, block.samples, block.A.data());
    transpose(queries_.G + first * d_out * p, count, d_out * p, block.samples, block.G.data());
    set_rows(queries_.G + first * d_out * p, count, d_out, p);
    const SequenceColumns columns{rows_.data(), nullptr, Scalar::float64, Scalar::float64, count, p, 0, count};
    kernels_.sequence_moments(columns, block.samples, scratch_.data(), block.squares.data(), nullptr, nullptr,
                              block_stride);
    kernels_.pack_groups(block.x.data(), block_stride, d, block.samples, block.x_groups.data());
    kernels_.float64.pack_right_products(block.x.data(), block.x.data(), block_stride, pairs_.data(), pair_count(d),
                                         block.samples, nullptr, block.pair_columns.data());
    kernels_.float64.pack_right_rows(block.G.data(), block_stride, d_out * p, block.samples, nullptr,
                                     block.G_columns.data());
  }

 private:
  // Each query's numbers as `length` tokens of `width` coordinates.
  void set_rows(const double* from, std::int64_t count, std::int64_t length, std::int64_t width) {
    for (std::int64_t i = 0; i < count; ++i) {
      rows_[static_cast<std::size_t>(i)] = {from + i * length * width, length, width, 1};
    }
  }

  // Rows of queries (count x width) to rows of quantities; columns count .. samples are zero.
  void transpose(const double* from, std::int64_t count, std::int64_t width, std::int64_t samples, double* out) {
    set_rows(from, count, 1, width);
    kernels_.gather_float64(rows_.data(), count, 0, 1, width, samples, out, block_stride);
  }

  const Kernels& kernels_;
  const Queries& queries_;
  Buffer scratch_;
  std::vector<Sequence> rows_;
  std::vector<RowPair> pairs_;
};

// The two products of a block, cut into tasks of up to task_rows rows each.
class QueryProducts {
 public:
  QueryProducts(const Kernels& kernels, const Queries& queries, double* squares, double* cross)
      : kernels_(kernels),
        queries_(queries),
        squares_(squares),
        cross_(cross),
        square_rows_(pair_count(queries.p)),
        cross_rows_(queries.p * queries.d),
        square_tasks_((square_rows_ + task_rows - 1) / task_rows) {}

  std::int64_t tasks() const { return square_tasks_ + (cross_rows_ + task_rows - 1) / task_rows; }

  void add(std::int64_t task, const QueryBlock& block, double* packed) const {
    if (task < square_tasks_) {
      add_squares(task * task_rows, block, packed);
    } else {
      add_cross((task - square_tasks_) * task_rows, block, packed);
    }
  }

 private:
  // Rows (u, v) of G'G against the columns x_l x_m.
  void add_squares(std::int64_t first, const QueryBlock& block, double* packed) const {
    const std::int64_t count = std::min(task_rows, square_rows_ - first), columns = pair_count(queries_.d);
    double* targets[task_rows];
    for (std::int64_t i = 0; i < count; ++i) targets[i] = squares_ + (first + i) * columns;
    kernels_.float64.pack_left_rows(block.squares.data() + first * block_stride, block_stride, count, block.samples,
                                    nullptr, packed);
    kernels_.float64.multiply(packed, count, block.pair_columns.data(), columns, block.samples, nullptr, nullptr,
                              nullptr, targets);
  }

  // Rows A_r x_l against the columns of G.
  void add_cross(std::int64_t first, const QueryBlock& block, double* packed) const {
    const std::int64_t count = std::min(task_rows, cross_rows_ - first), columns = queries_.d_out * queries_.p;
    double* targets[task_rows];
    RowPair pairs[task_rows];
    for (std::int64_t i = 0; i < count; ++i) {
      targets[i] = cross_ + (first + i) * columns;
      pairs[i] = {static_cast<std::int32_t>((first + i) / queries_.d),
                  static_cast<std::int32_t>((first + i) % queries_.d)};
    }
    kernels_.float64.pack_left_products(block.A.data(), block.x.data(), block_stride, block.x_groups.data(), pairs,
                                        count, block.samples, nullptr, packed);
    kernels_.float64.multiply(packed, count, block.G_columns.data(), columns, block.samples, nullptr, nullptr, nullptr,
                              targets);
  }

  const Kernels& kernels_;
  const Queries& queries_;
  double *squares_, *cross_;
  std::int64_t square_rows_, cross_rows_, square_tasks_;
};

}  // namespace

void add_query_sums(const Kernels& kernels, const Queries& queries, int threads, const Monitor& monitor,
                    double* squares, double* cross) {
  const std::int64_t total = (queries.count + block_samples - 1) / block_samples;
  const std::int64_t at_once = std::min(total, blocks_at_once), p = queries.p, d = queries.d;
  const QueryProducts products(kernels, queries, squares, cross);
  std::vector<QueryBlock> blocks;
  blocks.reserve(static_cast<std::size_t>(at_once));
  for (std::int64_t i = 0; i < at_once; ++i) blocks.emplace_back(queries);

  const std::int64_t work = queries.count * (pair_count(p) * pair_count(d) + p * d * queries.d_out * p);
  const std::int64_t useful = std::clamp<std::int64_t>(work / multiply_adds_worth_a_thread, 1, threads);
  Team::run(static_cast<int>(useful), [&](Team& team, int rank) {
    QueryBlockFiller filler(kernels, queries);
    const Buffer packed(task_rows * block_samples);
    for (std::int64_t first = 0; first < total; first += at_once) {
      const std::int64_t filled = std::min(at_once, total - first);
      team.for_each(filled, [&](std::int64_t i) { filler.fill(blocks[static_cast<std::size_t>(i)], first + i); });
      // Each task adds to rows of its own, block after block in their order.
      team.for_each(products.tasks(), [&](std::int64_t task) {
        for (std::int64_t i = 0; i < filled; ++i) {
          products.add(task, blocks[static_cast<std::size_t>(i)], packed.data());
        }
        if (rank == 0) monitor(std::min(queries.count, first * block_samples));
      });
    }
  });
}

}  // namespace linattn
