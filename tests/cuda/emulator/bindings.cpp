// What the tests set and ask of the emulator, in the same module as the kernels.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "emulator.hpp"

namespace {

void set_order(const std::string& order, unsigned seed) {
  emulator::Settings& settings = emulator::settings();
  settings.seed = seed;
  if (order == "forward") {
    settings.order = emulator::Order::forward;
  } else if (order == "reverse") {
    settings.order = emulator::Order::reverse;
  } else if (order == "random") {
    settings.order = emulator::Order::random;
  } else {
    throw std::invalid_argument("order: forward, reverse or random");
  }
}

// What each of 64 threads gets that asks the lane after its own for its number; `some`: only half of a warp asks.
std::vector<double> numbers_of_next_lanes(bool some) {
  std::vector<double> numbers(64);
  double* const out = numbers.data();
  emulator::launch(dim3(1), dim3(64), nullptr, [=] {
    const auto thread = static_cast<int>(threadIdx.x);
    if (!some || thread % 2 == 0) out[thread] = __shfl_sync(~0u, static_cast<double>(thread), thread % 32 + 1);
  });
  return numbers;
}

}  // namespace

void register_emulator(pybind11::module_& module) {
  namespace py = pybind11;
  module.def("set_order", &set_order, py::arg("order"), py::arg("seed") = 1, "Order of threads and blocks.");
  module.def("set_tensor_cores", [](bool on) { emulator::settings().tensor_cores = on; }, "Instruction of the tiles.");
  module.def("set_devices", [](int count) { emulator::settings().devices = count; }, "0: as without a driver.");
  module.def(
      "refuse_launch", [](int after) { emulator::settings().refuse_launch = after; }, "Refuse a launch to come.");
  module.def(
      "place",
      [](std::uintptr_t start, std::size_t bytes, int device) {
        emulator::place(reinterpret_cast<const void*>(start), bytes, device);
      },
      "Say on which device memory lies; -1: none.");
  module.def("forget_places", &emulator::forget_places, "All memory is on device 0 again.");
  module.def("last_device", &emulator::last_device, "The device that was current in the last launch.");
  module.def("launches", &emulator::launches, "Launches so far.");
  module.def(
      "current_device",
      [] {
        int device = -1;
        cudaGetDevice(&device);
        return device;
      },
      "The current device of this thread.");
  module.def("numbers_of_next_lanes", &numbers_of_next_lanes, "A shuffle, by all or some of the threads.");
  module.def("set_current_device", [](int device) { cudaSetDevice(device); }, "Make a device current.");
}
