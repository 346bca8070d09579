#include "moments.hpp"

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <vector>

#include "../kernels/block_sizes.hpp"
#include "index.hpp"
#include "team.hpp"

namespace linattn {

namespace {

// Sums up to this size (doubles) are kept once per slab of samples instead of being shared by all threads.
constexpr std::int64_t slab_limit = 64 * 1024;
constexpr std::int64_t most_slabs = 64, blocks_in_slab = 8;
// Blocks filled before the threads turn to the matrix product (bytes): they should stay in the L3 cache.
constexpr std::int64_t blocks_budget = 4 << 20;

// A task's left factor and where its rows go. One per thread.
struct TaskRows {
  Buffer packed{task_rows * block_samples_mixed};
  FloatBuffer narrow_packed{task_rows * block_samples_mixed};
  RowPair pairs[task_rows];
  double* targets[task_rows];
  std::int64_t first_columns[task_rows];
  double scale[task_rows];
};

// The two matrix products of a block, cut into tasks of up to task_rows rows each.
class MomentProduct {
 public:
  MomentProduct(const Kernels& kernels, const Data& data, Precision precision, bool with_gram)
      : kernels_(kernels),
        data_(data),
        mixed_(precision == Precision::mixed),
        pairs_(data.pairs()),
        columns_(data.triples() ? pairs_ : pair_count(data.queries())),
        gram_rows_(with_gram ? pair_count(pairs_) : 0),
        cross_rows_(data.d_out() * data.queries()),
        gram_tasks_((gram_rows_ + task_rows - 1) / task_rows),
        tasks_(gram_tasks_ + (cross_rows_ + task_rows - 1) / task_rows) {}

  std::int64_t tasks() const { return tasks_; }
  std::int64_t gram_entries() const { return gram_rows_ > 0 ? gram_size(data_) : 0; }
  std::int64_t cross_entries() const { return cross_rows_ * pairs_; }

  // sums += the rows of one task, over the samples of one block.
  void add(std::int64_t task, const SampleBlock& block, TaskRows& rows, const MomentSums& sums) const {
    if (task >= gram_tasks_) {
      add_cross_rows((task - gram_tasks_) * task_rows, block, rows, sums.cross);
    } else if (data_.triples()) {
      add_triples(task * task_rows, block, rows, sums.gram);
    } else {
      add_pairs(task * task_rows, block, rows, sums.gram);
    }
  }

 private:
  // Rows (u, v): s_u s_v against the columns w z_l z_m.
  void add_pairs(std::int64_t first, const SampleBlock& block, TaskRows& rows, double* gram) const {
    const std::int64_t count = std::min(task_rows, gram_rows_ - first);
    Pair pair = pair_at(first, pairs_);
    for (std::int64_t i = 0; i < count; ++i, pair = next_pair(pair, pairs_)) {
      rows.pairs[i] = {static_cast<std::int32_t>(pair.j), static_cast<std::int32_t>(pair.k)};
      rows.targets[i] = gram + (first + i) * columns_;
    }
    multiply_products(count, block, rows, block.query_columns.data(), nullptr);
  }

  // Rows (u, v): s_u s_v against the columns w s_w, w >= v only. One run for each u, so that v grows along it.
  void add_triples(std::int64_t first, const SampleBlock& block, TaskRows& rows, double* gram) const {
    const std::int64_t end = std::min(first + task_rows, gram_rows_);
    Pair pair = pair_at(first, pairs_);
    while (first < end) {
      const std::int64_t u = pair.j;
      std::int64_t count = 0;
      for (; first + count < end && pair.j == u; ++count, pair = next_pair(pair, pairs_)) {
        rows.pairs[count] = {static_cast<std::int32_t>(u), static_cast<std::int32_t>(pair.k)};
        rows.targets[count] = gram + (triple_start(u, pair.k, pairs_) - pair.k);
        rows.first_columns[count] = pair.k;
      }
      multiply_products(count, block, rows, block.pair_columns.data(), rows.first_columns);
      first += count;
    }
  }

  void multiply_products(std::int64_t count, const SampleBlock& block, TaskRows& rows, const double* columns,
                         const std::int64_t* first_columns) const {
    if (!mixed_) {
      kernels_.float64.pack_products(block.left(), block.left(), block_stride, rows.pairs, count, kernels_.tile_rows,
                                     block.samples, rows.packed.data());
      kernels_.float64.multiply(rows.packed.data(), count, columns, columns_, block.samples, nullptr, nullptr,
                                first_columns, rows.targets);
      return;
    }
    const std::vector<double>& scale = block.narrow_s.scale;
    for (std::int64_t i = 0; i < count; ++i) {
      rows.scale[i] =
          scale[static_cast<std::size_t>(rows.pairs[i].x)] * scale[static_cast<std::size_t>(rows.pairs[i].y)];
    }
    const float* s = block.narrow_s.data.data();
    kernels_.float32.pack_products(s, s, block_stride, rows.pairs, count, kernels_.tile_rows, block.samples,
                                   rows.narrow_packed.data());
    kernels_.float32.multiply(rows.narrow_packed.data(), count, block.narrow_columns.data(), columns_, block.samples,
                              rows.scale, block.column_scale.data(), first_columns, rows.targets);
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
      kernels_.float64.pack_rows(block.left_targets() + first * block_stride, block_stride, count,
                                 kernels_.tile_rows, block.samples, rows.packed.data());
    } else {
      kernels_.float64.pack_products(block.targets.data(), block.z.data(), block_stride, rows.pairs, count,
                                     kernels_.tile_rows, block.samples, rows.packed.data());
    }
    kernels_.float64.multiply(rows.packed.data(), count, block.pair_columns.data(), pairs_, block.samples, nullptr,
                              nullptr, nullptr, rows.targets);
  }

