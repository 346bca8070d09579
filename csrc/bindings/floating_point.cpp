#include "../core/floating_point.hpp"

#include <cstring>
#include <string>

#include "arrays.hpp"
#include "register.hpp"

namespace linattn::bindings {

namespace {

// The environment as it was, for restore_environment.
py::bytes set_default_environment() {
  std::fenv_t before;
  std::fegetenv(&before);
  std::fesetenv(FE_DFL_ENV);
  return py::bytes(reinterpret_cast<const char*>(&before), sizeof(before));
}

void restore_environment(const std::string& kept) {
  std::fenv_t before;
  require(kept.size() == sizeof(before), "kept: must come from set_default_environment");
  std::memcpy(&before, kept.data(), sizeof(before));
  std::fesetenv(&before);
}

}  // namespace

void register_floating_point(py::module_& module) {
  module.def(
      "keeps_subnormals", &keeps_subnormals,
      "Whether this thread computes with numbers below the smallest normal one, and does not take them for zero.");
  module.def("set_default_environment", &set_default_environment,
             "Set this thread's floating-point environment to the default; return what it was.");
  module.def("restore_environment", &restore_environment, py::arg("kept"),
             "Set this thread's floating-point environment to one that set_default_environment returned.");
}

}  // namespace linattn::bindings
