// One function a subject; module.cpp calls them all.
#pragma once

#include <pybind11/pybind11.h>

namespace linattn::cuda::bindings {

void register_device(pybind11::module_& module);
void register_sizes(pybind11::module_& module);
void register_samples(pybind11::module_& module);
void register_moments(pybind11::module_& module);
void register_normal_equations(pybind11::module_& module);
void register_layer(pybind11::module_& module);

}  // namespace linattn::cuda::bindings
