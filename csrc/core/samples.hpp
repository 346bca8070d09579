// Tokens with their targets and weights, which of them query, and the features that take part. The memory is the
// caller's.
#pragma once

#include <cstdint>
#include <vector>

#include "../common/index.hpp"
#include "../common/positions.hpp"
#include "states.hpp"
#include "streams.hpp"
#include "tokens.hpp"

namespace linattn {

// Features that take part: numbers of pairs and of query coordinates, both ascending.
struct Selection {
  std::vector<std::int64_t> pairs, queries;
  // Pairs of S that are formed, ascending: those above, for all positions those of two queries, and for sizes of
  // summands the squares (j, j) of their coordinates. Empty: S as a whole.
  std::vector<std::int64_t> formed;

  // Where few are needed, forms only those: the tiles that form S as a whole are up to three times as fast a pair.
  void form_few(std::int64_t d, Positions positions, bool with_squares);
};

// What sums are taken of, as in Python's Samples(tokens, targets, weights, positions, features). Targets may be absent
// (d_out = 0), and so may weights (one a sequence) and a selection (all features).
//
// With states, s is their memory in the place of sums over tokens, and the tokens are their queries, one a sequence;
// positions are last then, and there is no selection. With streams, it is the same with a memory that is summed.
struct Samples {
  const Tokens& tokens;
  const Tokens* targets;
  const double* weights;
  Positions positions;
  const Selection* selection = nullptr;
  const States* states = nullptr;
  const Streams* streams = nullptr;

  std::int64_t d() const { return tokens.width(); }
  std::int64_t d_out() const { return targets != nullptr ? targets->width() : 0; }
  std::int64_t pairs() const {
    return selection != nullptr ? static_cast<std::int64_t>(selection->pairs.size()) : all_pairs();
  }
  std::int64_t queries() const {
    return selection != nullptr ? static_cast<std::int64_t>(selection->queries.size()) : d();
  }
  // Pairs of S, or entries of the memory.
  std::int64_t all_pairs() const {
    if (streams != nullptr) return streams->entries();
    return states != nullptr ? states->entries() : pair_count(d());
  }
  bool forms_few() const { return selection != nullptr && !selection->formed.empty(); }
  // Rows of s.
  std::int64_t formed_pairs() const {
    return forms_few() ? static_cast<std::int64_t>(selection->formed.size()) : all_pairs();
  }
  // The row of s that holds a pair.
  std::int64_t row_of(std::int64_t pair) const;
  // The Gram is the third moment of s, symmetric in all three.
  bool triples() const { return positions == Positions::all && selection == nullptr; }
  std::int64_t samples() const { return positions == Positions::causal ? tokens.rows() : tokens.count(); }
};

}  // namespace linattn
