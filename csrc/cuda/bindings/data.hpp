// Tokens, targets, weights and chosen features of a call, checked.
#pragma once

#include <optional>
#include <string>

#include "../samples.hpp"
#include "arrays.hpp"

namespace linattn::cuda::bindings {

Positions positions_from(const std::string& name);

// Sizes as Python says them; n_pairs and n_queries both or none.
Sizes sizes_from(const std::string& positions, std::int64_t n_sequences, std::int64_t n_rows, std::int64_t d,
                 std::int64_t d_out, std::optional<std::int64_t> n_pairs, std::optional<std::int64_t> n_queries);

// Offsets, targets, weights, and pairs with queries may be None; see _cuda.pyi.
Data data_from(Call& call, const py::object& tokens, const py::object& offsets, const py::object& targets,
               const py::object& weights, const std::string& positions, const py::object& pairs,
               const py::object& queries);

// (N, n, d), or (rows, d) with offsets.
Batch batch_from(Call& call, const py::object& tokens, const py::object& offsets);

}  // namespace linattn::cuda::bindings
