// Every block size, in one place, with what it assumes.
//
//   register tile   rows x columns vectors of sums, rows + 1 more for operands:
//                     16 registers (SSE2, AVX2): 3 x 4;  32 registers (AVX-512, NEON): 4 x 6
//   block_samples   samples in one block of the matrix product. A panel of tile_columns rows (8 to 12 KiB) stays in a
//                   32 KiB L1 cache while panels of A pass by; rounding grows with block_samples + N / block_samples.
//   task_rows       product rows formed and multiplied by one task: 48 x 256 doubles = 96 KiB, within a 256 KiB L2.
//   group_samples   sequences whose tokens are turned into rows of samples together.
//   group_tokens    token rows of a group held at once, in doubles: 64 KiB, so that they are still in L2 when used.
#pragma once

#include <cstdint>

#if defined(__AVX512F__) || defined(__aarch64__)
#define LINATTN_TILE_ROWS 4
#define LINATTN_TILE_COLUMNS 6
#else
#define LINATTN_TILE_ROWS 3
#define LINATTN_TILE_COLUMNS 4
#endif

namespace linattn {

constexpr std::int64_t block_samples = 256;
constexpr std::int64_t task_rows = 48;
constexpr std::int64_t group_samples = 32;
constexpr std::int64_t group_tokens = 8192;

}  // namespace linattn
