#include "../common/block_sizes.hpp"

#include "../common/slabs.hpp"
#include "../kernels/table.hpp"
#include "register.hpp"

namespace linattn::bindings {

void register_block_sizes(pybind11::module_& module) {
  // What estimates of memory rest on; _cpu.pyi says what each is.
  module.attr("BLOCK_STRIDE") = block_stride;
  module.attr("SAMPLE_QUANTUM") = sample_quantum;
  module.def("pass_slabs", &pass_slabs, pybind11::arg("samples"), pybind11::arg("entries"),
             "Slabs into which a pass over samples is cut, each with sums of so many entries.");
}

}  // namespace linattn::bindings
