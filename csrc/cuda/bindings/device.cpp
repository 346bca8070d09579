#include <pybind11/stl.h>

#include <sstream>
#include <string>
#include <vector>

#include "../platform.hpp"
#include "register.hpp"

namespace linattn::cuda::bindings {

namespace {

int driver_version() {
  int version = 0;
  return cudaDriverGetVersion(&version) == cudaSuccess ? version : 0;
}

int runtime_version() {
  int version = 0;
  return cudaRuntimeGetVersion(&version) == cudaSuccess ? version : 0;
}

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  static_cast<void>(cudaGetLastError());  // forget it: the next launch would be blamed
  return 0;
}

std::vector<std::string> architectures() {
  std::istringstream list(LINATTN_CUDA_ARCHITECTURES);
  std::vector<std::string> names;
  for (std::string name; std::getline(list, name, ',');) names.push_back(name);
  return names;
}

}  // namespace

void register_device(pybind11::module_& module) {
  module.def("driver_version", &driver_version, "Newest CUDA version the driver supports; 0: there is no driver.");
  module.def("runtime_version", &runtime_version, "CUDA runtime that is linked in.");
  module.def("device_count", &device_count, "Devices that can be used.");
  module.def("architectures", &architectures, "What the kernels are compiled for.");
}

}  // namespace linattn::cuda::bindings
