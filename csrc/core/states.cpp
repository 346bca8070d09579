#include "states.hpp"

#include "../common/block_sizes.hpp"

namespace linattn {

void StateReader::read(std::int64_t first, std::int64_t count, double* s, std::int64_t stride) {
  const Tokens& memory = states_.memory;
  const auto gather = memory.scalar() == Scalar::float32 ? kernels_.gather_float32 : kernels_.gather_float64;
  const std::int64_t columns = memory.width(), rows = memory[first].length, width = padded_samples(count);
  sequences_.resize(static_cast<std::size_t>(count));
  memory.copy(first, first + count, sequences_.data());
  if (!states_.symmetric) {
    if (rows == 1) {  // numpy may say anything about the stride of an axis of length one
      for (Sequence& sequence : sequences_) sequence.row_stride = columns;
    }
    gather(sequences_.data(), count, 0, rows, columns, width, s, stride);
    return;
  }
  for (std::int64_t j = 0; j < columns; ++j) {  // row j of M from its diagonal on
    for (std::int64_t i = 0; i < count; ++i) {
      Sequence part = memory.row(memory[first + i], j);
      part = memory.column(part, j);
      part.row_stride = columns - j;
      sequences_[static_cast<std::size_t>(i)] = part;
    }
    gather(sequences_.data(), count, 0, 1, columns - j, width, s, stride);
    s += (columns - j) * stride;
  }
}

}  // namespace linattn
