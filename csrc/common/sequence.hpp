// One sequence of tokens as it lies in the caller's memory. Plain data.
#pragma once

#include <cstdint>

namespace linattn {

enum class Scalar { float32, float64 };

// Token t, coordinate j is data[t * row_stride + j * column_stride]; strides count elements and may be negative.
struct Sequence {
  const void* data;
  std::int64_t length;
  std::int64_t row_stride;
  std::int64_t column_stride;
};

}  // namespace linattn
