// Where every entry lives: the one place that knows the order of pairs and features.
//
//   pair (j, k), j <= k, of d coordinates   -> pair_index = j d - j (j - 1) / 2 + (k - j)   (row-major upper triangle)
//   feature ((j, k), l)                     -> pair_index * d + l
//   compact Gram entry ((u, v), (l, m))     -> row pair_index(u, v; q), column pair_index(l, m; d),  q = pairs of d
//   third moment entry (u, v, w), u <= v <= w of q    -> triple_start(u, v; q) + (w - v)
#pragma once

#include <cstdint>

namespace linattn {

struct Pair {
  std::int64_t j, k;
};

static constexpr std::int64_t pair_count(std::int64_t d) { return d * (d + 1) / 2; }

static constexpr std::int64_t pair_index(std::int64_t j, std::int64_t k, std::int64_t d) {
  return j * d - j * (j - 1) / 2 + (k - j);
}

// Where the entries (u, v, v), (u, v, v + 1), .. of a symmetric third moment start; triple_start(q, q; q) is their
// number.
static constexpr std::int64_t triple_start(std::int64_t u, std::int64_t v, std::int64_t q) {
  const auto triples = [](std::int64_t k) { return k * (k + 1) * (k + 2) / 6; };
  return triples(q) - triples(q - u) + pair_count(q - u) - pair_count(q - v);
}

// Entries of a compact Gram: the third moment of the pairs where it is symmetric in all three (triples).
static constexpr std::int64_t gram_entries(std::int64_t pairs, std::int64_t queries, bool triples) {
  return triples ? triple_start(pairs, pairs, pairs) : pair_count(pairs) * pair_count(queries);
}

// The pair after (j, k) in row-major order.
static constexpr Pair next_pair(Pair pair, std::int64_t d) {
  return pair.k + 1 < d ? Pair{pair.j, pair.k + 1} : Pair{pair.j + 1, pair.j + 1};
}

// The inverse of pair_index, by bisection over j: exact for every size, unlike a square root.
static constexpr Pair pair_at(std::int64_t index, std::int64_t d) {
  std::int64_t low = 0, high = d - 1;
  while (low < high) {
    const std::int64_t middle = (low + high + 1) / 2;
    if (pair_index(middle, middle, d) <= index) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return {low, low + index - pair_index(low, low, d)};
}

}  // namespace linattn
