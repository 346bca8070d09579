// Sums over blocks of samples with the same bits for every number of threads: the blocks are cut into slabs, whose number
// depends on the data alone; each slab has sums of its own, and these are added in order.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "../kernels/block_sizes.hpp"
#include "buffer.hpp"
#include "moments.hpp"
#include "team.hpp"

namespace linattn {

constexpr std::int64_t most_slabs = 64, fewest_blocks_in_slab = 4;
// Doubles in the sums of all slabs together (256 MiB), as long as there are eight of them.
constexpr std::int64_t slabs_budget = std::int64_t{32} << 20;

inline std::int64_t slab_count(std::int64_t blocks, std::int64_t entries) {
  const std::int64_t affordable = std::max<std::int64_t>(8, slabs_budget / std::max<std::int64_t>(1, entries));
  return std::clamp<std::int64_t>(blocks / fewest_blocks_in_slab, 1, std::min(most_slabs, affordable));
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

// total[0 .. entries) = the sum over blocks of what add(worker, block, first, own) adds to `own`, where `first` says that
// the block is the first of its slab. Each thread has one worker, from make_worker().
template <typename MakeWorker, typename Add>
void sum_over_slabs(std::int64_t blocks, std::int64_t entries, int threads, const Monitor& monitor, SlabSums& sums,
                    double* total, const MakeWorker& make_worker, const Add& add) {
  const std::int64_t slabs = slab_count(blocks, entries);
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
        if (rank == 0) monitor(done * block_samples);
      }
    });
    constexpr std::int64_t chunk = 4096;
    team.for_each((entries + chunk - 1) / chunk, [&](std::int64_t task) {
      const std::int64_t end = std::min(entries, (task + 1) * chunk);
      for (std::int64_t i = task * chunk; i < end; ++i) total[i] = 0.0;
      for (const Buffer& own : sums.partial) {
        for (std::int64_t i = task * chunk; i < end; ++i) total[i] += own.data()[i];
      }
    });
  });
}

}  // namespace linattn
