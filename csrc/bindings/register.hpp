// One register_* function a topic; module.cpp is their table of contents.
#pragma once

#include <pybind11/pybind11.h>

namespace linattn::bindings {

void register_isa(pybind11::module_& module);
void register_block_sizes(pybind11::module_& module);
void register_floating_point(pybind11::module_& module);
void register_samples(pybind11::module_& module);
void register_moments(pybind11::module_& module);
void register_many(pybind11::module_& module);
void register_small_fit(pybind11::module_& module);
void register_normal_equations(pybind11::module_& module);
void register_normal_matrix(pybind11::module_& module);
void register_matrix_product(pybind11::module_& module);
void register_triangular(pybind11::module_& module);
void register_heads(pybind11::module_& module);
void register_layer(pybind11::module_& module);
void register_query_sums(pybind11::module_& module);

}  // namespace linattn::bindings
