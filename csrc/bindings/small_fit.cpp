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
                        found.fraction,
                        py::make_tuple(found.seconds[0], found.seconds[1], found.seconds[2], found.seconds[3]));
}

// Whether the last token of some sequence begins with zero, as those do that were padded.
template <typename T>
bool some_end_in_zero(const py::array& tokens) {
  const auto* const last = static_cast<const char*>(tokens.data(0, tokens.shape(1) - 1, 0));
  for (py::ssize_t i = 0; i < tokens.shape(0); ++i) {
    if (*reinterpret_cast<const T*>(last + i * tokens.strides(0)) == 0) return true;
  }
  return false;
}

// The same for tokens (N, n, d) and targets (N, 1, d_out) of weight one, of which only the last token queries.
py::object fit_arrays(const py::array& tokens, const py::array& targets, double alpha, const SmallLimits& limits,
                      bool certify) {
  require(tokens.ndim() == 3 && tokens.shape(0) > 0 && tokens.shape(1) > 0 && tokens.shape(2) > 0,
          "tokens: must be (N, n, d)");
  const OwnedSamples owned(tokens, std::nullopt, targets, std::nullopt, std::nullopt, "last", std::nullopt,
                           std::nullopt, py::none(), false, StreamArrays{py::none(), {}, py::none(), {}, {}, {}});
  const bool narrow = tokens.itemsize() == sizeof(float);  // of the two types that are taken
  if (narrow ? some_end_in_zero<float>(tokens) : some_end_in_zero<double>(tokens)) return py::none();
  return fit(owned, static_cast<double>(tokens.shape(0)), alpha, limits, certify);
}

}  // namespace

void register_small_fit(py::module_& module) {
  py::class_<SmallLimits>(module, "SmallLimits", "What roundings may have done to a small problem of some sizes.")
      .def(py::init(
               [](double level, double cancelled, double ridge, double lost, double rounding, double backward,
                  double margin) { return SmallLimits{level, cancelled, ridge, lost, rounding, backward, margin}; }),
           py::kw_only(), py::arg("level"), py::arg("cancelled"), py::arg("ridge"), py::arg("lost"),
           py::arg("rounding"), py::arg("backward"), py::arg("margin"));
  module.def("roundings_of_rows", &roundings_of_rows, py::arg("samples"),
             "Roundings that a summand of the Gram of a small problem goes through, at most.");
  module.def("fit_small", &fit, py::arg("samples"), py::arg("weight"), py::arg("alpha"), py::arg("limits"),
             py::arg("certify"), "Coefficients and proof of a small problem on the calling thread; None if not safe.");
  module.def("fit_small_arrays", &fit_arrays, py::arg("tokens").noconvert(), py::arg("targets").noconvert(),
             py::arg("alpha"), py::arg("limits"), py::arg("certify"),
             "The same of plain arrays whose last tokens query; None also where they may be padded.");
}

}  // namespace linattn::bindings
