#include "../core/moments.hpp"

#include <pybind11/stl.h>

#include <utility>

#include "../core/scan.hpp"
#include "../kernels/isa.hpp"
#include "arrays.hpp"
#include "register.hpp"
#include "samples.hpp"

namespace linattn::bindings {

namespace {

// What Python sees as _cpu.Moments.
struct SummedMoments {
  Doubles gram, cross, energy, sizes;
  Summation how;
  bool finite = true;
};

SummedMoments accumulate(const OwnedSamples& owned, const std::string& precision, bool with_gram, int threads,
                         const py::object& progress) {
  const SamplesInUse in_use(owned, /*with_squares=*/with_gram);
  const Samples& data = *in_use;
  require(precision == "float64" || precision == "mixed", "precision: must be 'float64' or 'mixed'");
  const bool with_sizes = with_gram && data.selection != nullptr;
  SummedMoments found{zeros({with_gram ? gram_size(data) : 0}),
                      zeros({data.d_out(), data.queries(), data.pairs()}),
                      zeros({data.d_out()}),
                      zeros({with_sizes ? data.pairs() : 0, with_sizes ? data.queries() : 0}),
                      {}};
  const MomentSums sums{with_gram ? found.gram.mutable_data() : nullptr, found.cross.mutable_data(),
                        found.energy.mutable_data(), with_sizes ? found.sizes.mutable_data() : nullptr};
  const Kernels& chosen = kernels();
  const Monitor monitor = make_monitor(progress);
  threads = checked_threads(threads);
  const py::gil_scoped_release release;
  found.how = accumulate_moments(chosen, data, precision == "mixed" ? Precision::mixed : Precision::float64, threads,
                                 monitor, sums);
  for (const Doubles* const total : {&found.gram, &found.cross, &found.energy, &found.sizes}) {
    found.finite = found.finite && are_finite(total->data(), total->size(), threads);
  }
  return found;
}

std::int64_t scan(const py::object& storage, const std::optional<Offsets>& offsets, int threads) {
  const OwnedTokens tokens("tokens", storage, offsets);
  threads = checked_threads(threads);
  const py::gil_scoped_release release;
  return first_non_finite(*tokens, threads);
}

// Factors of bounds on the sizes of summands of streams, their roundings, and whether one underflowed.
py::tuple sizes_of_streams(const OwnedSamples& owned, int threads) {
  const Streams* const streams = owned.streams();
  require(streams != nullptr, "samples: streams are needed");
  const std::int64_t d_q = owned.tokens().width();
  Doubles of_values = zeros({streams->d_v(), d_q}), of_keys = zeros({streams->d_k(), d_q});
  double *const values = of_values.mutable_data(), *const keys = of_keys.mutable_data();
  threads = checked_threads(threads);
  SizeSummation how{};
  {
    const py::gil_scoped_release release;
    how = stream_sizes(*streams, owned.tokens(), owned.weights(), threads, values, keys);
  }
  return py::make_tuple(of_values, of_keys, how.roundings, how.underflow);
}

}  // namespace

void register_moments(py::module_& module) {
  py::register_exception<NonFinite>(module, "NonFiniteError", PyExc_ValueError);
  module.def("stream_sizes", &sizes_of_streams, py::arg("samples"), py::arg("threads"));
  py::class_<SummedMoments>(module, "Moments", "Sums over samples, and what a bound on their rounding rests on.")
      .def_readonly("gram", &SummedMoments::gram, "The compact Gram, flat; empty where it was not wanted.")
      .def_readonly("cross", &SummedMoments::cross, "sum w y_a z_l s_u (d_out, queries, pairs).")
      .def_readonly("energy", &SummedMoments::energy, "sum w y_a^2 (d_out,).")
      .def_readonly("sizes", &SummedMoments::sizes,
                    "sum w S_jj S_kk z_l^2 (pairs, queries) with a Gram of chosen features; else empty.")
      .def_readonly("finite", &SummedMoments::finite, "Whether all sums are.")
      .def_property_readonly(
          "roundings", [](const SummedMoments& found) { return std::make_pair(found.how.wide, found.how.narrow); },
          "Roundings that a summand of the Gram goes through, at most: in float64, and in float32.")
      .def_property_readonly(
          "underflow", [](const SummedMoments& found) { return found.how.underflow; },
          "Whether a result was rounded below the smallest normal number.");
  module.def("accumulate", &accumulate, py::arg("samples"), py::kw_only(), py::arg("precision"), py::arg("with_gram"),
             py::arg("threads"), py::arg("progress"), "The moments of samples.");
  module.def("first_non_finite", &scan, py::arg("tokens"), py::arg("offsets"), py::arg("threads"),
             "Index of the first sequence with NaN or infinity, or -1.");
}

}  // namespace linattn::bindings
