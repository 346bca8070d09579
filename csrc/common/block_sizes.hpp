// Every block size, in one place, with what it assumes.
//
//   register tiles  are in kernels/register_tiles.hpp, because they follow from the instruction set.
//   block_samples   samples in one block of the matrix product. With AVX2 a panel of 8 rows in float64, or 16 in
//                   float32, takes 16 KiB of a 32 KiB L1 cache and stays there while panels of 6 columns (12 KiB) pass
//                   by from L2; with AVX-512 (24 rows, 48 KiB) both come from L2. At d = 16 all columns take 272 KiB of
//                   L2. Rounding grows with block_samples + N / block_samples.
//   task_rows       product rows of one task, a multiple of every panel.
//   block_stride    doubles from one row of a block to the next: one cache line more than the samples, because rows a
//                   power of two apart would share a few sets of the cache.
//   group_samples   sequences that are evaluated together.
//   triangle_step   columns of a triangular system solved by substitution before the matrix product takes over: a flop
//                   of it takes sixteen or so times as long, and 32 columns are a tenth of the flops at 500 rows.
//   chunk_numbers   coordinates of tokens turned into vectors at a time: 512 x 4 or 8 lanes = 16 or 32 KiB, within L1.
#pragma once

#include <cstdint>

namespace linattn {

constexpr std::int64_t block_samples = 256;
constexpr std::int64_t task_rows = 48;
constexpr std::int64_t block_stride = block_samples + 8;
constexpr std::int64_t group_samples = 32;
constexpr std::int64_t triangle_step = 32;
constexpr std::int64_t chunk_numbers = 512;

}  // namespace linattn
