// Which tokens are queries, and what they attend to.
#pragma once

namespace linattn {

// last: the last token queries the whole sequence; all: every token does; causal: every token queries the prefix that
// ends with it.
enum class Positions { last, all, causal };

}  // namespace linattn
