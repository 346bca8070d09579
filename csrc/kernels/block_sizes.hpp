// Every block size, in one place, with what it assumes.
//
//   register tile   rows x columns vectors of sums, rows + 1 more for operands:
//                     16 registers (SSE2, AVX2): 3 x 4;  32 registers (AVX-512, NEON): 4 x 6
//   block_samples   samples in one block of the matrix product: 2 KiB a row, in float64 or float32. A panel of
//                   tile_columns rows (8 KiB) and one of tile_rows (6 KiB) take half of a 32 KiB L1 cache: the other
//                   half may be another thread's, on cores that run two. Rounding grows with block_samples + N /
//                   block_samples.
//   task_rows       product rows formed and multiplied by one task: 48 x 256 doubles = 96 KiB of a 512 KiB L2, which
//                   at d = 16 also holds the columns (272 KiB).
//   block_stride    numbers from one row of a block to the next: a cache line of float32 more than the most samples, because
//                   rows a power of two apart would share a few sets of the cache. Rows of either type start on a line.
//   group_samples   sequences that are evaluated together.
//   chunk_numbers   coordinates of tokens turned into vectors at a time: 512 x 4 or 8 lanes = 16 or 32 KiB, within L1.
#pragma once

#include <cstdint>

#if defined(__AVX512F__) || defined(__aarch64__) || defined(LINATTN_WIDE_TILES)
#define LINATTN_TILE_ROWS 4
#define LINATTN_TILE_COLUMNS 6
#else
#define LINATTN_TILE_ROWS 3
#define LINATTN_TILE_COLUMNS 4
#endif

namespace linattn {

constexpr std::int64_t block_samples_float64 = 256, block_samples_mixed = 512;
constexpr std::int64_t task_rows = 48;
constexpr std::int64_t block_stride = block_samples_mixed + 16;
static_assert(block_stride * static_cast<std::int64_t>(sizeof(float)) % 64 == 0, "AVX-512 loads whole lines");
constexpr std::int64_t group_samples = 32;
constexpr std::int64_t chunk_numbers = 512;

// Tokens (with their targets) turned into vectors at a time.
static inline std::int64_t chunk_tokens(std::int64_t d, std::int64_t d_out) {
  const std::int64_t largest = d > d_out ? d : d_out;
  return largest < chunk_numbers ? chunk_numbers / largest : 1;
}

// Doubles that sequence_moments works in: a chunk, and the sums of one vector of sequences.
static inline std::int64_t sequence_scratch(std::int64_t d, std::int64_t d_out) {
  constexpr std::int64_t widest = 8;  // lanes
  return widest * (chunk_tokens(d, d_out) * (d + d_out) + d * (d + 1) / 2 + d_out * d + d_out);
}

}  // namespace linattn
