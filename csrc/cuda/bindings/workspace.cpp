#include <pybind11/stl.h>

#include <algorithm>

#include "../layer.hpp"
#include "../moments.hpp"
#include "../normal_equations.hpp"
#include "data.hpp"
#include "register.hpp"

namespace linattn::cuda::bindings {

namespace {

std::int64_t bytes_for(const std::string& operation, const Sizes& sizes, std::int64_t m, bool kept) {
  const auto require_m = [&] { require(m > 0, "m: must be positive for '" + operation + "'"); };
  const auto require_outputs = [&] { require(sizes.d_out > 0, "d_out: must be positive for '" + operation + "'"); };
  if (operation == "accumulate") return std::max(moments_workspace(sizes, true), moments_workspace(sizes, false));
  if (operation == "keep_samples") return keep_workspace(sizes);
  if (operation == "kronecker_factors") return kronecker_workspace(sizes, kept);
  if (operation == "normal") {
    require_m();
    return normal_workspace(sizes, m, kept);
  }
  require_outputs();
  if (operation == "gradient") return gradient_workspace(sizes, kept);
  require(!sizes.selected, "n_pairs, n_queries: must be None for '" + operation + "'");
  if (operation == "evaluate_coefficients") return coefficients_workspace(sizes);
  require(operation == "evaluate_heads", "operation: there is none called '" + operation + "'");
  require_m();
  return heads_workspace(sizes, m);
}

}  // namespace

void register_workspace(py::module_& module) {
  using Count = std::optional<std::int64_t>;
  module.def(
      "workspace_bytes",
      [](const std::string& operation, const std::string& positions, std::int64_t n_sequences, std::int64_t n_rows,
         std::int64_t d, std::int64_t d_out, Count n_pairs, Count n_queries, std::int64_t m, bool kept) {
        return bytes_for(operation, sizes_from(positions, n_sequences, n_rows, d, d_out, n_pairs, n_queries), m, kept);
      },
      py::arg("operation"), py::kw_only(), py::arg("positions"), py::arg("n_sequences"), py::arg("n_rows"),
      py::arg("d"), py::arg("d_out"), py::arg("n_pairs"), py::arg("n_queries"), py::arg("m") = 0,
      py::arg("kept") = false, "Bytes of workspace that an operation needs.");
  module.def(
      "kept_bytes",
      [](const std::string& positions, std::int64_t n_sequences, std::int64_t n_rows, std::int64_t d, Count n_pairs,
         Count n_queries) {
        return 8 * kept_doubles(sizes_from(positions, n_sequences, n_rows, d, 0, n_pairs, n_queries));
      },
      py::arg("positions"), py::arg("n_sequences"), py::arg("n_rows"), py::arg("d"), py::arg("n_pairs"),
      py::arg("n_queries"), "Bytes of the samples of a whole batch.");
  module.def(
      "gram_size",
      [](std::int64_t d, const std::string& positions, Count n_pairs, Count n_queries) {
        return sizes_from(positions, 1, 1, d, 0, n_pairs, n_queries).gram_entries();
      },
      py::arg("d"), py::arg("positions"), py::arg("n_pairs"), py::arg("n_queries"), "Entries of the compact Gram.");
  module.def(
      "summation_steps",
      [](const std::string& positions, std::int64_t n_sequences, std::int64_t n_rows, std::int64_t d, Count n_pairs,
         Count n_queries) {
        return summation_steps(sizes_from(positions, n_sequences, n_rows, d, 0, n_pairs, n_queries));
      },
      py::arg("positions"), py::arg("n_sequences"), py::arg("n_rows"), py::arg("d"), py::arg("n_pairs"),
      py::arg("n_queries"), "Additions that a summand of the Gram goes through, at most.");
}

}  // namespace linattn::cuda::bindings
