// linattn_fast._cuda: the compiled backend for NVIDIA cards. The same files make the tests' module over the emulator.
#include "register.hpp"

#ifdef LINATTN_CUDA_EMULATED
void register_emulator(pybind11::module_& module);
#endif

PYBIND11_MODULE(LINATTN_CUDA_MODULE, module) {
  module.doc() = "CUDA kernels of linattn_fast. Private: use linattn_fast.";
  linattn::cuda::bindings::register_device(module);
  linattn::cuda::bindings::register_sizes(module);
  linattn::cuda::bindings::register_samples(module);
  linattn::cuda::bindings::register_moments(module);
  linattn::cuda::bindings::register_normal_equations(module);
  linattn::cuda::bindings::register_layer(module);
#ifdef LINATTN_CUDA_EMULATED
  register_emulator(module);
#endif
}
