#include "data.hpp"

#include <pybind11/stl.h>

#include <cstdint>

#include "../common/index.hpp"

namespace linattn::bindings {

namespace {

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

OwnedData::OwnedData(const py::object& storage, const std::optional<Offsets>& offsets, const py::object& target_storage,
                     const std::optional<Offsets>& target_offsets, const std::optional<Doubles>& weights,
                     const std::string& positions, const std::optional<Offsets>& pairs,
                     const std::optional<Offsets>& queries, bool with_squares)
    : tokens_("tokens", storage, offsets), weights_(weights) {
  const TokenBatch& tokens = *tokens_;
  const std::int64_t d = tokens.width(), q = pair_count(d);
  require(q <= INT32_MAX, "tokens: d is too large for the index type");
  const Positions where = positions_from(positions);
  if (!target_storage.is_none()) {
    targets_.emplace("targets", target_storage, target_offsets);
    require_matching_targets(tokens, **targets_, where);
  }
  if (weights) require(weights->ndim() == 1 && weights->size() == tokens.count(), "weights: must be (N,)");
  require(pairs.has_value() == queries.has_value(), "pairs, queries: give both or none");
  if (pairs) {
    selection_.pairs = ascending_numbers("pairs", *pairs, q);
    selection_.queries = ascending_numbers("queries", *queries, d);
    selection_.form_few(d, where, with_squares);
  }
  data_.emplace(Data{tokens, targets_ ? &**targets_ : nullptr, weights_ ? weights_->data() : nullptr, where,
                     pairs ? &selection_ : nullptr});
}

}  // namespace linattn::bindings
