// How sums over samples are cut, on the CPU and on a card.
//
// Samples are cut into slabs. Each slab has sums of its own, and these are added in order. The number of slabs depends
// on sizes alone, so the result has the same bits whatever the number of threads, and no two threads add to one number.
// Every constant that decides how long a row of additions gets, and what the slabs take in memory, is here or in
// block_sizes.hpp; Python reads what it needs of them from the compiled module.
#pragma once

#include <algorithm>
#include <cstdint>

#include "block_sizes.hpp"

namespace linattn {

// --- on the CPU: a slab is some blocks of block_samples samples, and one thread works at it, a block after the other

constexpr std::int64_t most_slabs = 64;
// The fewest blocks in a slab: of moments, and of a pass of coefficients over the samples.
constexpr std::int64_t blocks_in_moment_slab = 8, blocks_in_pass_slab = 4;
// Where samples are few, slabs may be smaller as long as there are no more of them than this, so that some threads
// have work: clearing and adding the sums of a slab takes a tenth as long as summing over a block.
constexpr std::int64_t fewest_blocks = 2, few_slabs = 4;
// Doubles in the sums of all slabs together (256 MiB), as long as that makes this many slabs.
constexpr std::int64_t slabs_budget_doubles = std::int64_t{32} << 20, fewest_affordable_slabs = 8;
// Doubles in the Gram and cross moment that are still kept once a slab; larger ones are shared by all threads.
constexpr std::int64_t moment_slab_doubles = 64 * 1024;

// Slabs of so many blocks, with sums of `entries` doubles each.
inline std::int64_t slab_count(std::int64_t blocks, std::int64_t blocks_in_slab, std::int64_t entries) {
  const std::int64_t affordable = slabs_budget_doubles / std::max<std::int64_t>(1, entries);
  const std::int64_t wanted = std::max(blocks / blocks_in_slab, std::min(blocks / fewest_blocks, few_slabs));
  return std::clamp<std::int64_t>(wanted, 1, std::min(most_slabs, std::max(fewest_affordable_slabs, affordable)));
}

// Slabs of a pass of coefficients over so many samples.
inline std::int64_t pass_slabs(std::int64_t samples, std::int64_t entries) {
  return slab_count(samples / block_samples + (samples % block_samples != 0), blocks_in_pass_slab, entries);
}

// In how many additions in a row a block takes part, at most: the first block of a slab is added to zero.
inline std::int64_t slab_additions(std::int64_t blocks, std::int64_t slabs) {
  return (blocks + slabs - 1) / slabs - 1 + slabs;
}

// --- on a card: samples come in chunks, and a slab is a part of a chunk; a block of threads works at one tile of the
// --- result over one slab

// Doubles of a chunk in the workspace: 32 MiB, which the L2 cache of a large card holds.
constexpr std::int64_t chunk_doubles = std::int64_t{1} << 22;
// The most samples of a chunk: rounding errors grow with 8192 + N / 8192 at most.
constexpr std::int64_t most_chunk_samples = 8192;
// Blocks of threads that keep the largest cards busy: two on each of 132 multiprocessors, twice.
constexpr std::int64_t wanted_thread_blocks = 512;

// Samples of a chunk when each has so many numbers in the workspace.
inline std::int64_t chunk_samples(std::int64_t numbers_per_sample) {
  return std::clamp(chunk_doubles / numbers_per_sample, block_samples, most_chunk_samples);
}

// Slabs of a chunk whose result has so many tiles, at most: enough for all multiprocessors, but none with fewer samples
// than a block of the CPU has.
inline std::int64_t most_chunk_slabs(std::int64_t samples, std::int64_t tiles) {
  return std::min((wanted_thread_blocks + tiles - 1) / tiles, (samples + block_samples - 1) / block_samples);
}

}  // namespace linattn
