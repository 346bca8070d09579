#include "arrays.hpp"

namespace linattn::cuda::bindings {

namespace {

std::string words(const std::vector<std::int64_t>& shape) {
  std::string text = "(";
  for (const std::int64_t length : shape) text += std::to_string(length) + (shape.size() == 1 ? ",)" : ", ");
  if (shape.size() != 1) text.replace(text.size() - (shape.empty() ? 0 : 2), 2, ")");
  return text;
}

}  // namespace

void require(bool condition, const std::string& message) {
  if (!condition) throw py::value_error(message);
}

DeviceArray::DeviceArray(const char* name, const py::object& object) : name_(name) {
  const std::string start = std::string(name) + ": ";
  if (!py::hasattr(object, "__cuda_array_interface__")) {
    throw py::type_error(start + "an array with __cuda_array_interface__ is needed, got " +
                         py::str(py::type::of(object).attr("__name__")).cast<std::string>());
  }
  const auto interface = object.attr("__cuda_array_interface__").cast<py::dict>();
  for (const auto length : interface["shape"].cast<py::tuple>()) shape_.push_back(length.cast<std::int64_t>());
  const auto data = interface["data"].cast<py::tuple>();
  data_ = reinterpret_cast<void*>(data[0].cast<std::uintptr_t>());
  read_only_ = data[1].cast<bool>();
  const auto type = interface["typestr"].cast<std::string>();
  if (type.size() < 3 || type[0] == '>') throw py::type_error(start + "dtype " + type + " is not supported");
  type_ = type.substr(1);
  if (interface.contains("mask") && !interface["mask"].is_none()) {
    throw py::type_error(start + "masked arrays are not supported");
  }
  require_c_order(interface.contains("strides") ? py::object(interface["strides"]) : py::none());
}

std::int64_t DeviceArray::size() const {
  std::int64_t size = 1;
  for (const std::int64_t length : shape_) size *= length;
  return size;
}

std::int64_t DeviceArray::bytes() const { return size() * std::stoll(type_.substr(1)); }

void DeviceArray::require_c_order(const py::object& strides) const {
  if (strides.is_none() || size() == 0) return;
  const auto given = strides.cast<py::tuple>();
  std::int64_t expected = std::stoll(type_.substr(1));
  for (std::size_t i = shape_.size(); i-- > 0; expected *= shape_[i]) {
    if (shape_[i] > 1 && given[i].cast<std::int64_t>() != expected) refuse("must be in C order, without gaps");
  }
}

void DeviceArray::refuse(const std::string& need) const {
  throw py::value_error(std::string(name_) + ": " + need + ", got shape " + words(shape_) + " of dtype " + type_);
}

bool DeviceArray::require_float() const {
  if (type_ != "f4" && type_ != "f8") {
    throw py::type_error(std::string(name_) + ": must be float32 or float64, got dtype " + type_);
  }
  return type_ == "f4";
}

const double* DeviceArray::doubles() const {
  if (type_ != "f8") throw py::type_error(std::string(name_) + ": must be float64, got dtype " + type_);
  return static_cast<const double*>(data_);
}

const std::int64_t* DeviceArray::integers() const {
  if (type_ != "i8") throw py::type_error(std::string(name_) + ": must be int64, got dtype " + type_);
  return static_cast<const std::int64_t*>(data_);
}

void DeviceArray::require_writable() const {
  if (read_only_) throw py::value_error(std::string(name_) + ": is read-only, and results are written to it");
}

double* DeviceArray::output() const {
  require_writable();
  return const_cast<double*>(doubles());
}

std::int64_t* DeviceArray::integer_output() const {
  require_writable();
  return const_cast<std::int64_t*>(integers());
}

double* DeviceArray::memory(std::int64_t needed) const {
  require_writable();
  require(bytes() >= needed,
          std::string(name_) + ": " + std::to_string(needed) + " bytes are needed, got " + std::to_string(bytes()));
  require(reinterpret_cast<std::uintptr_t>(data_) % sizeof(double) == 0,
          std::string(name_) + ": the address must be a multiple of 8");
  return static_cast<double*>(data_);
}

const DeviceArray& DeviceArray::require_shape(const std::vector<std::int64_t>& shape, const char* meaning) const {
  if (shape_ != shape) refuse(std::string("must be ") + meaning + " = " + words(shape));
  return *this;
}

DeviceArray Call::array(const char* name, const py::object& object) {
  DeviceArray array(name, object);
  if (array.size() == 0) return array;
  cudaPointerAttributes attributes{};
  LINATTN_CHECK(cudaPointerGetAttributes(&attributes, array.pointer()));
  const std::string start = std::string(name) + ": ";
  require(attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged,
          start + "is not in the memory of a CUDA device");
  if (device_ < 0) {
    device_ = attributes.device;
    first_ = name;
  }
  require(attributes.device == device_, start + "is on device " + std::to_string(attributes.device) + ", but " +
                                            first_ + " is on device " + std::to_string(device_));
  return array;
}

Call::DeviceGuard::DeviceGuard(int device) {
  LINATTN_CHECK(cudaGetDevice(&previous_));
  if (device != previous_) LINATTN_CHECK(cudaSetDevice(device));
}

Call::DeviceGuard::~DeviceGuard() { static_cast<void>(cudaSetDevice(previous_)); }

}  // namespace linattn::cuda::bindings
