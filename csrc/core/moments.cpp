#include "moments.hpp"

#include <algorithm>
#include <memory>
#include <vector>

#include "../kernels/block_sizes.hpp"
#include "buffer.hpp"
#include "index.hpp"
#include "sample_block.hpp"
#include "team.hpp"

namespace linattn {

namespace {

// Sums up to this size (doubles) are kept once per slab of samples instead of being shared by all threads.
constexpr std::int64_t slab_limit = 64 * 1024;
constexpr std::int64_t most_slabs = 64;
// Blocks filled before the threads turn to the matrix product (bytes).
constexpr std::int64_t blocks_budget = 8 << 20;

// The two matrix products of a block, cut into tasks of task_rows product rows each.
class MomentProduct {
 public:
  MomentProduct(const Kernels& kernels, std::int64_t d, std::int64_t d_out, bool with_gram)
      : kernels_(kernels),
        d_(d),
        pairs_(pair_count(d)),
        gram_rows_(with_gram ? pair_count(pairs_) : 0),
        cross_rows_(d_out * d),
        gram_tasks_((gram_rows_ + task_rows - 1) / task_rows),
        tasks_(gram_tasks_ + (cross_rows_ + task_rows - 1) / task_rows) {}

  std::int64_t tasks() const { return tasks_; }
  std::int64_t size() const { return (gram_rows_ + cross_rows_) * pairs_; }

  // sums += the rows of one task, over the samples of one block. packed: task_rows x block_samples of scratch.
  void add(std::int64_t task, const SampleBlock& block, double* packed, const MomentSums& sums) const {
    if (task < gram_tasks_) {
      add_gram_rows(task * task_rows, block, packed, sums.gram);
    } else {
      add_cross_rows((task - gram_tasks_) * task_rows, block, packed, sums.cross);
    }
  }

 private:
  // Rows (u, v): s_u s_v against the columns w z_l z_m.
  void add_gram_rows(std::int64_t first, const SampleBlock& block, double* packed, double* gram) const {
    const std::int64_t rows = std::min(task_rows, gram_rows_ - first);
    RowPair pairs[task_rows];
    Pair pair = pair_at(first, pairs_);
    for (std::int64_t i = 0; i < rows; ++i, pair = next_pair(pair, pairs_)) {
      pairs[i] = {static_cast<std::int32_t>(pair.j), static_cast<std::int32_t>(pair.k)};
    }
    kernels_.pack_products(block.s.data(), block.s.data(), block_samples, pairs, rows, kernels_.tile_rows,
                           block.samples, packed);
    kernels_.multiply(packed, rows, block.query_columns.data(), pairs_, block.samples, gram + first * pairs_, pairs_);
  }

  // Rows (a, l): w y_a z_l against the columns s.
  void add_cross_rows(std::int64_t first, const SampleBlock& block, double* packed, double* cross) const {
    const std::int64_t rows = std::min(task_rows, cross_rows_ - first);
    RowPair pairs[task_rows];
    for (std::int64_t i = 0; i < rows; ++i) {
      pairs[i] = {static_cast<std::int32_t>((first + i) / d_), static_cast<std::int32_t>((first + i) % d_)};
    }
    kernels_.pack_products(block.weighted_y.data(), block.z.data(), block_samples, pairs, rows, kernels_.tile_rows,
                           block.samples, packed);
    kernels_.multiply(packed, rows, block.pair_columns.data(), pairs_, block.samples, cross + first * pairs_, pairs_);
  }

  const Kernels& kernels_;
  std::int64_t d_, pairs_, gram_rows_, cross_rows_, gram_tasks_, tasks_;
};

struct Work {
  const Kernels& kernels;
  const TokenBatch& tokens;
  const TokenBatch* targets;
  const double* weights;
  const Monitor& monitor;
  std::int64_t d_out;
  MomentProduct product;

