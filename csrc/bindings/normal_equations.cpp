#include "normal_equations.hpp"

#include <pybind11/stl.h>

#include "../core/normal_equations.hpp"
#include "../kernels/isa.hpp"
#include "register.hpp"

namespace linattn::bindings {

NormalEquations::NormalEquations(std::shared_ptr<const OwnedSamples> owned, bool keep)
    : owned_(std::move(owned)), data_(*owned_, /*with_squares=*/false), store_(kernels(), *data_, keep) {}

py::tuple NormalEquations::kronecker_factors(int threads) {
  const std::int64_t pairs = (*data_).pairs(), queries = (*data_).queries();
  Doubles of_pairs({pairs, pairs}), of_queries({queries, queries}), diagonal({pairs, queries});
  const KroneckerSums sums{of_pairs.mutable_data(), of_queries.mutable_data(), diagonal.mutable_data()};
  run([&](const Monitor& monitor) { linattn::kronecker_factors(store_, checked_threads(threads), monitor, sums); });
  return py::make_tuple(of_pairs, of_queries, diagonal);
}

py::tuple NormalEquations::normal(const Doubles& coefficients, int threads) {
  const std::int64_t m = require_coefficients(coefficients);
  Doubles product({m, features()}), energy(m);
  double *const out = product.mutable_data(), *const squares = energy.mutable_data();
  run([&](const Monitor& monitor) {
    normal_product(store_, coefficients.data(), m, checked_threads(threads), monitor, out, squares);
  });
  return py::make_tuple(product, energy);
}

py::object NormalEquations::narrow(const Doubles& coefficients, int threads) {
  const std::int64_t m = require_coefficients(coefficients);
  Doubles product({m, features()}), energy(m);
  double *const out = product.mutable_data(), *const squares = energy.mutable_data();
  bool kept = false;
  run([&](const Monitor& monitor) {
    kept = store_.complete();
    if (kept) narrow_product(store_, coefficients.data(), m, checked_threads(threads), monitor, out, squares);
  });
  if (!kept) return py::none();
  return py::make_tuple(product, energy);
}

py::tuple NormalEquations::gradient(const Doubles& coefficients, int threads) {
  const std::int64_t m = require_coefficients(coefficients);
  require(m > 0 && m == (*data_).d_out(), "coefficients: one row a target is needed");
  Doubles total({m, features()}), error(m);
  double *const out = total.mutable_data(), *const squares = error.mutable_data();
  run([&](const Monitor& monitor) {
    residual_gradient(store_, coefficients.data(), checked_threads(threads), monitor, out, squares);
  });
  return py::make_tuple(total, error);
}

std::int64_t NormalEquations::require_coefficients(const Doubles& coefficients) const {
  require(coefficients.ndim() == 2 && coefficients.shape(0) > 0 && coefficients.shape(1) == features(),
          "coefficients: must be (m, features)");
  return coefficients.shape(0);
}

template <typename Body>
void NormalEquations::run(const Body& body) {
  const py::object none = py::none();
  const Monitor monitor = make_monitor(none);
  const py::gil_scoped_release release;
  const std::lock_guard<std::mutex> lock(mutex_);
  body(monitor);
}

void register_normal_equations(py::module_& module) {
  py::class_<NormalEquations>(module, "NormalEquations",
                              "The Gram of samples as an operator; `keep` holds on to what is packed of them.")
      .def(py::init([](std::shared_ptr<OwnedSamples> samples, bool keep) {
             return std::make_unique<NormalEquations>(std::move(samples), keep);
           }),
           py::arg("samples").none(false), py::kw_only(), py::arg("keep"))
      .def("kronecker_factors", &NormalEquations::kronecker_factors, py::arg("threads"),
           "sum w s s' (pairs, pairs), sum w z z' (queries, queries), and the Gram's diagonal (pairs, queries).")
      .def("normal", &NormalEquations::normal, py::arg("coefficients"), py::arg("threads"),
           "sum w (C h) h' (m, p) and sum w (C h)^2 (m,) for C (m, p).")
      .def("narrow", &NormalEquations::narrow, py::arg("coefficients"), py::arg("threads"),
           "The same with products in float32, from a copy of kept samples; None before a first pass has kept them.")
      .def("gradient", &NormalEquations::gradient, py::arg("coefficients"), py::arg("threads"),
           "sum w (y - C h) h' (d_out, p) and sum w (y - C h)^2 (d_out,) for C (d_out, p).");
}

}  // namespace linattn::bindings
