#include "floating_point.hpp"

#include <limits>

namespace linattn {

bool keeps_subnormals() {
  // volatile: the processor is asked, not the compiler
  const volatile double smallest = std::numeric_limits<double>::denorm_min(),
                        normal = std::numeric_limits<double>::min();
  const volatile double read = smallest + smallest, half = normal * 0.5;
  return read > 0.0 && half > 0.0;
}

UnderflowWatch::UnderflowWatch(std::atomic<bool>& seen) : seen_(seen) {
  std::fesetenv(FE_DFL_ENV);
  if (!keeps_subnormals()) seen_ = true;
  std::feclearexcept(FE_ALL_EXCEPT);
}

UnderflowWatch::~UnderflowWatch() {
  if (std::fetestexcept(FE_UNDERFLOW) != 0) seen_ = true;
}

}  // namespace linattn
