// Tokens, targets and chosen pairs as kernels see them: pointers into memory of the device.
#pragma once

#include <cstdint>

#include "../common/index.hpp"
#include "platform.hpp"

namespace linattn::cuda {

// Numbers in float32 or float64, read as float64.
struct Numbers {
  const void* data = nullptr;
  bool single = false;

  __device__ double operator[](std::int64_t i) const {
    return single ? static_cast<double>(static_cast<const float*>(data)[i]) : static_cast<const double*>(data)[i];
  }
};

// Sequence i is rows begin(i) .. end(i) of values (rows x width).
struct Tokens {
  Numbers values;
  const std::int64_t* offsets = nullptr;  // count + 1, or null: sequences of `length` rows
  std::int64_t count = 0, length = 0, rows = 0, width = 0;

  __device__ std::int64_t begin(std::int64_t i) const { return offsets != nullptr ? offsets[i] : i * length; }
  __device__ std::int64_t end(std::int64_t i) const { return offsets != nullptr ? offsets[i + 1] : (i + 1) * length; }

  // The sequence that holds a row.
  __device__ std::int64_t sequence_of(std::int64_t row) const {
    if (offsets == nullptr) return row / length;
    std::int64_t low = 0, high = count - 1;
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (offsets[middle + 1] <= row) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }
};

// Pairs (j, k) of coordinates: all of them, chosen ones, or those of chosen coordinates.
struct PairList {
  const std::int64_t* numbers = nullptr;      // (count): numbers of chosen pairs
  const std::int64_t* coordinates = nullptr;  // (chosen): all pairs l <= m of these
  std::int64_t width = 0;                     // d, or the number of chosen coordinates
  std::int64_t count = 0;

  __device__ Pair operator[](std::int64_t u) const {
    const Pair pair = pair_at(numbers != nullptr ? numbers[u] : u, width);
    return coordinates != nullptr ? Pair{coordinates[pair.j], coordinates[pair.k]} : pair;
  }
};

inline PairList all_pairs(std::int64_t d) { return {nullptr, nullptr, d, pair_count(d)}; }

}  // namespace linattn::cuda
