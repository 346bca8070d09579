// Matrix products over coordinates instead of samples: maps sum_u C[a,(u,l)] s_u of a block of samples, and the
// products with Q and V of heads.
#pragma once

#include <cstdint>

#include "platform.hpp"

namespace linattn::cuda {

// An index that runs over two dimensions of an array: i -> (i / inner) outer_step + (i % inner) inner_step.
struct Index {
  std::int64_t inner = 1, outer_step = 0, inner_step = 0;

  __device__ std::int64_t operator()(std::int64_t i) const {
    // 32 bits: no dimension is longer, and division is several times as fast
    const auto number = static_cast<std::uint32_t>(i), length = static_cast<std::uint32_t>(inner);
    return static_cast<std::int64_t>(number / length) * outer_step +
           static_cast<std::int64_t>(number % length) * inner_step;
  }
};

// An index over one dimension.
inline Index along(std::int64_t step) { return {1, step, 0}; }

// matrix[i, j] = values[row(i) + column(j)]
struct MatrixView {
  const double* values;
  Index row, column;
};

// out[i, c] = sum_k left[i, k] right[k, c]        rows x columns; depth summands, none of the three beyond 2^31
void multiply(const MatrixView& left, const MatrixView& right, std::int64_t rows, std::int64_t columns,
              std::int64_t depth, double* out, cudaStream_t stream);

}  // namespace linattn::cuda
