// The slabs of common/slabs.hpp on the threads of one call. One thread works at a slab, while its block is in cache.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "../common/buffer.hpp"
#include "../common/monitor.hpp"
#include "../common/slabs.hpp"
#include "../common/team.hpp"

namespace linattn {

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
      // Larger slabs come first: a thread that starts late then finds less to do.
      const std::int64_t first = (slab * blocks + slabs - 1) / slabs, end = ((slab + 1) * blocks + slabs - 1) / slabs;
      for (std::int64_t b = first; b < end && !team.failed(); ++b) {
        add(worker, b, b == first, own.data());
        ++done;
        if (rank == 0) monitor(std::min(samples, done * block_samples));
      }
    });
    constexpr std::int64_t entries_at_once = 4096;
    std::int64_t offset = 0;
    for (const SlabTotal& part : totals) {
      team.for_each((part.entries + entries_at_once - 1) / entries_at_once, [&](std::int64_t task) {
        const std::int64_t end = std::min(part.entries, (task + 1) * entries_at_once);
        for (const Buffer& own : sums.partial) {
          const double* const from = own.data() + offset;
          for (std::int64_t i = task * entries_at_once; i < end; ++i) part.total[i] += from[i];
        }
      });
      offset += part.entries;
    }
  });
  return slabs;
}

}  // namespace linattn
