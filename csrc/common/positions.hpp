// Which tokens are queries, and what they attend to.
#pragma once

#include <stdexcept>
#include <string>

namespace linattn {

// last: the last token queries the whole sequence; all: every token does; causal: every token queries the prefix that
// ends with it.
enum class Positions { last, all, causal };

// From the name that Python has for them.
inline Positions positions_from(const std::string& name) {
  if (name == "last") return Positions::last;
  if (name == "all") return Positions::all;
  if (name == "causal") return Positions::causal;
  throw std::invalid_argument("positions: must be 'last', 'all' or 'causal', got '" + name + "'");
}

}  // namespace linattn
