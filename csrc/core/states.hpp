// States in the caller's memory: what each query attends to, given as it is. Nothing is copied.
#pragma once

#include <cstdint>
#include <vector>

#include "../common/index.hpp"
#include "../kernels/table.hpp"
#include "tokens.hpp"

namespace linattn {

// The memory M (d_v, d_k) of each state is a sequence of d_v rows; one that is not a matrix has a single row.
struct States {
  const Tokens& memory;
  bool symmetric;  // only the entries j <= k of M (d, d) count, in the order of pairs

  // Number of entries that count: rows of s.
  std::int64_t entries() const { return symmetric ? pair_count(memory.width()) : memory[0].length * memory.width(); }
};

// Copies the memories of states into rows of samples. Holds scratch memory: one per thread.
class StateReader {
 public:
  StateReader(const Kernels& kernels, const States& states) : kernels_(kernels), states_(states) {}

  // s (entries() rows of `stride`) = the memory of states first .. first + count, one to a column.
  void read(std::int64_t first, std::int64_t count, double* s, std::int64_t stride);

 private:
  const Kernels& kernels_;
  const States& states_;
  std::vector<Sequence> sequences_;
};

}  // namespace linattn
