#include "data.hpp"

namespace linattn::cuda::bindings {

Positions positions_from(const std::string& name) {
  if (name == "last") return Positions::last;
  if (name == "all") return Positions::all;
  require(name == "causal", "positions: must be 'last', 'all' or 'causal', got '" + name + "'");
  return Positions::causal;
}

Sizes sizes_from(const std::string& positions, std::int64_t n_sequences, std::int64_t n_rows, std::int64_t d,
                 std::int64_t d_out, std::optional<std::int64_t> n_pairs, std::optional<std::int64_t> n_queries) {
  constexpr std::int64_t longest = std::int64_t{1} << 40;
  const auto require_size = [](const char* name, std::int64_t size, std::int64_t least, std::int64_t most) {
    require(size >= least && size <= most, std::string(name) + ": must be " + std::to_string(least) + " to " +
                                               std::to_string(most) + ", got " + std::to_string(size));
  };
  require_size("n_sequences", n_sequences, 1, longest);
  require_size("n_rows", n_rows, 1, longest);
  require_size("d", d, 1, 65535);  // pairs then fit in 32 bits
  require_size("d_out", d_out, 0, 65535);
  require(n_pairs.has_value() == n_queries.has_value(), "n_pairs, n_queries: give both or none");
  if (n_pairs) {
    require_size("n_pairs", *n_pairs, 1, pair_count(d));
    require_size("n_queries", *n_queries, 1, d);
  }
  return {positions_from(positions), n_sequences,        n_rows, d, d_out, n_pairs.value_or(pair_count(d)),
          n_queries.value_or(d),     n_pairs.has_value()};
}

Batch batch_from(Call& call, const py::object& tokens, const py::object& offsets) {
  const DeviceArray given = call.array("tokens", tokens);
  Batch batch;
  batch.values = {given.pointer(), given.require_float()};
  if (offsets.is_none()) {
    if (given.dimensions() != 3 || given.size() == 0) given.refuse("must be (N, n, d), none of them 0");
    batch.count = given.shape()[0];
    batch.length = given.shape()[1];
    batch.rows = batch.count * batch.length;
  } else {
    if (given.dimensions() != 2 || given.size() == 0) given.refuse("must be (rows, d) with offsets, none of them 0");
    const DeviceArray ends = call.array("offsets", offsets);
    if (ends.dimensions() != 1 || ends.size() < 2) ends.refuse("must be (N + 1,), N > 0");
    batch.offsets = ends.integers();
    batch.count = ends.size() - 1;
    batch.rows = given.shape()[0];
  }
  batch.width = given.shape().back();
  return batch;
}

Data data_from(Call& call, const py::object& tokens, const py::object& offsets, const py::object& targets,
               const py::object& weights, const std::string& positions, const py::object& pairs,
               const py::object& queries) {
  Data data{};
  data.tokens = batch_from(call, tokens, offsets);
  std::optional<std::int64_t> n_pairs, n_queries;
  if (!pairs.is_none()) {
    const DeviceArray chosen = call.array("pairs", pairs);
    data.chosen_pairs = chosen.integers();
    n_pairs = chosen.size();
    if (chosen.dimensions() != 1 || chosen.size() == 0) chosen.refuse("must be (n_pairs,), not empty");
  }
  if (!queries.is_none()) {
    const DeviceArray chosen = call.array("queries", queries);
    data.chosen_queries = chosen.integers();
    n_queries = chosen.size();
    if (chosen.dimensions() != 1 || chosen.size() == 0) chosen.refuse("must be (n_queries,), not empty");
  }
  require(pairs.is_none() == queries.is_none(), "pairs, queries: give both or none");
  data.sizes = sizes_from(positions, data.tokens.count, data.tokens.rows, data.tokens.width, 0, n_pairs, n_queries);
  if (!targets.is_none()) {
    const DeviceArray given = call.array("targets", targets);
    const std::int64_t rows = data.sizes.positions == Positions::last ? data.tokens.count : data.tokens.rows;
    if (given.dimensions() < 2 || given.size() == 0 || given.size() / given.shape().back() != rows) {
      given.refuse("must have " + std::to_string(rows) + " rows, one a query, and d_out > 0 columns");
    }
    data.targets = {given.pointer(), given.require_float()};
    data.sizes.d_out = given.shape().back();
    require(data.sizes.d_out <= 65535, "targets: at most 65535 outputs");
  }
  if (!weights.is_none()) {
    data.weights = call.array("weights", weights).require_shape({data.tokens.count}, "(N,)").doubles();
  }
  return data;
}

}  // namespace linattn::cuda::bindings
