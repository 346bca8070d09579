#include "../core/heads_by_ranks.hpp"
#include "arrays.hpp"
#include "register.hpp"

namespace linattn::bindings {

namespace {

// Heads (H, rows, columns).
Doubles as_array(const Matrix& heads, std::int64_t rows, std::int64_t columns) {
  Doubles array({heads.rows(), rows, columns});
  std::copy_n(heads[0], heads.size(), array.mutable_data());
  return array;
}

py::object by_ranks(const Doubles& coefficients, const Doubles& points, const Doubles& outputs, std::int64_t squares,
                    std::int64_t forms, double tolerance, double rounding, double negligible, std::int64_t fewer_than) {
  require(points.ndim() == 2 && points.shape(1) > 0, "points: must be (m, d)");
  require(coefficients.ndim() == 2 && coefficients.shape(0) > 0, "coefficients: must be (d_out, p)");
  const std::int64_t d = points.shape(1), d_out = coefficients.shape(0), available = points.shape(0);
  require(coefficients.shape(1) == d * (d + 1) / 2 * d, "coefficients: must be (d_out, p)");
  require(outputs.ndim() == 2 && outputs.shape(0) == available && outputs.shape(1) == d_out,
          "outputs: must be (m, d_out)");
  require(0 < squares && squares <= available && 0 < forms && forms <= available, "squares, forms: too many points");
  const RankQuestion question{coefficients.data(), d_out,     d,          points.data(),
                              outputs.data(),      available, squares,    forms,
                              tolerance,           rounding,  negligible, fewer_than};
  std::optional<RankAnswer> found;
  {
    const py::gil_scoped_release release;
    found = heads_by_ranks(question);
  }
  if (!found) return py::none();
  return py::make_tuple(as_array(found->V, d_out, d), as_array(found->Q, d, d), found->residual, found->at_least,
                        found->fewer_leave);
}

}  // namespace

void register_heads(py::module_& module) {
  module.def("heads_by_ranks", &by_ranks, py::arg("coefficients"), py::arg("points"), py::arg("outputs"),
             py::arg("squares"), py::arg("forms"), py::arg("tolerance"), py::arg("rounding"), py::arg("negligible"),
             py::arg("fewer_than"),
             "V, Q, their residual, the fewest heads possible and what one fewer leaves; None where ranks do not give "
             "heads that reproduce the coefficients to rounding.");
}

}  // namespace linattn::bindings
