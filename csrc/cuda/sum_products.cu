#include "sum_products.hpp"

#include "../common/index.hpp"
#include "../common/slabs.hpp"
#include "tile.hpp"

namespace linattn::cuda {

namespace {

// Rows and columns of a panel that one thread brings: it has one row, and one column, of the tile.
constexpr int left_step = threads_per_block / tile_rows, right_step = threads_per_block / tile_columns;
constexpr int left_loads = tile_depth / left_step, right_loads = tile_depth / right_step;

__device__ __forceinline__ Pair row_columns(const SumOfProducts& sum, std::int64_t i) {
  switch (sum.row_kind) {
    case Rows::upper:
      return pair_at(i, sum.inner);
    case Rows::grid:
      return {i / sum.inner, i % sum.inner};
    case Rows::same:
      return {i, i};
    default:
      return {i, 0};
  }
}

// Whether the whole tile lies below the diagonal, where nothing is formed.
__device__ __forceinline__ bool is_empty(const SumOfProducts& sum, std::int64_t row, std::int64_t column) {
  if (sum.places == Places::symmetric) return column + tile_columns <= row;
  if (sum.places != Places::triples) return false;
  // Rows (u, v) follow each other with v ascending, until they go on with (u + 1, u + 1).
  const Pair first = pair_at(row, sum.inner);
  const bool wraps = first.k + tile_rows > sum.inner;
  const std::int64_t smallest = wraps && first.j + 1 < first.k ? first.j + 1 : first.k;
  return column + tile_columns <= smallest;
}

// Puts or adds one entry. No other thread of the launch has the same place.
__device__ __forceinline__ void put(const SumOfProducts& sum, std::int64_t i, std::int64_t c, double value, bool add,
                                    double* total) {
  std::int64_t place = i * sum.columns + c, mirrored = -1;
  if (sum.places == Places::triples) {
    const Pair pair = pair_at(i, sum.inner);
    if (c < pair.k) return;
    place = triple_start(pair.j, pair.k, sum.inner) + c - pair.k;
  } else if (sum.places == Places::by_pair) {
    place = (i / sum.inner * sum.columns + c) * sum.inner + i % sum.inner;
  } else if (sum.places == Places::symmetric) {
    if (c < i) return;
    mirrored = c * sum.columns + i;
  } else if (sum.places == Places::unpacked) {
    const Pair pair = pair_at(c, sum.inner);
    place = pair.j * sum.inner + pair.k;
    mirrored = pair.k * sum.inner + pair.j;
  }
  const double result = add ? total[place] + value : value;
  total[place] = result;
  if (mirrored >= 0) total[mirrored] = result;
}

// What a thread brings of a panel: one row of the left factor and one column of the right.
class Incoming {
 public:
  __device__ __forceinline__ Incoming(const SumOfProducts& sum, std::int64_t row, std::int64_t column)
      : sum_(sum),
        left_depth_(static_cast<int>(threadIdx.x) / tile_rows),
        right_depth_(static_cast<int>(threadIdx.x) / tile_columns) {
    const std::int64_t i = row + static_cast<std::int64_t>(threadIdx.x) % tile_rows;
    const std::int64_t c = column + static_cast<std::int64_t>(threadIdx.x) % tile_columns;
    const Pair columns = row_columns(sum, i < sum.rows ? i : sum.rows - 1);
    a_ = sum.a.values + columns.j;
    b_ = sum.b.values != nullptr ? sum.b.values + columns.k : nullptr;
    right_ = sum.right.values != nullptr ? sum.right.values + (c < sum.columns ? c : sum.columns - 1) : nullptr;
  }

  __device__ __forceinline__ void read(std::int64_t sample, std::int64_t end) {
    LINATTN_UNROLL
    for (int n = 0; n < left_loads; ++n) {
      const std::int64_t k = sample + left_depth_ + n * left_step;
      const bool inside = k < end;
      a_values_[n] = inside ? a_[k * sum_.a.stride] : 0.0;
      b_values_[n] = inside && b_ != nullptr ? b_[k * sum_.b.stride] : 1.0;
      weights_[n] = inside && sum_.weights != nullptr ? sum_.weights[k] : 1.0;
    }
    LINATTN_UNROLL
    for (int n = 0; n < right_loads; ++n) {
      const std::int64_t k = sample + right_depth_ + n * right_step;
      right_values_[n] = k < end ? (right_ != nullptr ? right_[k * sum_.right.stride] : 1.0) : 0.0;
    }
  }

