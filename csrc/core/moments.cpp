#include "moments.hpp"

#include <algorithm>
#include <atomic>
#include <optional>
#include <vector>

#include "../common/block_sizes.hpp"
#include "../common/index.hpp"
#include "../common/team.hpp"
#include "floating_point.hpp"
#include "normal_equations.hpp"
#include "slabs.hpp"

namespace linattn {

namespace {

// Blocks filled before the threads turn to the matrix product: they should stay in the L3 cache.
constexpr std::int64_t blocks_budget_bytes = 4 << 20;
// Tasks that use a block's factors before the next block's take their place in the L2 cache.
constexpr std::int64_t tasks_at_once = 8;
// One problem after the other: as many columns of the Gram at most are multiplied without being packed, which is faster
// up to five coordinates with every instruction set, and so many blocks are kept.
constexpr std::int64_t few_columns = 15, kept_blocks = 8;

// A task's rows: what they multiply, where they go, and a panel of them packed. One per thread.
struct TaskRows {
  Buffer packed{task_rows * block_samples};
  FloatBuffer narrow_packed{task_rows * block_samples};
  RowPair pairs[task_rows];
  double* targets[task_rows];
  std::int64_t first_columns[task_rows];
  double shrink[task_rows], scale[task_rows];
};

// The matrix products of a block, cut into tasks of up to task_rows rows each.
class MomentProduct {
 public:
  MomentProduct(const Kernels& kernels, const Samples& data, Precision precision, bool with_gram, bool with_sizes)
      : kernels_(kernels),
        data_(data),
        mixed_(precision == Precision::mixed),
        pairs_(data.pairs()),
        columns_(data.triples() ? pairs_ : pair_count(data.queries())),
        gram_rows_(with_gram ? pair_count(pairs_) : 0),
        cross_rows_(data.d_out() * data.queries()),
        size_rows_(with_sizes ? pairs_ : 0),
        gram_tasks_(tasks_for(gram_rows_)),
        cross_tasks_(tasks_for(cross_rows_)),
        tasks_(gram_tasks_ + cross_tasks_ + tasks_for(size_rows_)) {
    if (gram_rows_ > 0) {
      if (data.triples()) {
        order_triples();
      } else {
        order_pairs();
      }
    }
    for (std::int64_t u = 0; u < size_rows_; ++u) {
      const Pair pair = pair_at(data.selection->pairs[static_cast<std::size_t>(u)], data.d());
      squares_.push_back({square_row(pair.j), square_row(pair.k)});
    }
  }

  std::int64_t tasks() const { return tasks_; }
  std::int64_t gram_entries() const { return gram_rows_ > 0 ? gram_size(data_) : 0; }
  std::int64_t cross_entries() const { return cross_rows_ * pairs_; }
  std::int64_t size_entries() const { return size_rows_ * data_.queries(); }

  // sums += the rows of one task, over the samples of one block.
  void add(std::int64_t task, const SampleBlock& block, TaskRows& rows, const MomentSums& sums) const {
    if (task >= gram_tasks_ + cross_tasks_) {
      add_size_rows((task - gram_tasks_ - cross_tasks_) * task_rows, block, rows, sums.sizes);
    } else if (task >= gram_tasks_) {
      add_cross_rows((task - gram_tasks_) * task_rows, block, rows, sums.cross);
    } else {
      add_gram_rows(task * task_rows, block, rows, sums.gram);
    }
  }

 private:
  static std::int64_t tasks_for(std::int64_t rows) { return (rows + task_rows - 1) / task_rows; }

  // The row of s that holds S_jj.
  std::int32_t square_row(std::int64_t j) const {
    return static_cast<std::int32_t>(data_.row_of(pair_index(j, j, data_.d())));
  }

