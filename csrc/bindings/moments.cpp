#include "../core/moments.hpp"

#include <pybind11/stl.h>

#include "../core/scan.hpp"
#include "../kernels/isa.hpp"
#include "arrays.hpp"
#include "data.hpp"
#include "register.hpp"

namespace linattn::bindings {

namespace {

py::tuple accumulate(const py::object& storage, const std::optional<Offsets>& offsets, const py::object& target_storage,
                     const std::optional<Offsets>& target_offsets, const std::optional<Doubles>& weights,
                     const std::string& positions, const std::string& precision, const std::optional<Offsets>& pairs,
                     const std::optional<Offsets>& queries, bool with_gram, int threads, const py::object& progress) {
  const OwnedData owned(storage, offsets, target_storage, target_offsets, weights, positions, pairs, queries,
                        /*with_squares=*/with_gram);
  const Data& data = *owned;
  require(precision == "float64" || precision == "mixed", "precision: must be 'float64' or 'mixed'");
  Doubles gram = zeros({with_gram ? gram_size(data) : 0});
  Doubles cross = zeros({data.d_out(), data.queries(), data.pairs()});
  Doubles energy = zeros({data.d_out()});
  const bool with_sizes = with_gram && data.selection != nullptr;
  Doubles sizes = zeros({with_sizes ? data.pairs() : 0, with_sizes ? data.queries() : 0});
  const MomentSums sums{with_gram ? gram.mutable_data() : nullptr, cross.mutable_data(), energy.mutable_data(),
                        with_sizes ? sizes.mutable_data() : nullptr};
  const Kernels& chosen = kernels();
  const Monitor monitor = make_monitor(progress);
  threads = checked_threads(threads);
  Summation how{};
  {
    const py::gil_scoped_release release;
    how = accumulate_moments(chosen, data, precision == "mixed" ? Precision::mixed : Precision::float64, threads,
                             monitor, sums);
  }
  return py::make_tuple(gram, cross, energy, sizes, py::make_tuple(how.wide, how.narrow), how.underflow);
}

std::int64_t scan(const py::object& storage, const std::optional<Offsets>& offsets, int threads) {
  const OwnedTokens tokens("tokens", storage, offsets);
  threads = checked_threads(threads);
  const py::gil_scoped_release release;
  return first_non_finite(*tokens, threads);
}

}  // namespace

void register_moments(py::module_& module) {
  py::register_exception<NonFinite>(module, "NonFiniteError", PyExc_ValueError);
  module.def(
      "accumulate", &accumulate, py::arg("tokens"), py::arg("offsets"), py::arg("targets"), py::arg("target_offsets"),
      py::arg("weights"), py::arg("positions"), py::arg("precision"), py::arg("pairs"), py::arg("queries"),
      py::arg("with_gram"), py::arg("threads"), py::arg("progress"),
      "Compact Gram (flat), cross moment (d_out, d, q), target energy (d_out) and, with chosen features, sizes of "
      "summands (q, d) of a batch; roundings of a summand in float64 and float32; whether a result underflowed.");
  module.def("first_non_finite", &scan, py::arg("tokens"), py::arg("offsets"), py::arg("threads"),
             "Index of the first sequence with NaN or infinity, or -1.");
}

}  // namespace linattn::bindings
