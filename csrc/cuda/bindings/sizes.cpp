#include <pybind11/stl.h>

#include <algorithm>

#include "../layer.hpp"
#include "../moments.hpp"
#include "../normal_equations.hpp"
#include "register.hpp"
#include "samples.hpp"

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

std::int64_t workspace_bytes(const Sizes& given, const std::string& operation, std::int64_t m,
                             std::optional<std::int64_t> d_out, bool kept) {
  Sizes sizes = given;
  if (d_out) sizes.d_out = checked_size("d_out", *d_out, 0, most_coordinates);
  return bytes_for(operation, sizes, m, kept);
}

}  // namespace

void register_sizes(py::module_& module) {
  py::class_<Sizes>(module, "Sizes", "What the sizes of results and of memory follow from: numbers, and no arrays.",
                    py::module_local())
      .def(py::init(&sizes_from), py::kw_only(), py::arg("positions"), py::arg("n_sequences"), py::arg("n_rows"),
           py::arg("d"), py::arg("d_out") = 0, py::arg("n_pairs") = py::none(), py::arg("n_queries") = py::none())
      .def("workspace_bytes", &workspace_bytes, py::arg("operation"), py::kw_only(), py::arg("m") = 0,
           py::arg("d_out") = py::none(), py::arg("kept") = false, "Bytes of workspace that an operation needs.")
      .def_property_readonly(
          "kept_bytes", [](const Sizes& sizes) { return 8 * kept_doubles(sizes); }, "Bytes of all samples.")
      .def_property_readonly("gram_size", &Sizes::gram_entries, "Entries of the compact Gram.")
      .def_property_readonly("summation_steps", &summation_steps,
                             "Additions that a summand of the Gram goes through, at most.");
}

}  // namespace linattn::cuda::bindings
