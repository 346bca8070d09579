// Stacks that the CPU switches between, and what the sanitizers must be told about it. Compiled without sanitizers: the
// macros EMULATOR_ASAN and EMULATOR_TSAN say which one the kernels have.
#pragma once

#include <cstddef>

namespace emulator {

class Fiber {
 public:
  Fiber() = default;
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Prepares to run `entry` on an empty stack. Called from the scheduler; `entry` must never return.
  void prepare(void (*entry)());
  // The scheduler lets it run until it calls leave().
  void enter();
  // Back to the scheduler; `last`: it will never be entered again.
  void leave(bool last);
  // To be called first by `entry`.
  void entered();
  // The fiber has ended. The thread sanitizer must not forget it at once: it would take the fiber that inherits its
  // number for the same thread, and see no race between them.
  void retire();
  // Lets the sanitizer forget all but the last `kept` of those; it knows 8000 threads at most.
  static void forget_retired(std::size_t kept);

  // Orders memory accesses for the thread sanitizer: what happened before a release at a tag happened before what
  // follows an acquire there.
  static void release(void* tag);
  static void acquire(void* tag);

 private:
  char* stack_ = nullptr;
  void* pointer_ = nullptr;    // of the stack, while it does not run
  void* sanitizer_ = nullptr;  // its name for the fiber
  void* fake_stack_ = nullptr;
};

// Marks memory as unreadable, or readable, for the address sanitizer.
void forbid(void* start, std::size_t bytes);
void allow(void* start, std::size_t bytes);

}  // namespace emulator
