#include "matrix_product.hpp"

#include "tile.hpp"

namespace linattn::cuda {

namespace {

// A thread brings one k of `left` for rows 32 apart, so that neighbours read along k; and one column of `right`.
constexpr int row_step = threads_per_block / tile_depth, left_loads = tile_rows / row_step;
constexpr int right_step = threads_per_block / tile_columns, right_loads = tile_depth / right_step;

class Incoming {
 public:
  __device__ __forceinline__ Incoming(const MatrixView& left, const MatrixView& right, std::int64_t row,
                                      std::int64_t column, std::int64_t rows, std::int64_t columns)
      : left_(left), right_(right) {
    const std::int64_t c = column + static_cast<std::int64_t>(threadIdx.x) % tile_columns;
    right_start_ = right.values + right.column(c < columns ? c : columns - 1);
    LINATTN_UNROLL
    for (int n = 0; n < left_loads; ++n) {
      const std::int64_t i = row + static_cast<std::int64_t>(threadIdx.x) / tile_depth + n * row_step;
      left_starts_[n] = left.values + left.row(i < rows ? i : rows - 1);
    }
  }

  __device__ __forceinline__ void read(std::int64_t start, std::int64_t depth) {
    const std::int64_t own = start + static_cast<std::int64_t>(threadIdx.x) % tile_depth;
    const std::int64_t place = left_.column(own < depth ? own : 0);
    LINATTN_UNROLL
    for (int n = 0; n < left_loads; ++n) left_values_[n] = own < depth ? left_starts_[n][place] : 0.0;
    LINATTN_UNROLL
    for (int n = 0; n < right_loads; ++n) {
      const std::int64_t k = start + static_cast<std::int64_t>(threadIdx.x) / tile_columns + n * right_step;
      right_values_[n] = k < depth ? right_start_[right_.row(k)] : 0.0;
    }
  }

  __device__ __forceinline__ void write(double (*left)[tile_rows + 4], double (*right)[tile_columns + 4]) const {
    const int thread = static_cast<int>(threadIdx.x);
    LINATTN_UNROLL
    for (int n = 0; n < left_loads; ++n) {
      left[thread % tile_depth][thread / tile_depth + n * row_step] = left_values_[n];
    }
    LINATTN_UNROLL
    for (int n = 0; n < right_loads; ++n) {
      right[thread / tile_columns + n * right_step][thread % tile_columns] = right_values_[n];
    }
  }

 private:
  const MatrixView &left_, &right_;
  const double* left_starts_[left_loads];
  const double* right_start_;
  double left_values_[left_loads], right_values_[right_loads];
};

template <typename OwnTile>
__device__ __forceinline__ void multiply_tile(const MatrixView& left, const MatrixView& right, std::int64_t rows,
                                              std::int64_t columns, std::int64_t depth, double* out, Panels& panels) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * tile_rows;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.y) * tile_columns;
  OwnTile tile;
  Incoming incoming(left, right, row, column, rows, columns);
  multiply_panels(tile, incoming, 0, depth, panels);
  tile.for_each([&](int i, int c, double value) {
    if (row + i < rows && column + c < columns) out[(row + i) * columns + column + c] = value;
  });
}

__global__ void __launch_bounds__(threads_per_block, 2)
    multiply_matrices(MatrixView left, MatrixView right, std::int64_t rows, std::int64_t columns, std::int64_t depth,
                      double* out) {
  LINATTN_SHARED(Panels, panels);
#ifdef LINATTN_CUDA_EMULATED
  if (!emulator::tensor_cores()) {
    multiply_tile<PlainTile>(left, right, rows, columns, depth, out, panels);
    return;
  }
#endif
  multiply_tile<Tile>(left, right, rows, columns, depth, out, panels);
}

}  // namespace

void multiply(const MatrixView& left, const MatrixView& right, std::int64_t rows, std::int64_t columns,
              std::int64_t depth, double* out, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((rows + tile_rows - 1) / tile_rows),
                  static_cast<unsigned>((columns + tile_columns - 1) / tile_columns));
  LINATTN_LAUNCH(multiply_matrices, grid, threads_per_block, stream, left, right, rows, columns, depth, out);
}

}  // namespace linattn::cuda
