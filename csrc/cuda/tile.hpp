// A block's tile of a matrix product, 64 rows x 128 columns held in registers by 256 threads:
//
//   tile[i, c] += sum_k left[k][i] right[k][c]        k < 8, a panel in shared memory
//
// TensorTile has the double-precision tensor cores of compute capability 8.0 and later multiply 8 x 8 x 4 at a time;
// PlainTile uses fused multiply-adds and runs everywhere. Both keep 32 sums a thread: 64 registers, which leaves room
// for two blocks on a multiprocessor (128 registers a thread).
#pragma once

#include "platform.hpp"

namespace linattn::cuda {

constexpr int tile_rows = 64, tile_columns = 128, tile_depth = 8;

// Two panels, so that one is filled while the other is multiplied: 25,600 bytes. Rows are four doubles longer than the
// tile: the 8 x 4 numbers that a warp reads at once then lie in different banks.
struct Panels {
  double left[2][tile_depth][tile_rows + 4];
  double right[2][tile_depth][tile_columns + 4];
};

// Each lane has one number of A (8 x 4), A[lane / 4][lane % 4], one of B (4 x 8), B[lane % 4][lane / 4], and two of
// C (8 x 8), C[lane / 4][2 (lane % 4)] and the next: C += A B. The whole warp takes part.
__device__ __forceinline__ void multiply_add_8x8x4(double& c0, double& c1, double a, double b) {
#if defined(LINATTN_CUDA_EMULATED)
  emulator::multiply_add_8x8x4(c0, c1, a, b);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
               : "+d"(c0), "+d"(c1)
               : "d"(a), "d"(b));
#endif
}

// Eight warps as 2 x 4, each with 4 x 4 fragments of 8 x 8.
class TensorTile {
 public:
  __device__ __forceinline__ TensorTile() {
    LINATTN_UNROLL
    for (int i = 0; i < 4; ++i) {
      LINATTN_UNROLL
      for (int j = 0; j < 4; ++j) sums_[i][j][0] = sums_[i][j][1] = 0.0;
    }
  }

  __device__ __forceinline__ void multiply(const double (*left)[tile_rows + 4],
                                           const double (*right)[tile_columns + 4]) {
    const int along = static_cast<int>(threadIdx.x) & 3, across = (static_cast<int>(threadIdx.x) & 31) >> 2;
    LINATTN_UNROLL
    for (int k = 0; k < tile_depth; k += 4) {
      double a[4], b[4];
      LINATTN_UNROLL
      for (int i = 0; i < 4; ++i) {
        a[i] = left[k + along][first_row() + 8 * i + across];
        b[i] = right[k + along][first_column() + 8 * i + across];
      }
      LINATTN_UNROLL
      for (int i = 0; i < 4; ++i) {
        LINATTN_UNROLL
        for (int j = 0; j < 4; ++j) multiply_add_8x8x4(sums_[i][j][0], sums_[i][j][1], a[i], b[j]);
      }
    }
  }

  // visit(row, column, sum) for this thread's entries of the tile.
  template <typename Visit>
  __device__ __forceinline__ void for_each(Visit visit) const {
    const int along = static_cast<int>(threadIdx.x) & 3, across = (static_cast<int>(threadIdx.x) & 31) >> 2;
    LINATTN_UNROLL
    for (int i = 0; i < 4; ++i) {
      LINATTN_UNROLL
      for (int j = 0; j < 4; ++j) {
        visit(first_row() + 8 * i + across, first_column() + 8 * j + 2 * along, sums_[i][j][0]);
        visit(first_row() + 8 * i + across, first_column() + 8 * j + 2 * along + 1, sums_[i][j][1]);
      }
    }
  }

 private:
  __device__ __forceinline__ static int first_row() { return (static_cast<int>(threadIdx.x) >> 5 & 1) * 32; }
  __device__ __forceinline__ static int first_column() { return (static_cast<int>(threadIdx.x) >> 6) * 32; }

  double sums_[4][4][2];
};

// Threads as 16 x 16, each with rows 16 apart and columns 16 apart: 4 x 8 sums.
class PlainTile {
 public:
  __device__ __forceinline__ PlainTile() {
    LINATTN_UNROLL
    for (int i = 0; i < 4; ++i) {
      LINATTN_UNROLL
      for (int j = 0; j < 8; ++j) sums_[i][j] = 0.0;
    }
  }

  __device__ __forceinline__ void multiply(const double (*left)[tile_rows + 4],
                                           const double (*right)[tile_columns + 4]) {
    LINATTN_UNROLL
    for (int k = 0; k < tile_depth; ++k) {
      double a[4], b[8];
      LINATTN_UNROLL
      for (int i = 0; i < 4; ++i) a[i] = left[k][first_row() + 16 * i];
      LINATTN_UNROLL
      for (int j = 0; j < 8; ++j) b[j] = right[k][first_column() + 16 * j];
      LINATTN_UNROLL
      for (int i = 0; i < 4; ++i) {
        LINATTN_UNROLL
        for (int j = 0; j < 8; ++j) sums_[i][j] = fma(a[i], b[j], sums_[i][j]);
      }
    }
  }

  template <typename Visit>
  __device__ __forceinline__ void for_each(Visit visit) const {
    LINATTN_UNROLL
    for (int i = 0; i < 4; ++i) {
      LINATTN_UNROLL
      for (int j = 0; j < 8; ++j) visit(first_row() + 16 * i, first_column() + 16 * j, sums_[i][j]);
    }
  }

 private:
  __device__ __forceinline__ static int first_row() { return static_cast<int>(threadIdx.x) >> 4; }
  __device__ __forceinline__ static int first_column() { return static_cast<int>(threadIdx.x) & 15; }

  double sums_[4][8];
};

// tile += the products of begin .. end, a panel of eight at a time. incoming.read(k, end) reads what this thread brings
// of the panel that starts with k into registers, incoming.write(left, right) puts it into shared memory: the next
// panel is read before the present one is multiplied, so that memory answers meanwhile.
template <typename OwnTile, typename Incoming>
__device__ __forceinline__ void multiply_panels(OwnTile& tile, Incoming& incoming, std::int64_t begin, std::int64_t end,
                                                Panels& panels) {
  incoming.read(begin, end);
  incoming.write(panels.left[0], panels.right[0]);
  LINATTN_BARRIER();
  int now = 0;
  for (std::int64_t k = begin; k < end; k += tile_depth) {
    const bool more = k + tile_depth < end;
    if (more) incoming.read(k + tile_depth, end);
    tile.multiply(panels.left[now], panels.right[now]);
    // The other panel was last read before the barrier that ended the pass before this one.
    if (more) incoming.write(panels.left[1 - now], panels.right[1 - now]);
    LINATTN_BARRIER();
    now = 1 - now;
  }
}

// The tile of the architecture that is compiled for.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
using Tile = PlainTile;
#else
using Tile = TensorTile;
#endif

}  // namespace linattn::cuda
