#include "samples.hpp"

#include <algorithm>

namespace linattn {

std::int64_t Samples::row_of(std::int64_t pair) const {
  if (!forms_few()) return pair;
  const std::vector<std::int64_t>& formed = selection->formed;
  return std::lower_bound(formed.begin(), formed.end(), pair) - formed.begin();
}

void Selection::form_few(std::int64_t d, Positions positions, bool with_squares) {
  formed = pairs;
  if (with_squares) {
    for (const std::int64_t number : pairs) {
      const Pair pair = pair_at(number, d);
      formed.push_back(pair_index(pair.j, pair.j, d));
      formed.push_back(pair_index(pair.k, pair.k, d));
    }
  }
  if (positions == Positions::all) {
    for (std::size_t i = 0; i < queries.size(); ++i) {
      for (std::size_t k = i; k < queries.size(); ++k) formed.push_back(pair_index(queries[i], queries[k], d));
    }
  }
  std::sort(formed.begin(), formed.end());
  formed.erase(std::unique(formed.begin(), formed.end()), formed.end());
  if (3 * static_cast<std::int64_t>(formed.size()) > pair_count(d)) formed.clear();
}

}  // namespace linattn
