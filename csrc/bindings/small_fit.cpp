#include "../core/small_fit.hpp"

#include "../core/kept_rows.hpp"
#include "../core/sequence_group.hpp"
#include "../kernels/isa.hpp"
#include "arrays.hpp"
#include "register.hpp"
#include "samples.hpp"

namespace linattn::bindings {

namespace {

py::object fit(const OwnedSamples& owned, double weight, double alpha, const SmallLimits& limits, bool certify) {
  const SamplesInUse in_use(owned, /*with_squares=*/false);
  const Samples& data = *in_use;
  require(data.targets != nullptr && data.selection == nullptr && data.states == nullptr,
          "samples: must be tokens with targets and all features");
  require(data.positions != Positions::all, "positions: must be 'last' or 'causal'");
  require(data.d_out() > 0 && weight > 0, "weight: must be positive, and so must d_out");
  Doubles C({data.d_out(), data.pairs() * data.queries()});
  double* const coefficients = C.mutable_data();
  const Kernels& chosen = kernels();
  SmallFit found;
  try {
    const py::gil_scoped_release release;
    found = fit_small(chosen, data, weight, alpha, limits, certify, coefficients);
  } catch (const NonFinite&) {
  }
  if (!found.safe) return py::none();
  py::tuple steps(found.corrections);
  for (std::int64_t i = 0; i < found.corrections; ++i) {
    steps[static_cast<std::size_t>(i)] = found.steps[static_cast<std::size_t>(i)];
  }
  return py::make_tuple(C, found.condition, found.mean_target, found.mean_error, steps, found.largest_summand,
                        found.size, found.scaled_size, found.largest_scale, found.smallest, found.largest, found.tau,
                        found.fraction, py::make_tuple(found.seconds[0], found.seconds[1], found.seconds[2], found.seconds[3]));
}

}  // namespace

void register_small_fit(py::module_& module) {
  py::class_<SmallLimits>(module, "SmallLimits", "What roundings may have done to a small problem of some sizes.")
      .def(py::init([](double level, double cancelled, double ridge, double lost, double rounding, double backward,
                       double margin) {
             return SmallLimits{level, cancelled, ridge, lost, rounding, backward, margin};
           }),
           py::kw_only(), py::arg("level"), py::arg("cancelled"), py::arg("ridge"), py::arg("lost"),
           py::arg("rounding"), py::arg("backward"), py::arg("margin"));
  module.def("roundings_of_rows", &roundings_of_rows, py::arg("samples"),
             "Roundings that a summand of the Gram of a small problem goes through, at most.");
  module.def("fit_small", &fit, py::arg("samples"), py::arg("weight"), py::arg("alpha"), py::arg("limits"),
             py::arg("certify"), "Coefficients and proof of a small problem on the calling thread; None if not safe.");
}

}  // namespace linattn::bindings