  // Rows (u, v), u <= v, those first whose v fill a group of `lanes`: they are packed fastest.
  void order_pairs() {
    const std::int64_t lanes = kernels_.lanes, grouped = pairs_ / lanes * lanes;
    order_.reserve(static_cast<std::size_t>(gram_rows_));
    for (std::int64_t group = 0; group < grouped; group += lanes) {
      for (std::int64_t u = 0; u < group; ++u) {
        for (std::int64_t v = group; v < group + lanes; ++v) append(u, v);
      }
    }
    for (std::int64_t v = 0; v < pairs_; ++v) {
      for (std::int64_t u = v < grouped ? v / lanes * lanes : 0; u <= v; ++u) append(u, v);
    }
  }

  // In the order of v, because row (u, v) has the columns w >= v only: each task is a rectangle but for its edge.
  void order_triples() {
    order_.reserve(static_cast<std::size_t>(gram_rows_));
    for (std::int64_t v = 0; v < pairs_; ++v) {
      for (std::int64_t u = 0; u <= v; ++u) append(u, v);
    }
  }

  void append(std::int64_t u, std::int64_t v) {
    order_.push_back({static_cast<std::int32_t>(u), static_cast<std::int32_t>(v)});
  }

  // Rows (u, v): s_u s_v against the columns w z_l z_m, or w s_w.
  void add_gram_rows(std::int64_t first, const SampleBlock& block, TaskRows& rows, double* gram) const {
    const std::int64_t count = std::min(task_rows, gram_rows_ - first);
    if (data_.many_given()) return add_given_rows(first, count, block, rows, gram);
    const bool triples = data_.triples();
    const RowPair* const pairs = order_.data() + first;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto [u, v] = pairs[i];
      rows.targets[i] = gram + (triples ? triple_start(u, v, pairs_) - v : pair_index(u, v, pairs_) * columns_);
      rows.first_columns[i] = v;
    }
    multiply_products(pairs, count, block, rows, triples ? block.pair_columns.data() : block.query_columns.data(),
                      triples ? rows.first_columns : nullptr);
  }

  // Rows (u, v) of sum s s', as they are, against the columns w S_lm; in float64.
  void add_given_rows(std::int64_t first, std::int64_t count, const SampleBlock& block, TaskRows& rows,
                      double* gram) const {
    const std::int64_t panel = kernels_.float64.tile_rows;
    for (std::int64_t i = 0; i < count; ++i) rows.targets[i] = gram + (first + i) * columns_;
    for (std::int64_t i = 0; i < count; i += panel) {
      const std::int64_t in_panel = std::min(panel, count - i);
      kernels_.float64.pack_left_rows(block.left() + (first + i) * block_stride, block_stride, in_panel, block.samples,
                                      nullptr, rows.packed.data());
      kernels_.float64.multiply(rows.packed.data(), in_panel, block.query_columns.data(), columns_, block.samples,
                                nullptr, nullptr, nullptr, rows.targets + i);
    }
  }

  // A panel at a time, which stays in the L1 cache from its packing on.
  void multiply_products(const RowPair* pairs, std::int64_t count, const SampleBlock& block, TaskRows& rows,
                         const double* columns, const std::int64_t* first_columns) const {
    if (mixed_) {
      for (std::int64_t i = 0; i < count; ++i) {
        const int exponent = block.left_exponents[static_cast<std::size_t>(pairs[i].x)] +
                             block.left_exponents[static_cast<std::size_t>(pairs[i].y)];
        rows.shrink[i] = shrinking(exponent);
        rows.scale[i] = scale_of(exponent);
      }
    }
    const std::int64_t panel = mixed_ ? kernels_.float32.tile_rows : kernels_.float64.tile_rows;
    for (std::int64_t i = 0; i < count; i += panel) {
      const std::int64_t in_panel = std::min(panel, count - i);
      const std::int64_t* const from = first_columns != nullptr ? first_columns + i : nullptr;
      if (mixed_) {
        kernels_.float32.pack_left_products(block.left(), block.left(), block_stride, block.left_groups.data(),
                                            pairs + i, in_panel, block.samples, rows.shrink + i,
                                            rows.narrow_packed.data());
        kernels_.float32.multiply(rows.narrow_packed.data(), in_panel, block.narrow_columns.data(), columns_,
                                  block.samples, rows.scale + i, block.column_scale.data(), from, rows.targets + i);
      } else {
        kernels_.float64.pack_left_products(block.left(), block.left(), block_stride, block.left_groups.data(),
                                            pairs + i, in_panel, block.samples, nullptr, rows.packed.data());
        kernels_.float64.multiply(rows.packed.data(), in_panel, columns, columns_, block.samples, nullptr, nullptr,
                                  from, rows.targets + i);
      }
    }
  }

