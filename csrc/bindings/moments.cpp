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

// By numpy, which takes zeroed pages from the system: they are touched first by the threads that use them.
Doubles zeros(const std::vector<py::ssize_t>& shape) {
  return py::module_::import("numpy").attr("zeros")(py::cast(shape)).cast<Doubles>();
}

// A row of targets for every query: one a sequence (last), or one a token.
void require_matching_targets(const TokenBatch& tokens, const TokenBatch& targets, Positions positions) {
  require(targets.count() == tokens.count(), "targets: as many sequences as tokens are needed");
  for (std::int64_t i = 0; i < tokens.count(); ++i) {
    require(targets[i].length == (positions == Positions::last ? 1 : tokens[i].length),
            "targets: one row a query is needed");
  }
}

// Numbers of chosen rows: at least one, ascending, below `end`.
std::vector<std::int64_t> ascending_numbers(const std::string& name, const Offsets& given, std::int64_t end) {
  require(given.ndim() == 1 && given.size() > 0, name + ": must be a list of numbers");
  std::vector<std::int64_t> numbers(given.data(), given.data() + given.size());
  std::int64_t previous = -1;
  for (const std::int64_t number : numbers) {
    require(number > previous && number < end, name + ": must be ascending numbers below " + std::to_string(end));
    previous = number;
  }
  return numbers;
}

py::tuple accumulate(const py::object& storage, const std::optional<Offsets>& offsets,
                     const py::object& target_storage, const std::optional<Offsets>& target_offsets,
                     const std::optional<Doubles>& weights, const std::string& positions,
                     const std::string& precision, const std::optional<Offsets>& pairs,
                     const std::optional<Offsets>& queries, bool with_gram, int threads, const py::object& progress) {
  const OwnedTokens tokens("tokens", storage, offsets);
  const std::int64_t count = (*tokens).count(), d = (*tokens).width(), q = pair_count(d);
  require(q <= INT32_MAX, "tokens: d is too large for the index type");
  const Positions where = positions_from(positions);
  require(precision == "float64" || precision == "mixed", "precision: must be 'float64' or 'mixed'");

  std::optional<OwnedTokens> targets;
  if (!target_storage.is_none()) {
    targets.emplace("targets", target_storage, target_offsets);
    require_matching_targets(*tokens, **targets, where);
  }
  const std::int64_t d_out = targets ? (**targets).width() : 0;
  if (weights) require(weights->ndim() == 1 && weights->size() == count, "weights: must be (N,)");

  Selection selection;
  require(pairs.has_value() == queries.has_value(), "pairs, queries: give both or none");
  if (pairs) {
    selection.pairs = ascending_numbers("pairs", *pairs, q);
    selection.queries = ascending_numbers("queries", *queries, d);
    selection.form_few(d, where);
  }
  const Data data{*tokens, targets ? &**targets : nullptr, weights ? weights->data() : nullptr, where,
                  pairs ? &selection : nullptr};
  Doubles gram = zeros({with_gram ? gram_size(data) : 0});
  Doubles cross = zeros({d_out, data.queries(), data.pairs()});
  Doubles energy = zeros({d_out});
  const MomentSums sums{with_gram ? gram.mutable_data() : nullptr, cross.mutable_data(), energy.mutable_data()};
  const Kernels& chosen = kernels();
  const Monitor monitor = make_monitor(progress);
  threads = checked_threads(threads);
  bool underflow = false;
  {
    const py::gil_scoped_release release;
    underflow = accumulate_moments(chosen, data, precision == "mixed" ? Precision::mixed : Precision::float64, threads, monitor,
                       sums);
  }
  return py::make_tuple(gram, cross, energy, underflow);
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
  module.def("accumulate", &accumulate, py::arg("tokens"), py::arg("offsets"), py::arg("targets"),
             py::arg("target_offsets"), py::arg("weights"), py::arg("positions"), py::arg("precision"),
             py::arg("pairs"), py::arg("queries"), py::arg("with_gram"), py::arg("threads"), py::arg("progress"),
             "Compact Gram (flat), cross moment (d_out, d, q) and target energy (d_out) of a batch, and whether a result "
             "underflowed.");
  module.def("first_non_finite", &scan, py::arg("tokens"), py::arg("offsets"), py::arg("threads"),
             "Index of the first sequence with NaN or infinity, or -1.");
}

}  // namespace linattn::bindings
