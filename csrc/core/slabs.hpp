// Sums over blocks of samples with the same bits for every number of threads: the blocks are cut into slabs, whose
// number depends on the data alone; each slab has sums of its own, and these are added in order. One thread works at a
// slab, while its block is in cache.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "../common/block_sizes.hpp"
#include "../common/buffer.hpp"
#include "../common/monitor.hpp"
#include "../common/team.hpp"

namespace linattn {

constexpr std::int64_t most_slabs = 64;
// Blocks in a slab, at the fewest: of moments, and of a pass of coefficients over the samples.
constexpr std::int64_t blocks_in_moment_slab = 8, blocks_in_pass_slab = 4;
// Doubles in the sums of all slabs together (256 MiB), as long as there are eight of them.
constexpr std::int64_t slabs_budget = std::int64_t{32} << 20, fewest_affordable_slabs = 8;
// Doubles in the Gram and cross moment that are still kept once a slab; larger ones are shared by all threads.
constexpr std::int64_t moment_slab_limit = 64 * 1024;

// Slabs of so many blocks, with sums of `entries` doubles each.
inline std::int64_t slab_count(std::int64_t blocks, std::int64_t blocks_in_slab, std::int64_t entries) {
  const std::int64_t affordable = slabs_budget / std::max<std::int64_t>(1, entries);
  return std::clamp<std::int64_t>(blocks / blocks_in_slab, 1,
                                  std::min(most_slabs, std::max(fewest_affordable_slabs, affordable)));
}

// Slabs of a pass of coefficients over so many samples.
inline std::int64_t pass_slabs(std::int64_t samples, std::int64_t entries) {
  return slab_count(samples / block_samples + (samples % block_samples != 0), blocks_in_pass_slab, entries);
}

// In how many additions in a row a block takes part, at most: the first block of a slab is added to zero.
inline std::int64_t slab_additions(std::int64_t blocks, std::int64_t slabs) {
  return (blocks + slabs - 1) / slabs - 1 + slabs;
}

// The sums of slabs. Whoever keeps them from pass to pass saves the system handing out their memory anew.
struct SlabSums {
  std::vector<Buffer> partial;
  std::int64_t entries = 0;  // of each

  void resize(std::int64_t slabs, std::int64_t size) {
    if (static_cast<std::int64_t>(partial.size()) == slabs && entries == size) return;
    partial.clear();
    partial.resize(static_cast<std::size_t>(slabs));
    entries = size;
  }
};

// Where a part of the sums goes. The parts of a slab's sums lie one after the other.
struct SlabTotal {
  double* total;
  std::int64_t entries;
};

// totals += the sum over `samples`, in blocks, of what add(worker, block, first, own) adds to `own`, where `first` says
// that the block is the first of its slab. Each thread has one worker, from make_worker(), which outlives its
// additions. Returns the number of slabs.
template <typename MakeWorker, typename Add>
std::int64_t sum_over_slabs(std::int64_t samples, std::int64_t blocks_in_slab, int threads, const Monitor& monitor,
                            SlabSums& sums, std::initializer_list<SlabTotal> totals, const MakeWorker& make_worker,
                            const Add& add) {
  std::int64_t entries = 0;
  for (const SlabTotal& part : totals) entries += part.entries;
  const std::int64_t blocks = (samples + block_samples - 1) / block_samples;
  const std::int64_t slabs = slab_count(blocks, blocks_in_slab, entries);
  sums.resize(slabs, entries);
  std::atomic<std::int64_t> done{0};
  Team::run(static_cast<int>(std::min<std::int64_t>(threads, slabs)), [&](Team& team, int rank) {
    auto worker = make_worker();
    team.for_each(slabs, [&](std::int64_t slab) {
      Buffer& own = sums.partial[static_cast<std::size_t>(slab)];
      if (own.data() == nullptr) {
        own = Buffer(entries);
      } else {
        std::fill_n(own.data(), entries, 0.0);
      }
      const std::int64_t first = slab * blocks / slabs, end = (slab + 1) * blocks / slabs;
      for (std::int64_t b = first; b < end && !team.failed(); ++b) {
        add(worker, b, b == first, own.data());
        ++done;
        if (rank == 0) monitor(std::min(samples, done * block_samples));
      }
    });
    constexpr std::int64_t chunk = 4096;
    std::int64_t offset = 0;
    for (const SlabTotal& part : totals) {
      team.for_each((part.entries + chunk - 1) / chunk, [&](std::int64_t task) {
        const std::int64_t end = std::min(part.entries, (task + 1) * chunk);
        for (const Buffer& own : sums.partial) {
          const double* const from = own.data() + offset;
          for (std::int64_t i = task * chunk; i < end; ++i) part.total[i] += from[i];
        }
      });
      offset += part.entries;
    }
  });
  return slabs;
}

}  // namespace linattn
