// Samples from arrays of a device: checked, and kept for as long as Python keeps them.
#pragma once

#include <optional>
#include <string>

#include "../samples.hpp"
#include "arrays.hpp"

namespace linattn::cuda::bindings {

// The most coordinates of a token or an output, and rows of coefficients: a grid of thread blocks is no longer.
constexpr std::int64_t most_coordinates = 65535;

// The size, if it is one of least .. most; else an error that begins with its name.
std::int64_t checked_size(const char* name, std::int64_t size, std::int64_t least, std::int64_t most);

// Sizes as Python says them; n_pairs and n_queries both or none.
Sizes sizes_from(const std::string& positions, std::int64_t n_sequences, std::int64_t n_rows, std::int64_t d,
                 std::int64_t d_out, std::optional<std::int64_t> n_pairs, std::optional<std::int64_t> n_queries);

// (N, n, d), or (rows, d) with offsets.
Tokens tokens_from(Call& call, const py::object& tokens, const py::object& offsets);

// What Python sees as _cuda.Samples: the arrays, and all that was checked of them. It never changes, so that threads
// may share it.
class OwnedSamples {
 public:
  // Offsets, targets, weights, and pairs with queries may be None; see _cuda.pyi.
  OwnedSamples(const py::object& tokens, const py::object& offsets, const py::object& targets,
               const py::object& weights, const std::string& positions, const py::object& pairs,
               const py::object& queries);

  const Samples& operator*() const { return samples_; }
  const Sizes& sizes() const { return samples_.sizes; }
  bool has_targets() const { return samples_.sizes.d_out > 0; }
  // The start of a call with these arrays: the others must be on the same device.
  Call call() const { return call_; }

 private:
  Call call_;
  Samples samples_{};
  py::tuple arrays_;  // kept alive
};

}  // namespace linattn::cuda::bindings