  // Rows (a, l): w y_a z_l, or the maps' (all), against the columns s. Always in float64: they are few.
  void add_cross_rows(std::int64_t first, const SampleBlock& block, TaskRows& rows, double* cross) const {
    const std::int64_t count = std::min(task_rows, cross_rows_ - first), queries = data_.queries();
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t a = (first + i) / queries, l = (first + i) % queries;
      const std::int64_t row = data_.selection != nullptr ? data_.selection->queries[static_cast<std::size_t>(l)] : l;
      rows.pairs[i] = {static_cast<std::int32_t>(a), static_cast<std::int32_t>(row)};
      rows.targets[i] = cross + (first + i) * pairs_;
    }
    if (data_.positions == Positions::all) {
      kernels_.float64.pack_left_rows(block.left_targets() + first * block_stride, block_stride, count, block.samples,
                                      nullptr, rows.packed.data());
    } else {
      kernels_.float64.pack_left_products(block.targets.data(), block.z.data(), block_stride, nullptr, rows.pairs,
                                          count, block.samples, nullptr, rows.packed.data());
    }
    kernels_.float64.multiply(rows.packed.data(), count, block.pair_columns.data(), pairs_, block.samples, nullptr,
                              nullptr, nullptr, rows.targets);
  }

  // Rows (j, k): S_jj S_kk against the columns w z_l^2, or w S_ll (all). Always in float64, too.
  void add_size_rows(std::int64_t first, const SampleBlock& block, TaskRows& rows, double* sizes) const {
    const std::int64_t count = std::min(task_rows, size_rows_ - first), queries = data_.queries();
    for (std::int64_t i = 0; i < count; ++i) rows.targets[i] = sizes + (first + i) * queries;
    kernels_.float64.pack_left_products(block.s.data(), block.s.data(), block_stride, nullptr, squares_.data() + first,
                                        count, block.samples, nullptr, rows.packed.data());
    kernels_.float64.multiply(rows.packed.data(), count, block.size_columns.data(), queries, block.samples, nullptr,
                              nullptr, nullptr, rows.targets);
  }

  const Kernels& kernels_;
  const Samples& data_;
  bool mixed_;
  std::int64_t pairs_, columns_, gram_rows_, cross_rows_, size_rows_, gram_tasks_, cross_tasks_, tasks_;
  std::vector<RowPair> order_;    // of the Gram's rows (u, v)
  std::vector<RowPair> squares_;  // rows of s that hold S_jj and S_kk, for each chosen pair (j, k)
};

// The same sums from rows as they lie, for few columns; last and causal, in float64.
class RowProduct {
 public:
  RowProduct(const Kernels& kernels, const Samples& data) : kernels_(kernels), data_(data) {
    const std::int64_t q = data.pairs(), k = data.queries();
    for (Pair pair{0, 0}; pair.j < q; pair = next_pair(pair, q)) append(pairs_, pair.j, pair.k);
    for (std::int64_t a = 0; a < data.d_out(); ++a) {
      for (std::int64_t l = 0; l < k; ++l) {
        append(targets_, a, data.selection != nullptr ? data.selection->queries[static_cast<std::size_t>(l)] : l);
      }
    }
  }

  // sums += those over the samples of one block.
  void add(const SampleBlock& block, const MomentSums& sums) const {
    multiply(block.left(), block.left(), pairs_, block.query_rows.data(), pair_count(data_.queries()), block.samples,
             sums.gram);
    multiply(block.targets.data(), block.z.data(), targets_, block.left(), data_.pairs(), block.samples, sums.cross);
  }

