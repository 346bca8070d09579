#include "samples.hpp"

#include "register.hpp"

namespace linattn::cuda::bindings {

std::int64_t checked_size(const char* name, std::int64_t size, std::int64_t least, std::int64_t most) {
  require(size >= least && size <= most, std::string(name) + ": must be " + std::to_string(least) + " to " +
                                             std::to_string(most) + ", got " + std::to_string(size));
  return size;
}

Sizes sizes_from(const std::string& positions, std::int64_t n_sequences, std::int64_t n_rows, std::int64_t d,
                 std::int64_t d_out, std::optional<std::int64_t> n_pairs, std::optional<std::int64_t> n_queries) {
  constexpr std::int64_t most_rows = std::int64_t{1} << 40;
  checked_size("n_sequences", n_sequences, 1, most_rows);
  checked_size("n_rows", n_rows, 1, most_rows);
  checked_size("d", d, 1, most_coordinates);  // pairs then fit in 32 bits
  checked_size("d_out", d_out, 0, most_coordinates);
  require(n_pairs.has_value() == n_queries.has_value(), "n_pairs, n_queries: give both or none");
  if (n_pairs) {
    checked_size("n_pairs", *n_pairs, 1, pair_count(d));
    checked_size("n_queries", *n_queries, 1, d);
  }
  return {positions_from(positions), n_sequences,        n_rows, d, d_out, n_pairs.value_or(pair_count(d)),
          n_queries.value_or(d),     n_pairs.has_value()};
}

Tokens tokens_from(Call& call, const py::object& tokens, const py::object& offsets) {
  const DeviceArray given = call.array("tokens", tokens);
  Tokens found;
  found.values = {given.pointer(), given.require_float()};
  if (offsets.is_none()) {
    if (given.dimensions() != 3 || given.size() == 0) given.refuse("must be (N, n, d), none of them 0");
    found.count = given.shape()[0];
    found.length = given.shape()[1];
    found.rows = found.count * found.length;
  } else {
    if (given.dimensions() != 2 || given.size() == 0) given.refuse("must be (rows, d) with offsets, none of them 0");
    const DeviceArray ends = call.array("offsets", offsets);
    if (ends.dimensions() != 1 || ends.size() < 2) ends.refuse("must be (N + 1,), N > 0");
    found.offsets = ends.integers();
    found.count = ends.size() - 1;
    found.rows = given.shape()[0];
  }
  found.width = given.shape().back();
  return found;
}

namespace {

// Numbers of chosen pairs or queries; their values are the caller's to check.
const std::int64_t* chosen_numbers(Call& call, const char* name, const py::object& numbers, const char* shape,
                                   std::optional<std::int64_t>& count) {
  if (numbers.is_none()) return nullptr;
  const DeviceArray chosen = call.array(name, numbers);
  const std::int64_t* const values = chosen.integers();
  if (chosen.dimensions() != 1 || chosen.size() == 0) chosen.refuse(std::string("must be ") + shape + ", not empty");
  count = chosen.size();
  return values;
}

}  // namespace

OwnedSamples::OwnedSamples(const py::object& tokens, const py::object& offsets, const py::object& targets,
                           const py::object& weights, const std::string& positions, const py::object& pairs,
                           const py::object& queries)
    : arrays_(py::make_tuple(tokens, offsets, targets, weights, pairs, queries)) {
  samples_.tokens = tokens_from(call_, tokens, offsets);
  std::optional<std::int64_t> n_pairs, n_queries;
  samples_.chosen_pairs = chosen_numbers(call_, "pairs", pairs, "(n_pairs,)", n_pairs);
  samples_.chosen_queries = chosen_numbers(call_, "queries", queries, "(n_queries,)", n_queries);
  require(pairs.is_none() == queries.is_none(), "pairs, queries: give both or none");
  const Tokens& given = samples_.tokens;
  samples_.sizes = sizes_from(positions, given.count, given.rows, given.width, 0, n_pairs, n_queries);
  if (!targets.is_none()) {
    const DeviceArray array = call_.array("targets", targets);
    const std::int64_t rows = samples_.sizes.positions == Positions::last ? given.count : given.rows;
    if (array.dimensions() < 2 || array.size() == 0 || array.size() / array.shape().back() != rows) {
      array.refuse("must have " + std::to_string(rows) + " rows, one a query, and d_out > 0 columns");
    }
    samples_.targets = {array.pointer(), array.require_float()};
    samples_.sizes.d_out = array.shape().back();
    require(samples_.sizes.d_out <= most_coordinates, "targets: at most 65535 outputs");
  }
  if (!weights.is_none()) {
    samples_.weights = call_.array("weights", weights).require_shape({given.count}, "(N,)").doubles();
  }
}

void register_samples(py::module_& module) {
  // Local to the module: the tests have it twice in one process, for cards and over the emulator.
  py::class_<OwnedSamples>(module, "Samples",
                           "Tokens with their targets and weights, which query, and chosen features, on one device.",
                           py::module_local())
      .def(py::init<const py::object&, const py::object&, const py::object&, const py::object&, const std::string&,
                    const py::object&, const py::object&>(),
           py::kw_only(), py::arg("tokens"), py::arg("offsets") = py::none(), py::arg("targets") = py::none(),
           py::arg("weights") = py::none(), py::arg("positions"), py::arg("pairs") = py::none(),
           py::arg("queries") = py::none())
      .def_property_readonly(
          "sizes", [](const OwnedSamples& samples) { return samples.sizes(); },
          "What the sizes of results and of memory follow from.");
}

}  // namespace linattn::cuda::bindings
