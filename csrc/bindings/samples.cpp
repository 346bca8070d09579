#include "samples.hpp"

#include <pybind11/stl.h>

#include <cstdint>
#include <memory>

#include "../common/index.hpp"
#include "register.hpp"

namespace linattn::bindings {

namespace {

// A row of targets for every query: one a sequence (last), or one a token.
void require_matching_targets(const Tokens& tokens, const Tokens& targets, Positions positions) {
  require(targets.count() == tokens.count(), "targets: as many sequences as tokens are needed");
  const std::int64_t different = tokens.is_dense() && targets.is_dense() ? 1 : tokens.count();
  for (std::int64_t i = 0; i < different; ++i) {
    require(targets[i].length == (positions == Positions::last ? 1 : tokens[i].length),
            "targets: one row a query is needed");
  }
}

// A memory for every query, and one query a state.
void require_states(const Tokens& queries, const Tokens& memory, Positions positions, bool symmetric, bool selected) {
  require(positions == Positions::last && !selected, "memory: states have positions 'last' and all features");
  require(memory.count() == queries.count(), "memory: as many states as queries are needed");
  for (std::int64_t i = 0; i < memory.count(); ++i) {
    require(memory[i].length == memory[0].length && queries[i].length == 1, "memory: states must be alike");
  }
  require(!symmetric || memory[0].length == memory.width(), "memory: symmetric matrices must be square");
  require(memory[0].length <= INT32_MAX / memory.width(), "memory: too many entries for the index type");
}

// For every query a sequence, of which it sees no more keys than there are; values and gates for every key.
void require_streams(const Tokens& queries, const Tokens& keys, const Tokens* values,
                     const std::optional<Doubles>& gates, const Offsets& sequences, const Offsets& seen) {
  require(sequences.ndim() == 1 && sequences.size() == queries.count(), "sequences: one a query is needed");
  require(seen.ndim() == 1 && seen.size() == queries.count(), "seen: one a query is needed");
  if (values != nullptr) {
    require(values->count() == keys.count(), "values: as many sequences as keys are needed");
    const std::int64_t different = keys.is_dense() && values->is_dense() ? 1 : keys.count();
    for (std::int64_t i = 0; i < different; ++i) {
      require((*values)[i].length == keys[i].length, "values: one a key is needed");
    }
  }
  if (gates) require(gates->ndim() == 1 && gates->size() == keys.rows(), "gates: one a key is needed");
  for (std::int64_t i = 0; i < queries.count(); ++i) {
    const std::int64_t sequence = sequences.data()[i], n = seen.data()[i];
    require(sequence >= 0 && sequence < keys.count(), "sequences: must be below their number");
    require(n >= 0 && n <= keys[sequence].length && queries[i].length == 1, "seen: must be a number of keys");
  }
  const std::int64_t d_v = values != nullptr ? values->width() : keys.width();
  require(d_v <= INT32_MAX / keys.width(), "keys: too many entries for the index type");
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

}  // namespace

Doubles zeros(const std::vector<py::ssize_t>& shape) {
  constexpr py::ssize_t spare = 64 / sizeof(double);
  py::ssize_t size = 1;
  for (const py::ssize_t length : shape) size *= length;
  const auto whole = py::module_::import("numpy").attr("zeros")(size + spare).cast<Doubles>();
  const auto past_line = reinterpret_cast<std::uintptr_t>(whole.data()) % 64 / sizeof(double);
  const double* const start = whole.data() + (spare - static_cast<py::ssize_t>(past_line)) % spare;
  return Doubles(shape, start, whole);
}

OwnedSamples::OwnedSamples(const py::object& storage, const std::optional<Offsets>& offsets,
                           const py::object& target_storage, const std::optional<Offsets>& target_offsets,
                           const std::optional<Doubles>& weights, const std::string& positions,
                           const std::optional<Offsets>& pairs, const std::optional<Offsets>& queries,
                           const py::object& memory, bool symmetric, const StreamArrays& streams)
    : tokens_("tokens", storage, offsets),
      weights_(weights),
      positions_(positions_from(positions)),
      selected_(pairs.has_value()) {
  const std::int64_t d = tokens().width(), q = pair_count(d);
  require(q <= INT32_MAX, "tokens: d is too large for the index type");
  if (!target_storage.is_none()) {
    targets_.emplace("targets", target_storage, target_offsets);
    require_matching_targets(tokens(), **targets_, positions_);
  }
  if (weights) require(weights->ndim() == 1 && weights->size() == tokens().count(), "weights: must be (N,)");
  require(pairs.has_value() == queries.has_value(), "pairs, queries: give both or none");
  if (selected_) {
    selection_.pairs = ascending_numbers("pairs", *pairs, q);
    selection_.queries = ascending_numbers("queries", *queries, d);
  }
  if (!memory.is_none()) {
    memory_.emplace("memory", memory, std::nullopt);
    require_states(tokens(), **memory_, positions_, symmetric, selected_);
    states_.emplace(States{**memory_, symmetric});
  }
  if (!streams.keys.is_none()) {
    require(positions_ == Positions::last && !selected_ && memory.is_none(), "keys: streams have no other form");
    require(streams.sequences.has_value() && streams.seen.has_value(), "sequences, seen: both are needed");
    keys_.emplace("keys", streams.keys, streams.offsets, 0);
    if (!streams.values.is_none()) values_.emplace("values", streams.values, streams.offsets, 0);
    gates_ = streams.gates;
    sequences_ = streams.sequences;
    seen_ = streams.seen;
    const Tokens* const values = values_ ? &**values_ : nullptr;
    require_streams(tokens(), **keys_, values, gates_, *sequences_, *seen_);
    streams_.emplace(Streams{**keys_, values, gates_ ? gates_->data() : nullptr, sequences_->data(), seen_->data()});
  }
}

SamplesInUse::SamplesInUse(const OwnedSamples& owned, bool with_squares)
    : selection_(owned.selection_), samples_{owned.tokens(),
                                             owned.targets_ ? &**owned.targets_ : nullptr,
                                             owned.weights_ ? owned.weights_->data() : nullptr,
                                             owned.positions_,
                                             owned.selected_ ? &selection_ : nullptr,
                                             owned.states_ ? &*owned.states_ : nullptr,
                                             owned.streams()} {
  if (owned.selected_) selection_.form_few(samples_.d(), samples_.positions, with_squares);
}

void register_samples(py::module_& module) {
  py::class_<OwnedSamples, std::shared_ptr<OwnedSamples>>(
      module, "Samples",
      "Tokens with their targets and weights, which query, and chosen features: checked, not copied.")
      .def(py::init([](const py::object& tokens, const std::optional<Offsets>& offsets, const py::object& targets,
                       const std::optional<Offsets>& target_offsets, const std::optional<Doubles>& weights,
                       const std::string& positions, const std::optional<Offsets>& pairs,
                       const std::optional<Offsets>& queries, const py::object& memory, bool symmetric,
                       const py::object& keys, const std::optional<Offsets>& key_offsets, const py::object& values,
                       const std::optional<Doubles>& gates, const std::optional<Offsets>& sequences,
                       const std::optional<Offsets>& seen) {
             return std::make_shared<OwnedSamples>(tokens, offsets, targets, target_offsets, weights, positions, pairs,
                                                   queries, memory, symmetric,
                                                   StreamArrays{keys, key_offsets, values, gates, sequences, seen});
           }),
           py::kw_only(), py::arg("tokens"), py::arg("offsets") = py::none(), py::arg("targets") = py::none(),
           py::arg("target_offsets") = py::none(), py::arg("weights") = py::none(), py::arg("positions"),
           py::arg("pairs") = py::none(), py::arg("queries") = py::none(), py::arg("memory") = py::none(),
           py::arg("symmetric") = false, py::arg("keys") = py::none(), py::arg("key_offsets") = py::none(),
           py::arg("values") = py::none(), py::arg("gates") = py::none(), py::arg("sequences") = py::none(),
           py::arg("seen") = py::none());
}

}  // namespace linattn::bindings