 private:
  static void append(std::vector<RowPair>& pairs, std::int64_t x, std::int64_t y) {
    pairs.push_back({static_cast<std::int32_t>(x), static_cast<std::int32_t>(y)});
  }

  void multiply(const double* left, const double* right, const std::vector<RowPair>& pairs, const double* columns,
                std::int64_t count, std::int64_t samples, double* out) const {
    kernels_.multiply_rows(left, right, pairs.data(), static_cast<std::int64_t>(pairs.size()), columns, count, samples,
                           out);
  }

  const Kernels& kernels_;
  const Samples& data_;
  std::vector<RowPair> pairs_;    // rows (u, v) of the Gram
  std::vector<RowPair> targets_;  // rows (a, l) of the cross moment: of y and z
};

struct Work {
  const Kernels& kernels;
  const Samples& data;
  Precision precision;
  const Monitor& monitor;
  const MomentProduct& product;
  std::atomic<bool>& underflow;
  SampleStore* store = nullptr;  // that keeps the blocks

  std::int64_t pairs() const { return data.formed_pairs(); }
  std::int64_t blocks() const { return (data.samples() + block_samples - 1) / block_samples; }
};

// Roundings of a summand in a block: s_u s_v, w z_l, that times z_m, and the product of both, where it is not fused
// with the first of the additions to the other samples. In float32: both factors, their product, and the additions.
constexpr std::int64_t block_roundings = 4 + block_samples - 1;
constexpr std::int64_t narrow_roundings = 3 + block_samples - 1;

void add_energy(const SampleBlock& block, double* energy) {
  for (std::size_t a = 0; a < block.energy.size(); ++a) energy[a] += block.energy[a];
}

// Many rows: all threads share the sums, each adding to rows of its own, block after block. Returns in how many
// additions in a row a block takes part.
std::int64_t accumulate_by_rows(const Work& work, int threads, const MomentSums& sums) {
  const std::int64_t total = work.blocks();
  const std::int64_t block_bytes = 8 * block_samples * (4 * work.pairs() + 2 * work.data.d() + 2 * work.data.d_out());
  const std::int64_t at_once =
      std::min(total, std::max<std::int64_t>(threads, std::min<std::int64_t>(16, blocks_budget_bytes / block_bytes)));
  std::vector<SampleBlock> blocks;
  blocks.reserve(static_cast<std::size_t>(at_once));
  for (std::int64_t i = 0; i < at_once; ++i) blocks.emplace_back(work.data, work.precision);
  const Buffer carries((at_once + 1) * work.pairs());

  const int useful = static_cast<int>(std::min<std::int64_t>(threads, work.product.tasks()));
  Team::run(useful, [&](Team& team, int rank) {
    const UnderflowWatch watch(work.underflow);
    BlockFiller filler(work.kernels, work.data, work.precision);
    TaskRows rows;
    for (std::int64_t first = 0; first < total; first += at_once) {
      const std::int64_t filled = std::min(at_once, total - first);
      const auto block = [&](std::int64_t i) -> SampleBlock& { return blocks[static_cast<std::size_t>(i)]; };
      const auto carry = [&](std::int64_t i) { return carries.data() + i * work.pairs(); };

      team.for_each(filled, [&](std::int64_t i) { filler.fill(block(i), first + i); });
      if (work.data.positions == Positions::causal) {
        team.for_each(1, [&](std::int64_t) {
          std::copy_n(carry(at_once), work.pairs(), carry(0));
          for (std::int64_t i = 0; i < filled; ++i) {
            carry_over(block(i), filler.block_size(first + i), work.pairs(), carry(i),
                       carry(i + 1 < filled ? i + 1 : at_once));
          }
        });
      }
      team.for_each(filled, [&](std::int64_t i) {
        filler.finish(block(i), block(i).continues ? carry(i) : nullptr);
        if (work.store != nullptr) work.store->put(first + i, block(i), filler);
      });
      // A block's factors stay in the L2 cache for a few tasks, while the totals of these pass by.
      const std::int64_t groups = (work.product.tasks() + tasks_at_once - 1) / tasks_at_once;
      team.for_each(groups + 1, [&](std::int64_t group) {
        const std::int64_t end = std::min((group + 1) * tasks_at_once, work.product.tasks());
        for (std::int64_t i = 0; i < filled; ++i) {
          for (std::int64_t task = group * tasks_at_once; task < end; ++task) {
            work.product.add(task, block(i), rows, sums);
          }
          if (group == groups) add_energy(block(i), sums.energy);
          if (rank == 0) work.monitor(std::min(work.data.samples(), first * block_samples));
        }
      });
    }
  });
  return total;
}