  std::int64_t count() const { return tokens.count(); }
  std::int64_t blocks() const { return (count() + block_samples - 1) / block_samples; }
  std::int64_t block_size(std::int64_t block) const {
    return std::min(block_samples, count() - block * block_samples);
  }
};

void add_energy(const SampleBlock& block, double* energy) {
  for (std::size_t a = 0; a < block.energy.size(); ++a) energy[a] += block.energy[a];
}

// Many rows: all threads share the sums, each adding to rows of its own, block after block.
void accumulate_by_rows(const Work& work, int threads, const MomentSums& sums) {
  const std::int64_t d = work.tokens.width();
  const std::int64_t block_bytes = 8 * block_samples * (3 * pair_count(d) + 2 * d + 2 * work.d_out);
  const std::int64_t at_once = std::min(
      work.blocks(), std::max<std::int64_t>(threads, std::min<std::int64_t>(16, blocks_budget / block_bytes)));
  std::vector<SampleBlock> blocks;
  blocks.reserve(static_cast<std::size_t>(at_once));
  for (std::int64_t i = 0; i < at_once; ++i) blocks.emplace_back(d, work.d_out);

  Team::run(threads, [&](Team& team, int rank) {
    BlockFiller filler(work.kernels, work.tokens, work.targets, work.weights);
    const Buffer packed(task_rows * block_samples);
    for (std::int64_t first = 0; first < work.blocks(); first += at_once) {
      const std::int64_t filled = std::min(at_once, work.blocks() - first);
      team.for_each(filled, [&](std::int64_t i) {
        filler.fill(blocks[static_cast<std::size_t>(i)], (first + i) * block_samples, work.block_size(first + i));
      });
      team.for_each(work.product.tasks() + 1, [&](std::int64_t task) {
        for (std::int64_t i = 0; i < filled; ++i) {
          const SampleBlock& block = blocks[static_cast<std::size_t>(i)];
          if (task < work.product.tasks()) {
            work.product.add(task, block, packed.data(), sums);
          } else {
            add_energy(block, sums.energy);
          }
        }
      });
      if (rank == 0) work.monitor(std::min(work.count(), (first + filled) * block_samples));
    }
  });
}

// Few rows: the blocks are cut into slabs, as many for every number of threads; each slab has sums of its own and
// is filled and multiplied by one thread while its block is in cache. The slabs are added in order.
void accumulate_by_slabs(const Work& work, int threads, const MomentSums& sums) {
  const std::int64_t d = work.tokens.width();
  const std::int64_t slabs = std::min(most_slabs, work.blocks());
  const std::int64_t pairs = pair_count(d);
  const std::int64_t gram_size = sums.gram != nullptr ? pair_count(pairs) * pairs : 0;
  const std::int64_t cross_size = work.d_out * d * pairs;
  const std::int64_t slab_size = gram_size + cross_size + work.d_out;
  const Buffer partial(slabs * slab_size);
  std::atomic<std::int64_t> done{0};

  Team::run(threads, [&](Team& team, int rank) {
    BlockFiller filler(work.kernels, work.tokens, work.targets, work.weights);
    SampleBlock block(d, work.d_out);
    const Buffer packed(task_rows * block_samples);
    team.for_each(slabs, [&](std::int64_t slab) {
      double* const start = partial.data() + slab * slab_size;
      const MomentSums own{start, start + gram_size, start + gram_size + cross_size};
      const std::int64_t end = (slab + 1) * work.blocks() / slabs;
      for (std::int64_t b = slab * work.blocks() / slabs; b < end && !team.failed(); ++b) {
        filler.fill(block, b * block_samples, work.block_size(b));
        for (std::int64_t task = 0; task < work.product.tasks(); ++task) {
          work.product.add(task, block, packed.data(), own);
        }
        add_energy(block, own.energy);
        done += work.block_size(b);
        if (rank == 0) work.monitor(done);
      }
    });
  });

  for (std::int64_t slab = 0; slab < slabs; ++slab) {
    const double* const start = partial.data() + slab * slab_size;
    for (std::int64_t i = 0; i < gram_size; ++i) sums.gram[i] += start[i];
    for (std::int64_t i = 0; i < cross_size; ++i) sums.cross[i] += start[gram_size + i];
    for (std::int64_t a = 0; a < work.d_out; ++a) sums.energy[a] += start[gram_size + cross_size + a];
  }
}

}  // namespace

void accumulate_moments(const Kernels& kernels, const TokenBatch& tokens, const TokenBatch* targets,
                        const double* weights, int threads, const Monitor& monitor, const MomentSums& sums) {
  const std::int64_t d_out = targets != nullptr ? targets->width() : 0;
  const Work work{kernels, tokens, targets, weights, monitor, d_out,
                  MomentProduct(kernels, tokens.width(), d_out, sums.gram != nullptr)};
  // A thread costs some tens of microseconds to start, about a block of the smallest problems.
  const int useful = static_cast<int>(std::min<std::int64_t>(threads, work.blocks() * work.product.tasks()));
  if (work.product.size() <= slab_limit) {
    accumulate_by_slabs(work, std::max(1, useful), sums);
  } else {
    accumulate_by_rows(work, std::max(1, useful), sums);
  }
}

}  // namespace linattn
