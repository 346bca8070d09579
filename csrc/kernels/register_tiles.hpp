// Register tiles of an instruction set: vectors of rows x columns of sums, and registers for the vectors of rows and
// one number:
//
//   16 registers (SSE2, AVX2)   2 x 6
//   32 registers                AVX-512 3 x 8, NEON 4 x 6
//
// S of sequences side by side (second_moment.hpp) and the layer (layer.hpp) have tiles of their own, for as many
// registers.
#pragma once

#if defined(__AVX512F__) || defined(LINATTN_WIDE_TILES)
#define LINATTN_REGISTERS 32
#define LINATTN_TILE_VECTORS 3
#define LINATTN_TILE_COLUMNS 8
#elif defined(__aarch64__)
#define LINATTN_REGISTERS 32
#define LINATTN_TILE_VECTORS 4
#define LINATTN_TILE_COLUMNS 6
#else
#define LINATTN_REGISTERS 16
#define LINATTN_TILE_VECTORS 2
#define LINATTN_TILE_COLUMNS 6
#endif
