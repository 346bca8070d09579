// Samples from numpy arrays, checked, and kept for as long as the core reads them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "../core/samples.hpp"
#include "arrays.hpp"

namespace linattn::bindings {

// Zeros from numpy, which takes zeroed pages from the system: they are touched first by the threads that use them. They
// start on a cache line, so that vectors of sums do not lie across two.
Doubles zeros(const std::vector<py::ssize_t>& shape);

// Keys, values and gates of streams, and of each query its sequence and how many keys it sees; keys None: no streams.
struct StreamArrays {
  py::object keys;
  std::optional<Offsets> offsets;
  py::object values;  // None: the keys
  std::optional<Doubles> gates;
  std::optional<Offsets> sequences, seen;
};

// What Python sees as _cpu.Samples: the arrays, and all that was checked of them. It never changes, so that threads may
// share it. Made and destroyed with the GIL held; read without it.
class OwnedSamples {
 public:
  // target_storage may be None; pairs and queries are given both or none. With memory, which may be None, storage has
  // the query of each state, or for all positions what shares that memory. With keys, which may be None, it has the
  // query of each stream.
  OwnedSamples(const py::object& storage, const std::optional<Offsets>& offsets, const py::object& target_storage,
               const std::optional<Offsets>& target_offsets, const std::optional<Doubles>& weights,
               const std::string& positions, const std::optional<Offsets>& pairs, const std::optional<Offsets>& queries,
               const py::object& memory, bool symmetric, const StreamArrays& streams);
  OwnedSamples(const OwnedSamples&) = delete;  // the core holds pointers into it
  OwnedSamples& operator=(const OwnedSamples&) = delete;

  const Tokens& tokens() const { return *tokens_; }
  Positions positions() const { return positions_; }
  bool selected() const { return selected_; }
  const Streams* streams() const { return streams_ ? &*streams_ : nullptr; }
  const double* weights() const { return weights_ ? weights_->data() : nullptr; }

 private:
  friend class SamplesInUse;
  OwnedTokens tokens_;
  std::optional<OwnedTokens> targets_;
  std::optional<Doubles> weights_;
  Positions positions_;
  bool selected_;
  Selection selection_;  // nothing is said yet of what is formed
  std::optional<OwnedTokens> memory_;
  std::optional<States> states_;
  std::optional<OwnedTokens> keys_, values_;
  std::optional<Doubles> gates_;
  std::optional<Offsets> sequences_, seen_;
  std::optional<Streams> streams_;
};

// Samples as the core takes them, for one use: which pairs of S are formed depends on it. With squares, they are enough
// for the sizes of summands. The samples stay with the caller.
class SamplesInUse {
 public:
  SamplesInUse(const OwnedSamples& owned, bool with_squares);
  SamplesInUse(const SamplesInUse&) = delete;
  SamplesInUse& operator=(const SamplesInUse&) = delete;

  const Samples& operator*() const { return samples_; }

 private:
  Selection selection_;
  Samples samples_;
};

}  // namespace linattn::bindings