  __device__ __forceinline__ void write(double (*left)[tile_rows + 4], double (*right)[tile_columns + 4]) const {
    LINATTN_UNROLL
    for (int n = 0; n < left_loads; ++n) {
      left[left_depth_ + n * left_step][static_cast<int>(threadIdx.x) % tile_rows] =
          a_values_[n] * b_values_[n] * weights_[n];
    }
    LINATTN_UNROLL
    for (int n = 0; n < right_loads; ++n) {
      right[right_depth_ + n * right_step][static_cast<int>(threadIdx.x) % tile_columns] = right_values_[n];
    }
  }

 private:
  const SumOfProducts& sum_;
  int left_depth_, right_depth_;
  const double *a_, *b_, *right_;
  double a_values_[left_loads], b_values_[left_loads], weights_[left_loads], right_values_[right_loads];
};

// Tile (blockIdx.x, blockIdx.y) of the result, over the samples of slab blockIdx.z.
template <typename OwnTile>
__device__ __forceinline__ void multiply_tile(const SumOfProducts& sum, std::int64_t samples_per_slab, bool add,
                                              std::int64_t slab_stride, double* out, Panels& panels) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * tile_rows;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.y) * tile_columns;
  if (is_empty(sum, row, column)) return;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.z) * samples_per_slab;
  const std::int64_t end = begin + samples_per_slab < sum.samples ? begin + samples_per_slab : sum.samples;

  OwnTile tile;
  Incoming incoming(sum, row, column);
  multiply_panels(tile, incoming, begin, end, panels);
  double* const total = out + static_cast<std::int64_t>(blockIdx.z) * slab_stride;
  tile.for_each([&](int i, int c, double value) {
    if (row + i < sum.rows && column + c < sum.columns) put(sum, row + i, column + c, value, add, total);
  });
}

__global__ void __launch_bounds__(threads_per_block, 2)
    sum_products(SumOfProducts sum, std::int64_t samples_per_slab, bool add, std::int64_t slab_stride, double* out) {
  LINATTN_SHARED(Panels, panels);
#ifdef LINATTN_CUDA_EMULATED
  if (!emulator::tensor_cores()) {
    multiply_tile<PlainTile>(sum, samples_per_slab, add, slab_stride, out, panels);
    return;
  }
#endif
  multiply_tile<Tile>(sum, samples_per_slab, add, slab_stride, out, panels);
}

// total[i] (+)= slabs[0, i] + slabs[1, i] + ..., in this order
__global__ void __launch_bounds__(threads_per_block)
    add_slabs(const double* slabs, std::int64_t count, std::int64_t entries, bool fresh, double* total) {
  const std::int64_t i = element_number();
  if (i >= entries) return;
  double sum = fresh ? 0.0 : total[i];
  for (std::int64_t slab = 0; slab < count; ++slab) sum += slabs[slab * entries + i];
  total[i] = sum;
}

}  // namespace

std::int64_t SumOfProducts::entries() const {
  if (places == Places::triples) return triple_start(inner, inner, inner);
  return places == Places::unpacked ? inner * inner : rows * columns;
}

std::int64_t SumOfProducts::most_slabs() const {
  const std::int64_t tiles = ((rows + tile_rows - 1) / tile_rows) * ((columns + tile_columns - 1) / tile_columns);
  return most_chunk_slabs(samples, tiles);
}

std::int64_t SumOfProducts::samples_per_slab() const {
  const std::int64_t own = (samples + most_slabs() - 1) / most_slabs();
  return (own + tile_depth - 1) / tile_depth * tile_depth;
}

std::int64_t SumOfProducts::slabs() const { return (samples + samples_per_slab() - 1) / samples_per_slab(); }

void add_products(const SumOfProducts& sum, bool fresh, double* slabs, double* total, cudaStream_t stream) {
  if (sum.rows == 0 || sum.columns == 0) return;
  const std::int64_t count = sum.slabs(), entries = sum.entries();
  const dim3 grid(static_cast<unsigned>((sum.rows + tile_rows - 1) / tile_rows),
                  static_cast<unsigned>((sum.columns + tile_columns - 1) / tile_columns), static_cast<unsigned>(count));
  const bool direct = count == 1;
  LINATTN_LAUNCH(sum_products, grid, threads_per_block, stream, sum, sum.samples_per_slab(), direct && !fresh, entries,
                 direct ? total : slabs);
  if (!direct) {
    LINATTN_LAUNCH(add_slabs, blocks_for(entries), threads_per_block, stream, slabs, count, entries, fresh, total);
  }
}

}  // namespace linattn::cuda
