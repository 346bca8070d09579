// The floating-point environment of a thread: how it treats numbers below the smallest normal one, 2^-1022.
//
// Bounds on rounding are relative, and fail where a result is rounded below 2^-1022. The processor keeps a sticky flag
// of that, which costs nothing. It is silent where another library has told the processor to take such numbers for
// zero, so that is undone for as long as the work lasts.
#pragma once

#include <atomic>
#include <cfenv>

namespace linattn {

// The environment at its making, flags included, comes back at its end: for calls into code that may change either.
class KeptEnvironment {
 public:
  KeptEnvironment() { std::fegetenv(&kept_); }
  ~KeptEnvironment() { std::fesetenv(&kept_); }
  KeptEnvironment(const KeptEnvironment&) = delete;
  KeptEnvironment& operator=(const KeptEnvironment&) = delete;

 private:
  std::fenv_t kept_;
};

// Whether numbers below 2^-1022 are read as what they are, and results below it are not flushed to zero.
bool keeps_subnormals();

// Computes with the default environment for the time it lives, and sets `seen` at its end if a result underflowed, or
// numbers may have been taken for zero. One a thread.
class UnderflowWatch {
 public:
  explicit UnderflowWatch(std::atomic<bool>& seen);
  ~UnderflowWatch();

 private:
  const KeptEnvironment before_;
  std::atomic<bool>& seen_;
};

}  // namespace linattn
