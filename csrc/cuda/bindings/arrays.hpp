// Arrays of a device, from anything that has __cuda_array_interface__: checked, never copied.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <vector>

#include "../platform.hpp"

namespace linattn::cuda::bindings {

namespace py = pybind11;

// What an argument's interface says; errors begin with the argument's name.
class DeviceArray {
 public:
  DeviceArray(const char* name, const py::object& object);

  const std::vector<std::int64_t>& shape() const { return shape_; }
  std::int64_t size() const;  // numbers
  std::int64_t bytes() const;
  std::int64_t dimensions() const { return static_cast<std::int64_t>(shape_.size()); }
  const char* name() const { return name_; }
  void* pointer() const { return data_; }

  // Each raises unless the dtype is the one asked for.
  bool require_float() const;  // float32 (true) or float64 (false)
  const double* doubles() const;
  const std::int64_t* integers() const;
  double* output() const;  // float64, not read-only
  std::int64_t* integer_output() const;
  // Memory for anything, at least so many bytes.
  double* memory(std::int64_t needed) const;

  const DeviceArray& require_shape(const std::vector<std::int64_t>& shape, const char* words) const;
  [[noreturn]] void refuse(const std::string& need) const;

 private:
  void require_c_order(const py::object& strides) const;
  void require_writable() const;

  const char* name_;
  void* data_ = nullptr;
  std::vector<std::int64_t> shape_;
  std::string type_;  // as in the interface, without the byte order: "f8"
  bool read_only_ = false;
};

// The arrays of one call: all on one device, which is current while `launch` runs.
class Call {
 public:
  DeviceArray array(const char* name, const py::object& object);

  // Without the GIL, and on the arrays' device.
  template <typename Body>
  void launch(std::uintptr_t stream, const Body& body) const {
    const py::gil_scoped_release release;
    const DeviceGuard guard(device_);
    body(reinterpret_cast<cudaStream_t>(stream));
  }

 private:
  class DeviceGuard {
   public:
    explicit DeviceGuard(int device);
    ~DeviceGuard();
    DeviceGuard(const DeviceGuard&) = delete;
    DeviceGuard& operator=(const DeviceGuard&) = delete;

   private:
    int previous_ = 0;
  };

  int device_ = -1;
  std::string first_;  // the argument that decided the device
};

void require(bool condition, const std::string& message);

}  // namespace linattn::cuda::bindings
