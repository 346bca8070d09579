#include "matrix_product.hpp"

#include <algorithm>
#include <vector>

#include "../common/block_sizes.hpp"
#include "../common/buffer.hpp"
#include "../common/team.hpp"

namespace linattn {

namespace {

// As long as a second thread takes to start, about.
constexpr std::int64_t multiply_adds_worth_a_thread = 1 << 20;

// Columns first .. first + count of `rows` rows, in rows of block_stride; zero up to a multiple of sample_quantum,
// which is returned.
std::int64_t copy_columns(const double* from, std::int64_t rows, std::int64_t stride, std::int64_t first,
                          std::int64_t count, double* out) {
  const std::int64_t padded = padded_samples(count);
  for (std::int64_t i = 0; i < rows; ++i) {
    double* const row = out + i * block_stride;
    std::copy_n(from + i * stride + first, count, row);
    std::fill(row + count, row + padded, 0.0);
  }
  return padded;
}

}  // namespace

void multiply_transposed(const Kernels& kernels, const double* a, std::int64_t rows, const double* b,
                         std::int64_t columns, std::int64_t inner, int threads, double* out) {
  const std::int64_t blocks = (inner + block_samples - 1) / block_samples;
  const std::int64_t tasks = (rows + task_rows - 1) / task_rows;
  const auto block_size = [&](std::int64_t block) { return std::min(block_samples, inner - block * block_samples); };
  std::vector<Buffer> packed_b(static_cast<std::size_t>(blocks));  // as right factor
  const std::int64_t useful =
      std::clamp<std::int64_t>(rows * columns * inner / multiply_adds_worth_a_thread, 1, threads);
  Team::run(static_cast<int>(useful), [&](Team& team, int) {
    team.for_each(blocks, [&](std::int64_t block) {
      const Buffer copy(columns * block_stride);
      const std::int64_t padded =
          copy_columns(b, columns, inner, block * block_samples, block_size(block), copy.data());
      Buffer& packed = packed_b[static_cast<std::size_t>(block)];
      packed = Buffer(columns * padded);
      kernels.float64.pack_right_rows(copy.data(), block_stride, columns, padded, nullptr, packed.data());
    });
    const Buffer copy(task_rows * block_stride), packed(task_rows * block_samples);
    team.for_each(tasks, [&](std::int64_t task) {
      const std::int64_t first = task * task_rows, count = std::min(task_rows, rows - first);
      double* targets[task_rows];
      for (std::int64_t i = 0; i < count; ++i) {
        targets[i] = out + (first + i) * columns;
        std::fill_n(targets[i], columns, 0.0);
      }
      for (std::int64_t block = 0; block < blocks; ++block) {
        const std::int64_t padded =
            copy_columns(a + first * inner, count, inner, block * block_samples, block_size(block), copy.data());
        kernels.float64.pack_left_rows(copy.data(), block_stride, count, padded, nullptr, packed.data());
        kernels.float64.multiply(packed.data(), count, packed_b[static_cast<std::size_t>(block)].data(), columns,
                                 padded, nullptr, nullptr, nullptr, targets);
      }
    });
  });
}

}  // namespace linattn
