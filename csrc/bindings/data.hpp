// Tokens, targets, weights and chosen features from numpy arrays, checked, and kept for as long as the core reads them.
#pragma once

#include <optional>
#include <string>

#include "../core/sample_block.hpp"
#include "arrays.hpp"

namespace linattn::bindings {

// Zeros from numpy, which takes zeroed pages from the system: they are touched first by the threads that use them. They
// start on a cache line, so that vectors of sums do not lie across two.
Doubles zeros(const std::vector<py::ssize_t>& shape);

class OwnedData {
 public:
  // target_storage may be None; pairs and queries are given both or none. With squares, the S that are formed are
  // enough for the sizes of summands.
  OwnedData(const py::object& storage, const std::optional<Offsets>& offsets, const py::object& target_storage,
            const std::optional<Offsets>& target_offsets, const std::optional<Doubles>& weights,
            const std::string& positions, const std::optional<Offsets>& pairs, const std::optional<Offsets>& queries,
            bool with_squares = false);
  OwnedData(const OwnedData&) = delete;  // the core holds references into it
  OwnedData& operator=(const OwnedData&) = delete;

  const Data& operator*() const { return *data_; }

 private:
  OwnedTokens tokens_;
  std::optional<OwnedTokens> targets_;
  std::optional<Doubles> weights_;
  Selection selection_;
  std::optional<Data> data_;
};

}  // namespace linattn::bindings
