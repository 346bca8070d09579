// The runtime's functions over host memory, with devices that the tests make up.
#include <cstring>
#include <vector>

#include "emulator.hpp"
#include "launch_check.hpp"

namespace {

struct Range {
  const char* start;
  std::size_t bytes;
  int device;
};

std::vector<Range> ranges;
cudaError_t last_error = cudaSuccess;
thread_local int current_device = 0;
int device_of_launch = -1;
long launch_count = 0;

cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

cudaError_t require_device() {
  return remember(emulator::settings().devices > 0 ? cudaSuccess : cudaErrorInsufficientDriver);
}

}  // namespace

namespace emulator {

Settings& settings() {
  static Settings own;
  return own;
}

void place(const void* start, std::size_t bytes, int device) {
  ranges.push_back({static_cast<const char*>(start), bytes, device});
}

void forget_places() { ranges.clear(); }

int last_device() { return device_of_launch; }
long launches() { return launch_count; }

bool may_launch(dim3 grid, dim3 block) {
  constexpr unsigned long most_threads = 1024, most_in_x = 0x7fffffff, most_in_y = 65535;
  const unsigned long count = static_cast<unsigned long>(block.x) * block.y * block.z;
  const bool fits = count > 0 && count <= most_threads && grid.x > 0 && grid.x <= most_in_x && grid.y > 0 &&
                    grid.y <= most_in_y && grid.z > 0 && grid.z <= most_in_y;
  ++launch_count;
  device_of_launch = current_device;
  int& left = settings().refuse_launch;
  const bool refused = left == 0;
  if (left >= 0) --left;
  remember(fits && !refused ? cudaSuccess : cudaErrorInvalidConfiguration);
  return fits && !refused && require_device() == cudaSuccess;
}

}  // namespace emulator

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    default:
      return "invalid device ordinal";
  }
}

const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorInvalidConfiguration ? "cudaErrorInvalidConfiguration" : "another emulated error";
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return require_device();
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= emulator::settings().devices) return remember(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = emulator::settings().devices;
  return require_device();
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = emulator::settings().devices > 0 ? 13000 : 0;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  *attributes = {cudaMemoryTypeDevice, 0};
  for (const Range& range : ranges) {
    const auto* const place = static_cast<const char*>(pointer);
    if (place < range.start || place >= range.start + range.bytes) continue;
    *attributes = {range.device < 0 ? cudaMemoryTypeUnregistered : cudaMemoryTypeDevice, range.device};
  }
  return require_device();
}

cudaError_t cudaMemsetAsync(void* pointer, int value, std::size_t bytes, cudaStream_t) {
  std::memset(pointer, value, bytes);
  return cudaSuccess;
}