// What one thread needs to add blocks to the sums of a slab.
struct SlabWorker {
  explicit SlabWorker(const Work& work)
      : watch(work.underflow),
        filler(work.kernels, work.data, work.precision),
        block(work.data, work.precision),
        carry(work.pairs()),
        next(work.pairs()) {}

  // out = block b with its factors; `first` says that it does not follow the block before.
  void fill(const Work& work, std::int64_t b, bool first, SampleBlock& out) {
    if (first) filler.carry_into(b, carry.data());
    filler.fill(out, b);
    carry_over(out, filler.block_size(b), work.pairs(), carry.data(), next.data());
    filler.finish(out, out.continues ? carry.data() : nullptr);
    std::swap(carry, next);
  }

  // sums += block b.
  void add(const Work& work, std::int64_t b, bool first, const MomentSums& sums) {
    fill(work, b, first, block);
    for (std::int64_t task = 0; task < work.product.tasks(); ++task) work.product.add(task, block, rows, sums);
    add_energy(block, sums.energy);
    if (work.store != nullptr) work.store->put(b, block, filler);
  }

  const UnderflowWatch watch;
  BlockFiller filler;
  SampleBlock block;
  TaskRows rows;
  Buffer carry, next;
};

// Few rows: each slab of blocks has sums of its own. Returns as above.
std::int64_t accumulate_by_slabs(const Work& work, int threads, const MomentSums& sums) {
  const std::int64_t gram_entries = work.product.gram_entries(), cross_entries = work.product.cross_entries();
  const std::int64_t size_entries = work.product.size_entries();
  SlabSums partial;
  const std::int64_t slabs = sum_over_slabs(
      work.data.samples(), blocks_in_moment_slab, threads, work.monitor, partial,
      {{sums.gram, gram_entries},
       {sums.cross, cross_entries},
       {sums.sizes, size_entries},
       {sums.energy, work.data.d_out()}},
      [&] { return SlabWorker(work); },
      [&](SlabWorker& worker, std::int64_t b, bool first, double* own) {
        double* const sizes = own + gram_entries + cross_entries;
        worker.add(work, b, first, {own, own + gram_entries, sizes + size_entries, sizes});
      });
  return slab_additions(work.blocks(), slabs);
}

}  // namespace

// One problem's sums at a time, and its samples where they are few.
struct SerialMoments::Parts {
  Parts(const Kernels& kernels, const Samples& data)
      : product(kernels, data, Precision::float64, /*with_gram=*/true, /*with_sizes=*/false),
        work{kernels, data, Precision::float64, monitor, product, underflow},
        worker(work) {
    if (data.positions == Positions::all || pair_count(data.queries()) > few_columns || work.blocks() > kept_blocks) {
      return;
    }
    rows.emplace(kernels, data);
    for (std::int64_t b = 0; b < work.blocks(); ++b) blocks.emplace_back(data, Precision::float64, Factors::rows);
    by_query = Buffer(data.d_out() * data.queries() * data.pairs());
    chosen_z = Buffer(data.queries() * block_stride);
    maps = Buffer(data.d_out() * data.queries() * block_stride);
    answers = Buffer(data.d_out() * block_stride);
  }

