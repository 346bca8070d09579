#include "../core/moments.hpp"

#include <pybind11/stl.h>

#include "../core/index.hpp"
#include "../core/isa.hpp"
#include "../core/sample_block.hpp"
#include "../core/scan.hpp"
#include "arrays.hpp"
#include "register.hpp"

namespace linattn::bindings {

namespace {

Doubles zeros(std::vector<py::ssize_t> shape) {
  Doubles array(std::move(shape));
  std::fill_n(array.mutable_data(), array.size(), 0.0);
  return array;
}

py::tuple accumulate(const py::object& storage, const std::optional<Offsets>& offsets,
                     const std::optional<py::array>& target_rows, const std::optional<Doubles>& weights, bool with_gram,
                     int threads, const py::object& progress) {
  const OwnedTokens tokens("tokens", storage, offsets);
  const std::int64_t count = (*tokens).count(), d = (*tokens).width(), q = pair_count(d);
  require(q <= INT32_MAX, "tokens: d is too large for the index type");

  std::optional<OwnedTokens> targets;
  if (target_rows) {
    targets.emplace("targets", *target_rows, std::nullopt);
    require(target_rows->shape(0) == count && target_rows->shape(1) == 1, "targets: must be (N, 1, d_out)");
  }
  const std::int64_t d_out = targets ? (**targets).width() : 0;
  if (weights) require(weights->ndim() == 1 && weights->size() == count, "weights: must be (N,)");

  Doubles gram = with_gram ? zeros({pair_count(q), q}) : zeros({0, q});
  Doubles cross = zeros({d_out, d, q});
  Doubles energy = zeros({d_out});
  const MomentSums sums{with_gram ? gram.mutable_data() : nullptr, cross.mutable_data(), energy.mutable_data()};
  const Kernels& chosen = kernels();
  const Monitor monitor = make_monitor(progress);
  const double* weight_data = weights ? weights->data() : nullptr;
  threads = checked_threads(threads);
  {
    const py::gil_scoped_release release;
    accumulate_moments(chosen, *tokens, targets ? &**targets : nullptr, weight_data, threads, monitor, sums);
  }
  return py::make_tuple(gram, cross, energy);
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
  module.def("accumulate", &accumulate, py::arg("tokens"), py::arg("offsets"), py::arg("targets"), py::arg("weights"),
             py::arg("with_gram"), py::arg("threads"), py::arg("progress"),
             "Compact Gram (pairs of q, pairs of d), cross moment (d_out, d, q) and target energy (d_out) of a batch.");
  module.def("first_non_finite", &scan, py::arg("tokens"), py::arg("offsets"), py::arg("threads"),
             "Index of the first sequence with NaN or infinity, or -1.");
}

}  // namespace linattn::bindings
