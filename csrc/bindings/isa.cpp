#include "../kernels/isa.hpp"

#include <pybind11/stl.h>

#include <utility>

#include "../core/peak.hpp"
#include "arrays.hpp"
#include "register.hpp"

namespace linattn::bindings {

void register_isa(pybind11::module_& module) {
  module.def(
      "instruction_sets",
      [] {
        std::vector<std::pair<std::string, bool>> names;
        for (const InstructionSet& set : instruction_sets()) names.emplace_back(set.kernels->name, set.supported);
        return names;
      },
      "Every compiled instruction set and whether this processor runs it, the best last.");
  module.def("instruction_set", [] { return std::string(kernels().name); }, "The instruction set in use.");
  module.def(
      "multiply_add_rate",
      [](int threads) {
        threads = checked_threads(threads);
        const pybind11::gil_scoped_release release;
        return multiply_add_rate(kernels(), threads);
      },
      pybind11::arg("threads"), "Floating-point operations a second of multiply-adds in registers, measured.");
  module.def("select_instruction_set", &select_instruction_set, pybind11::arg("name"),
             "Use the named instruction set; '' chooses as at the start.");
}

}  // namespace linattn::bindings
