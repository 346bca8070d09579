// linattn_fast._cpu: the compiled backend for the CPU.
#include "register.hpp"

PYBIND11_MODULE(_cpu, module) {
  module.doc() = "Compiled CPU kernels of linattn_fast. Private: use linattn_fast.";
  linattn::bindings::register_isa(module);
  linattn::bindings::register_block_sizes(module);
  linattn::bindings::register_floating_point(module);
  linattn::bindings::register_samples(module);
  linattn::bindings::register_moments(module);
  linattn::bindings::register_many(module);
  linattn::bindings::register_small_fit(module);
  linattn::bindings::register_normal_equations(module);
  linattn::bindings::register_normal_matrix(module);
  linattn::bindings::register_matrix_product(module);
  linattn::bindings::register_triangular(module);
  linattn::bindings::register_heads(module);
  linattn::bindings::register_layer(module);
  linattn::bindings::register_query_sums(module);
}
