// What long work calls to tell how far it is.
#pragma once

#include <cstdint>
#include <functional>

namespace linattn {

// Called now and then from the calling thread with the number of samples done; throws to stop the work.
using Monitor = std::function<void(std::int64_t done)>;

}  // namespace linattn
