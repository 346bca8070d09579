#include "isa.hpp"

#include <atomic>
#include <cstdlib>
#include <stdexcept>

namespace linattn {

namespace baseline {
extern const Kernels table;
}
#ifdef LINATTN_X86_KERNELS
namespace avx2 {
extern const Kernels table;
}
namespace avx512 {
extern const Kernels table;
}
#endif

#ifdef LINATTN_TEST_KERNELS
namespace wide {
extern const Kernels table;
}
#endif

namespace {

std::atomic<const Kernels*> selected{nullptr};

const Kernels& find(const std::string& name, const std::string& given_by) {
  std::string possible;
  bool compiled = false;
  for (const InstructionSet& set : instruction_sets()) {
    if (set.kernels->name == name) {
      if (set.supported) return *set.kernels;
      compiled = true;
    }
    if (set.supported) possible += (possible.empty() ? "" : ", ") + std::string(set.kernels->name);
  }
  throw std::invalid_argument(given_by + ": '" + name + "' " +
                              (compiled ? "is not supported by this processor" : "is not an instruction set") +
                              "; possible here: " + possible);
}

const Kernels& automatic() {
  if (const char* forced = std::getenv("LINATTN_ISA"); forced != nullptr && *forced != '\0') {
    return find(forced, "LINATTN_ISA");
  }
  const Kernels* best = nullptr;
  for (const InstructionSet& set : instruction_sets()) {
    if (set.supported) best = set.kernels;
  }
  return *best;
}

}  // namespace

std::vector<InstructionSet> instruction_sets() {
  std::vector<InstructionSet> sets{{&baseline::table, true}};
#ifdef LINATTN_X86_KERNELS
  __builtin_cpu_init();
  const bool fma = __builtin_cpu_supports("fma");
#ifdef LINATTN_TEST_KERNELS
  sets.insert(sets.begin(), {&wide::table, fma && __builtin_cpu_supports("avx2")});
#endif
  sets.push_back({&avx2::table, fma && __builtin_cpu_supports("avx2")});
  sets.push_back({&avx512::table, fma && __builtin_cpu_supports("avx512f")});
#endif
  return sets;
}

const Kernels& kernels() {
  const Kernels* current = selected.load();
  if (current == nullptr) {
    current = &automatic();
    selected.store(current);
  }
  return *current;
}

void select_instruction_set(const std::string& name) {
  selected.store(name.empty() ? &automatic() : &find(name, "name"));
}

}  // namespace linattn
