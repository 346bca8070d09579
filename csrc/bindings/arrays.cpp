#include "arrays.hpp"

#include <chrono>
#include <stdexcept>

#include "../core/floating_point.hpp"

namespace linattn::bindings {

namespace {

Scalar scalar_of(const char* name, const py::array& array) {
  if (py::isinstance<py::array_t<double>>(array)) return Scalar::float64;
  if (py::isinstance<py::array_t<float>>(array)) return Scalar::float32;
  throw py::type_error(std::string(name) + ": dtype must be float32 or float64");
}

std::int64_t element_stride(const char* name, const py::array& array, py::ssize_t axis) {
  const py::ssize_t stride = array.strides(axis), size = array.itemsize();
  // numpy leaves the stride of an axis of length one undefined.
  if (array.shape(axis) <= 1) return 0;
  require(stride % size == 0, std::string(name) + ": strides must be multiples of the item size");
  return stride / size;
}

void require_aligned(const char* name, const py::array& array) {
  const auto address = reinterpret_cast<std::uintptr_t>(array.data());
  require(address % static_cast<std::uintptr_t>(array.itemsize()) == 0,
          std::string(name) + ": the array must be aligned");
}

// The last two axes of an array as one sequence; axis 0 of a dense array is skipped.
Sequence sequence_of(const char* name, const py::array& array) {
  const py::ssize_t rows = array.ndim() - 2, columns = array.ndim() - 1;
  require_aligned(name, array);
  std::int64_t column_stride = element_stride(name, array, columns);
  if (array.shape(columns) == 1) column_stride = 1;
  std::int64_t row_stride = element_stride(name, array, rows);
  if (array.shape(rows) == 1) row_stride = array.shape(columns);
  return {array.data(), array.shape(rows), row_stride, column_stride};
}

}  // namespace

void require(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument(message);
}

int checked_threads(int threads) {
  require(threads >= 1 && threads <= 65536, "threads: must be between 1 and 65536");
  return threads;
}

OwnedTokens::OwnedTokens(const char* name, const py::object& storage, const std::optional<Offsets>& offsets,
                         std::int64_t shortest)
    : kept_offsets(offsets) {
  const std::string where(name);
  if (py::isinstance<py::tuple>(storage)) {
    require(!offsets, where + ": a tuple of arrays takes no offsets");
    std::vector<Sequence> sequences;
    std::optional<Scalar> scalar;
    for (const py::handle& item : py::reinterpret_borrow<py::tuple>(storage)) {
      if (!py::isinstance<py::array>(item)) throw py::type_error(where + ": every item must be an array");
      py::array array = py::reinterpret_borrow<py::array>(item);
      require(array.ndim() == 2 && array.shape(0) >= shortest && array.shape(1) > 0,
              where + ": every item must be (n, d)");
      require(arrays.empty() || array.shape(1) == arrays.front().shape(1), where + ": all items must have the same d");
      if (!scalar) scalar = scalar_of(name, array);
      require(*scalar == scalar_of(name, array), where + ": all items must have the same dtype");
      sequences.push_back(sequence_of(name, array));
      arrays.push_back(std::move(array));
    }
    require(!sequences.empty(), where + ": no sequences");
    tokens = Tokens::list(std::move(sequences), *scalar, arrays.front().shape(1));
    return;
  }

  if (!py::isinstance<py::array>(storage)) throw py::type_error(where + ": must be an array or a tuple of arrays");
  py::array array = py::reinterpret_borrow<py::array>(storage);
  require(array.ndim() == (offsets ? 2 : 3) && (array.size() > 0 || shortest == 0) && array.shape(array.ndim() - 1) > 0,
          where + (offsets ? ": must be (rows, d), not empty" : ": must be (N, n, d), not empty"));
  const Scalar scalar = scalar_of(name, array);
  const Sequence sequence = sequence_of(name, array);
  const std::int64_t d = array.shape(array.ndim() - 1);
  if (!offsets) {
    tokens = Tokens::dense(sequence, scalar, array.shape(0), d, element_stride(name, array, 0));
  } else {
    require(offsets->ndim() == 1 && offsets->size() >= 2, "offsets: must have N + 1 entries");
    const std::int64_t* starts = offsets->data();
    const std::int64_t count = offsets->size() - 1;
    require(starts[0] == 0 && starts[count] == array.shape(0), "offsets: must run from 0 to the number of rows");
    for (std::int64_t i = 0; i < count; ++i) {
      require(starts[i] + shortest <= starts[i + 1], "offsets: must increase");
    }
    tokens = Tokens::flat(sequence, scalar, starts, count, d);
  }
  arrays.push_back(std::move(array));
}

Monitor make_monitor(const py::object& callback) {
  using Clock = std::chrono::steady_clock;
  const auto interval = std::chrono::milliseconds(50);
  // A pointer: copying a py::object without the GIL would not be safe, and the caller's reference outlives the call.
  const py::object* const call = callback.is_none() ? nullptr : &callback;
  return [=, next = Clock::now() + interval](std::int64_t done) mutable {
    if (Clock::now() < next) return;
    const KeptEnvironment environment;  // numpy, for one, clears the flag that an UnderflowWatch reads
    const py::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (call != nullptr) (*call)(done);
    next = Clock::now() + interval;
  };
}

}  // namespace linattn::bindings
