#include "fibers.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <deque>
#include <new>

// EMULATOR_UCONTEXT: glibc's switch also where there is a faster one, to try what other processors use.
#if !defined(__x86_64__) || defined(EMULATOR_UCONTEXT)
#include <ucontext.h>
#else
#define EMULATOR_X86
#endif

#ifdef EMULATOR_TSAN
extern "C" {
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void* __tsan_get_current_fiber();
void __tsan_acquire(void* tag);
void __tsan_release(void* tag);
}
#endif
#ifdef EMULATOR_ASAN
extern "C" {
void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom, std::size_t size);
void __sanitizer_finish_switch_fiber(void* fake_stack, const void** bottom, std::size_t* size);
void __asan_poison_memory_region(const volatile void* start, std::size_t size);
void __asan_unpoison_memory_region(const volatile void* start, std::size_t size);
}
#endif

namespace emulator {

namespace {

constexpr std::size_t stack_bytes = 64 << 10;

#ifdef EMULATOR_X86
// Saves what a call must preserve on the present stack, its pointer in *from, and goes on where `to` was left. glibc's
// own function does the same, with two calls of the system for signals.
extern "C" void emulator_switch(void** from, void* to);
asm(R"(
.text
.globl emulator_switch
.hidden emulator_switch
.type emulator_switch, @function
emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulator_switch, .-emulator_switch
)");

void* scheduler_pointer;

void* fresh_stack(char* stack, void (*entry)()) {
  auto* top = reinterpret_cast<std::uintptr_t*>(stack + stack_bytes);
  *--top = 0;  // where a return address would be: the stack is aligned as after a call
  *--top = reinterpret_cast<std::uintptr_t>(entry);
  for (int i = 0; i < 6; ++i) *--top = 0;
  return top;
}

void to_fiber(void** pointer) { emulator_switch(&scheduler_pointer, *pointer); }
void to_scheduler(void** pointer) { emulator_switch(pointer, scheduler_pointer); }
#else
ucontext_t scheduler_context;

void* fresh_stack(char* stack, void (*entry)()) {
  auto* context = reinterpret_cast<ucontext_t*>(stack);  // at the stack's far end
  getcontext(context);
  context->uc_stack.ss_sp = stack + sizeof(ucontext_t);
  context->uc_stack.ss_size = stack_bytes - sizeof(ucontext_t);
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
  return context;
}

void to_fiber(void** pointer) { swapcontext(&scheduler_context, static_cast<ucontext_t*>(*pointer)); }
void to_scheduler(void** pointer) { swapcontext(static_cast<ucontext_t*>(*pointer), &scheduler_context); }
#endif

#ifdef EMULATOR_TSAN
void* scheduler_name;
std::deque<void*> retired;
constexpr unsigned without_ordering = 1;
#endif
#ifdef EMULATOR_ASAN
void* scheduler_fake_stack;
const void* scheduler_stack;
std::size_t scheduler_stack_bytes;
#endif

char* map_stack(char* where) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (where != nullptr ? MAP_FIXED : 0);
  void* const stack = mmap(where, stack_bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (stack == MAP_FAILED) throw std::bad_alloc();
  return static_cast<char*>(stack);
}

}  // namespace

Fiber::~Fiber() {
  if (stack_ != nullptr) munmap(stack_, stack_bytes);
}

void Fiber::prepare(void (*entry)()) {
#ifdef EMULATOR_TSAN
  stack_ = map_stack(stack_);  // mapped anew: another fiber's accesses to the same addresses are forgotten
  scheduler_name = __tsan_get_current_fiber();
  sanitizer_ = __tsan_create_fiber(0);
#else
  if (stack_ == nullptr) stack_ = map_stack(nullptr);
#endif
  allow(stack_, stack_bytes);
  pointer_ = fresh_stack(stack_, entry);
  fake_stack_ = nullptr;
}

void Fiber::enter() {
#ifdef EMULATOR_TSAN
  __tsan_switch_to_fiber(sanitizer_, without_ordering);
#endif
#ifdef EMULATOR_ASAN
  __sanitizer_start_switch_fiber(&scheduler_fake_stack, stack_, stack_bytes);
#endif
  to_fiber(&pointer_);
#ifdef EMULATOR_ASAN
  __sanitizer_finish_switch_fiber(scheduler_fake_stack, nullptr, nullptr);
#endif
}

void Fiber::leave(bool last) {
#ifdef EMULATOR_TSAN
  __tsan_switch_to_fiber(scheduler_name, without_ordering);
#endif
#ifdef EMULATOR_ASAN
  __sanitizer_start_switch_fiber(last ? nullptr : &fake_stack_, scheduler_stack, scheduler_stack_bytes);
#endif
  static_cast<void>(last);
  to_scheduler(&pointer_);
#ifdef EMULATOR_ASAN
  __sanitizer_finish_switch_fiber(fake_stack_, nullptr, nullptr);
#endif
}

void Fiber::entered() {
#ifdef EMULATOR_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_stack_bytes);
#endif
}

void Fiber::retire() {
#ifdef EMULATOR_TSAN
  retired.push_back(sanitizer_);
#endif
}

void Fiber::forget_retired([[maybe_unused]] std::size_t kept) {
#ifdef EMULATOR_TSAN
  for (; retired.size() > kept; retired.pop_front()) __tsan_destroy_fiber(retired.front());
#endif
}

void Fiber::release([[maybe_unused]] void* tag) {
#ifdef EMULATOR_TSAN
  __tsan_release(tag);
#endif
}

void Fiber::acquire([[maybe_unused]] void* tag) {
#ifdef EMULATOR_TSAN
  __tsan_acquire(tag);
#endif
}

void forbid([[maybe_unused]] void* start, [[maybe_unused]] std::size_t bytes) {
#ifdef EMULATOR_ASAN
  __asan_poison_memory_region(start, bytes);
#endif
}

void allow([[maybe_unused]] void* start, [[maybe_unused]] std::size_t bytes) {
#ifdef EMULATOR_ASAN
  __asan_unpoison_memory_region(start, bytes);
#endif
}

}  // namespace emulator
