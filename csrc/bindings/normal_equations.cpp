#include "../core/normal_equations.hpp"

#include <pybind11/stl.h>

#include <mutex>

#include "../kernels/isa.hpp"
#include "data.hpp"
#include "register.hpp"

namespace linattn::bindings {

namespace {

// Data and its packed samples. Calls from several threads wait for one another.
class NormalEquations {
 public:
  NormalEquations(const py::object& storage, const std::optional<Offsets>& offsets, const py::object& target_storage,
                  const std::optional<Offsets>& target_offsets, const std::optional<Doubles>& weights,
                  const std::string& positions, const std::optional<Offsets>& pairs,
                  const std::optional<Offsets>& queries, bool keep)
      : data_(storage, offsets, target_storage, target_offsets, weights, positions, pairs, queries),
        store_(kernels(), *data_, keep) {}

  py::tuple kronecker_factors(int threads) {
    const std::int64_t pairs = (*data_).pairs(), queries = (*data_).queries();
    Doubles of_pairs({pairs, pairs}), of_queries({queries, queries}), diagonal({pairs, queries});
    const KroneckerSums sums{of_pairs.mutable_data(), of_queries.mutable_data(), diagonal.mutable_data()};
    run([&](const Monitor& monitor) { linattn::kronecker_factors(store_, checked_threads(threads), monitor, sums); });
    return py::make_tuple(of_pairs, of_queries, diagonal);
  }

  py::tuple normal(const Doubles& coefficients, int threads) {
    const std::int64_t m = require_coefficients(coefficients);
    Doubles product({m, features()}), energy(m);
    double *const out = product.mutable_data(), *const squares = energy.mutable_data();
    run([&](const Monitor& monitor) {
      normal_product(store_, coefficients.data(), m, checked_threads(threads), monitor, out, squares);
    });
    return py::make_tuple(product, energy);
  }

  py::tuple gradient(const Doubles& coefficients, int threads) {
    const std::int64_t m = require_coefficients(coefficients);
    require(m > 0 && m == (*data_).d_out(), "coefficients: one row a target is needed");
    Doubles total({m, features()}), error(m);
    double *const out = total.mutable_data(), *const squares = error.mutable_data();
    run([&](const Monitor& monitor) {
      residual_gradient(store_, coefficients.data(), checked_threads(threads), monitor, out, squares);
    });
    return py::make_tuple(total, error);
  }

 private:
  std::int64_t features() const { return (*data_).pairs() * (*data_).queries(); }

  std::int64_t require_coefficients(const Doubles& coefficients) const {
    require(coefficients.ndim() == 2 && coefficients.shape(0) > 0 && coefficients.shape(1) == features(),
            "coefficients: must be (m, features)");
    return coefficients.shape(0);
  }

  template <typename Body>
  void run(const Body& body) {
    const py::object none = py::none();
    const Monitor monitor = make_monitor(none);
    const py::gil_scoped_release release;
    const std::lock_guard<std::mutex> lock(mutex_);
    body(monitor);
  }

  OwnedData data_;
  SampleStore store_;
  std::mutex mutex_;
};

}  // namespace

void register_normal_equations(py::module_& module) {
  module.def("pass_slabs", &pass_slabs, py::arg("samples"), py::arg("entries"),
             "Slabs into which a pass over samples is cut, each with sums of so many entries.");
  py::class_<NormalEquations>(module, "NormalEquations",
                              "The Gram of a batch as an operator; `keep` holds on to the packed samples.")
      .def(py::init<const py::object&, const std::optional<Offsets>&, const py::object&, const std::optional<Offsets>&,
                    const std::optional<Doubles>&, const std::string&, const std::optional<Offsets>&,
                    const std::optional<Offsets>&, bool>(),
           py::arg("tokens"), py::arg("offsets"), py::arg("targets"), py::arg("target_offsets"), py::arg("weights"),
           py::arg("positions"), py::arg("pairs"), py::arg("queries"), py::arg("keep"))
      .def("kronecker_factors", &NormalEquations::kronecker_factors, py::arg("threads"),
           "sum w s s' (pairs, pairs), sum w z z' (queries, queries), and the Gram's diagonal (pairs, queries).")
      .def("normal", &NormalEquations::normal, py::arg("coefficients"), py::arg("threads"),
           "sum w (C h) h' (m, p) and sum w (C h)^2 (m,) for C (m, p).")
      .def("gradient", &NormalEquations::gradient, py::arg("coefficients"), py::arg("threads"),
           "sum w (y - C h) h' (d_out, p) and sum w (y - C h)^2 (d_out,) for C (d_out, p).");
}

}  // namespace linattn::bindings