  const Kernels& kernels_;
  const Data& data_;
  bool mixed_;
  std::int64_t pairs_, columns_, gram_rows_, cross_rows_, gram_tasks_, tasks_;
};

// Reads the processor's sticky flag for the time it lives; it costs nothing while the work is done.
class UnderflowWatch {
 public:
  explicit UnderflowWatch(std::atomic<bool>& seen) : seen_(seen) { std::feclearexcept(FE_UNDERFLOW); }
  ~UnderflowWatch() {
    if (std::fetestexcept(FE_UNDERFLOW) != 0) seen_ = true;
  }
  UnderflowWatch(const UnderflowWatch&) = delete;
  UnderflowWatch& operator=(const UnderflowWatch&) = delete;

 private:
  std::atomic<bool>& seen_;
};

struct Work {
  const Kernels& kernels;
  const Data& data;
  Precision precision;
  const Monitor& monitor;
  MomentProduct product;
  std::atomic<bool>& underflow;

  std::int64_t pairs() const { return data.formed_pairs(); }
};

void add_energy(const SampleBlock& block, double* energy) {
  for (std::size_t a = 0; a < block.energy.size(); ++a) energy[a] += block.energy[a];
}

// Many rows: all threads share the sums, each adding to rows of its own, block after block.
void accumulate_by_rows(const Work& work, int threads, const MomentSums& sums) {
  const std::int64_t total = BlockFiller(work.kernels, work.data, work.precision).blocks();
  const std::int64_t block_bytes = 8 * block_samples(work.precision) * (3 * work.pairs() + 2 * work.data.d() + 2 * work.data.d_out());
  const std::int64_t at_once = std::min(
      total, std::max<std::int64_t>(threads, std::min<std::int64_t>(16, blocks_budget / block_bytes)));
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
      });
      team.for_each(work.product.tasks() + 1, [&](std::int64_t task) {
        for (std::int64_t i = 0; i < filled; ++i) {
          if (task < work.product.tasks()) {
            work.product.add(task, block(i), rows, sums);
          } else {
            add_energy(block(i), sums.energy);
          }
        }
        if (rank == 0) work.monitor(std::min(work.data.samples(), first * block_samples(work.precision)));
      });
    }
  });
}

// Few rows: the blocks are cut into slabs, as many for every number of threads; each slab has sums of its own and
// is filled and multiplied by one thread while its block is in cache. The slabs are added in order.
void accumulate_by_slabs(const Work& work, int threads, const MomentSums& sums) {
  const std::int64_t total = BlockFiller(work.kernels, work.data, work.precision).blocks();
  const std::int64_t slabs = std::clamp<std::int64_t>(total / blocks_in_slab, 1, most_slabs);
  const std::int64_t gram_entries = work.product.gram_entries(), cross_entries = work.product.cross_entries();
  const std::int64_t slab_size = gram_entries + cross_entries + work.data.d_out();
  const Buffer partial(slabs * slab_size);
  std::atomic<std::int64_t> done{0};

  Team::run(static_cast<int>(std::min<std::int64_t>(threads, slabs)), [&](Team& team, int rank) {
    const UnderflowWatch watch(work.underflow);
    BlockFiller filler(work.kernels, work.data, work.precision);
    SampleBlock block(work.data, work.precision);
    TaskRows rows;
    Buffer carry(work.pairs()), next(work.pairs());
    team.for_each(slabs, [&](std::int64_t slab) {
      double* const start = partial.data() + slab * slab_size;
      const MomentSums own{start, start + gram_entries, start + gram_entries + cross_entries};
      const std::int64_t first = slab * total / slabs, end = (slab + 1) * total / slabs;
      filler.carry_into(first, carry.data());
      for (std::int64_t b = first; b < end && !team.failed(); ++b) {
        filler.fill(block, b);
        carry_over(block, filler.block_size(b), work.pairs(), carry.data(), next.data());
        filler.finish(block, block.continues ? carry.data() : nullptr);
        std::swap(carry, next);
        for (std::int64_t task = 0; task < work.product.tasks(); ++task) work.product.add(task, block, rows, own);
        add_energy(block, own.energy);
        done += filler.block_size(b);
        if (rank == 0) work.monitor(done);
      }
    });
  });

  for (std::int64_t slab = 0; slab < slabs; ++slab) {
    const double* const start = partial.data() + slab * slab_size;
    for (std::int64_t i = 0; i < gram_entries; ++i) sums.gram[i] += start[i];
    for (std::int64_t i = 0; i < cross_entries; ++i) sums.cross[i] += start[gram_entries + i];
    for (std::int64_t a = 0; a < work.data.d_out(); ++a) sums.energy[a] += start[gram_entries + cross_entries + a];
  }
}

}  // namespace

std::int64_t gram_size(const Data& data) {
  const std::int64_t pairs = data.pairs();
  return data.triples() ? triple_start(pairs, pairs, pairs) : pair_count(pairs) * pair_count(data.queries());
}

bool accumulate_moments(const Kernels& kernels, const Data& data, Precision precision, int threads,
                        const Monitor& monitor, const MomentSums& sums) {
  std::atomic<bool> underflow{false};
  const Work work{kernels, data, precision, monitor, MomentProduct(kernels, data, precision, sums.gram != nullptr),
                  underflow};
  const std::int64_t entries = work.product.gram_entries() + work.product.cross_entries();
  if (entries <= slab_limit) {
    accumulate_by_slabs(work, threads, sums);
  } else {
    accumulate_by_rows(work, threads, sums);
  }
  return underflow;
}

}  // namespace linattn
