// The instruction sets this build has kernels for, and the choice among them.
#pragma once

#include <string>
#include <vector>

#include "table.hpp"

namespace linattn {

struct InstructionSet {
  const Kernels* kernels;
  bool supported;  // by this processor and operating system
};

// All compiled instruction sets, the best last.
std::vector<InstructionSet> instruction_sets();

// The kernels in use: those last selected, else those LINATTN_ISA names, else the best supported.
// Throws std::invalid_argument when LINATTN_ISA names none of them.
const Kernels& kernels();

// Selects by name; an empty name goes back to the automatic choice.
void select_instruction_set(const std::string& name);

}  // namespace linattn