  // squared_error (d_out) = sum w (y - C h)^2 over the samples of a block that is kept.
  void add_squared_error(const SampleBlock& block, double* squared_error) const {
    const std::int64_t k = work.data.queries(), d_out = work.data.d_out();
    const double* z = block.z.data();
    if (block.selected) {
      for (std::int64_t l = 0; l < k; ++l) {
        const std::int64_t row = work.data.selection->queries[static_cast<std::size_t>(l)];
        std::copy_n(z + row * block_stride, block.samples, chosen_z.data() + l * block_stride);
      }
      z = chosen_z.data();
    }
    work.kernels.apply(by_query.data(), d_out * k, work.data.pairs(), block.left(), block_stride, maps.data());
    work.kernels.contract(maps.data(), d_out, k, z, block_stride, answers.data());
    for (std::int64_t a = 0; a < d_out; ++a) {
      const double *y = block.y.data() + a * block_stride, *f = answers.data() + a * block_stride;
      double sum = 0;
      for (std::int64_t i = 0; i < block.samples; ++i) sum += block.weights.data()[i] * (y[i] - f[i]) * (y[i] - f[i]);
      squared_error[a] += sum;
    }
  }

  std::atomic<bool> underflow{false};
  const Monitor monitor;
  const MomentProduct product;
  const Work work;
  SlabWorker worker;
  std::optional<RowProduct> rows;            // where products are taken of rows
  std::vector<SampleBlock> blocks;           // then all of them are kept
  Buffer by_query, chosen_z, maps, answers;  // C as (d_out k, q); k, d_out k and d_out rows of a block
  std::optional<SampleStore> store;          // else
  std::vector<double> gradient;
};

SerialMoments::SerialMoments(const Kernels& kernels, const Samples& data)
    : parts_(std::make_unique<Parts>(kernels, data)) {}

SerialMoments::~SerialMoments() = default;

void SerialMoments::add(const MomentSums& sums) {
  Parts& parts = *parts_;
  for (std::int64_t b = 0; b < parts.work.blocks(); ++b) {
    if (!parts.rows) {
      parts.worker.add(parts.work, b, b == 0, sums);
      continue;
    }
    SampleBlock& block = parts.blocks[static_cast<std::size_t>(b)];
    parts.worker.fill(parts.work, b, b == 0, block);
    parts.rows->add(block, sums);
    add_energy(block, sums.energy);
  }
}

void SerialMoments::squared_error(const double* C, double* squared_error) {
  Parts& parts = *parts_;
  const Samples& data = parts.work.data;
  const std::int64_t q = data.pairs(), k = data.queries(), d_out = data.d_out();
  if (!parts.rows) {
    if (!parts.store) parts.store.emplace(parts.work.kernels, data, /*keep=*/false);
    parts.gradient.resize(static_cast<std::size_t>(d_out * q * k));
    return residual_gradient(*parts.store, C, 1, [](std::int64_t) {}, parts.gradient.data(), squared_error);
  }
  for (std::int64_t a = 0; a < d_out; ++a) {
    for (std::int64_t u = 0; u < q; ++u) {
      for (std::int64_t l = 0; l < k; ++l) parts.by_query.data()[(a * k + l) * q + u] = C[(a * q + u) * k + l];
    }
  }
  std::fill_n(squared_error, d_out, 0.0);
  for (const SampleBlock& block : parts.blocks) parts.add_squared_error(block, squared_error);
}

std::int64_t gram_size(const Samples& data) { return gram_entries(data.pairs(), data.queries(), data.triples()); }

Summation accumulate_moments(const Kernels& kernels, const Samples& data, Precision precision, int threads,
                             const Monitor& monitor, const MomentSums& sums, SampleStore* store) {
  std::atomic<bool> underflow{false};
  const MomentProduct product(kernels, data, precision, sums.gram != nullptr, sums.sizes != nullptr);
  const Work work{kernels, data, precision, monitor, product, underflow, store};
  const std::int64_t entries = product.gram_entries() + product.cross_entries();
  const std::int64_t additions = entries <= moment_slab_doubles ? accumulate_by_slabs(work, threads, sums)
                                                                : accumulate_by_rows(work, threads, sums);
  if (store != nullptr) store->set_complete();
  return {block_roundings + additions, precision == Precision::mixed ? narrow_roundings : 0, underflow};
}

}  // namespace linattn
