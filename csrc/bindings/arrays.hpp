// numpy arrays to the core's types and back. Every check that keeps the interpreter alive is here, so that the core
// is safe even when it is called without the Python layer's own, friendlier checks.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "../common/monitor.hpp"
#include "../core/tokens.hpp"

namespace linattn::bindings {

namespace py = pybind11;

using Doubles = py::array_t<double, py::array::c_style>;
using Offsets = py::array_t<std::int64_t, py::array::c_style>;

// Tokens together with the arrays it points into. Made with the GIL held; read without it.
struct OwnedTokens {
  // storage: (N, n, d), or (rows, d) with offsets, or a tuple of (n_i, d); float32 or float64, any strides. Sequences
  // of at least `shortest` tokens, 1 or 0.
  OwnedTokens(const char* name, const py::object& storage, const std::optional<Offsets>& offsets,
              std::int64_t shortest = 1);

  std::vector<py::array> arrays;
  std::optional<Offsets> kept_offsets;
  std::optional<Tokens> tokens;

  const Tokens& operator*() const { return *tokens; }
};

void require(bool condition, const std::string& message);

// 0 <= threads is an error, as is more than any machine has.
int checked_threads(int threads);

// Lets Python see signals (Ctrl-C) and progress, at most twenty times a second. callback may be None.
Monitor make_monitor(const py::object& callback);

}  // namespace linattn::bindings
