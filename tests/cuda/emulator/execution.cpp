// Launches: blocks one after the other, their threads as fibers.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "emulator.hpp"
#include "fibers.hpp"
#include "launch_check.hpp"

#undef threadIdx
#undef blockIdx
#undef gridDim

namespace emulator {

namespace {

constexpr std::size_t warp_size = 32, shared_bytes = 48 << 10, shared_gap_bytes = 64;
// Behind a block's shared memory: two tags for its barriers.
constexpr std::size_t tag_bytes = 8, block_bytes = shared_bytes + 2 * tag_bytes;
// Fibers of earlier blocks that are kept: races between blocks of 256 threads are seen over 16 of them.
constexpr std::size_t fibers_kept = 4096;
constexpr int gap_byte = 0xff;  // doubles of such bytes are NaN

enum class State { ready, at_barrier, in_warp_operation, done };
enum class Operation { multiply_add, shuffle };

struct Thread {
  Fiber fiber;
  dim3 index;
  std::size_t number = 0;
  State state = State::ready;
  const char* file = nullptr;  // of the barrier it waits at
  int line = 0;
  unsigned barriers = 0;
  // What it brings to an operation of its warp, and gets from it.
  Operation operation = Operation::shuffle;
  double a = 0.0, b = 0.0, c0 = 0.0, c1 = 0.0;
  int source = 0;
};

struct Allocation {
  const char* file;
  int line;
  char* start;
};

// The block that runs. There is one at a time.
struct Block {
  dim3 index, grid;
  const std::function<void()>* body = nullptr;
  Thread* current = nullptr;
  char* memory = nullptr;  // block_bytes
  std::size_t used = 0;
  std::vector<Allocation> allocations;
  std::string error;
  char end_tag = 0;
};

Block block;
std::vector<std::unique_ptr<Thread>> threads;
std::mutex one_launch;

std::string at(const char* file, int line) { return std::string(file) + ":" + std::to_string(line); }

void run_thread() {
  block.current->fiber.entered();
  (*block.body)();
  Thread* const thread = block.current;
  thread->state = State::done;
  Fiber::release(&block.end_tag);
  thread->fiber.leave(true);
}

// Called on a fiber, whose stack cannot be unwound: the scheduler throws.
[[noreturn]] void fail(std::string message) {
  block.error = std::move(message);
  block.current->state = State::done;
  block.current->fiber.leave(true);
  std::abort();
}

void complete(Thread** lanes) {
  if (lanes[0]->operation == Operation::shuffle) {
    double values[warp_size];
    for (std::size_t i = 0; i < warp_size; ++i) values[i] = lanes[i]->a;
    for (std::size_t i = 0; i < warp_size; ++i) {
      lanes[i]->a = values[static_cast<unsigned>(lanes[i]->source) % warp_size];
    }
    return;
  }
  for (std::size_t i = 0; i < warp_size; ++i) {
    const std::size_t row = i / 4, column = 2 * (i % 4);
    for (std::size_t k = 0; k < 4; ++k) {
      const double a = lanes[row * 4 + k]->a;
      lanes[i]->c0 = std::fma(a, lanes[column * 4 + k]->b, lanes[i]->c0);
      lanes[i]->c1 = std::fma(a, lanes[(column + 1) * 4 + k]->b, lanes[i]->c1);
    }
  }
}

// Lets warps go on whose threads have all arrived at an operation. Returns whether there were any.
bool complete_operations(std::size_t count) {
  bool any = false;
  for (std::size_t first = 0; first < count; first += warp_size) {
    Thread* lanes[warp_size];
    std::size_t waiting = 0;
    for (std::size_t i = first; i < first + warp_size && i < count; ++i) {
      lanes[i - first] = threads[i].get();
      if (threads[i]->state == State::in_warp_operation) ++waiting;
    }
    if (waiting == 0) continue;
    for (std::size_t i = 1; i < waiting && waiting == warp_size; ++i) {
      if (lanes[i]->operation != lanes[0]->operation) waiting = 0;
    }
    if (waiting != warp_size) {
      throw std::runtime_error("emulator: an operation of a warp that not all its threads reach");
    }
    complete(lanes);
    for (Thread* lane : lanes) lane->state = State::ready;
    any = true;
  }
  return any;
}

// Every thread waits at a barrier or has ended: lets them go on. Returns whether the block has ended.
bool pass_barrier(std::size_t count) {
  std::size_t done = 0;
  const Thread* first = nullptr;
  for (std::size_t i = 0; i < count; ++i) {
    const Thread& thread = *threads[i];
    if (thread.state == State::done) {
      ++done;
    } else if (first == nullptr) {
      first = &thread;
    } else if (thread.line != first->line || std::strcmp(thread.file, first->file) != 0) {
      throw std::runtime_error("emulator: threads of a block wait at different barriers, " +
                               at(first->file, first->line) + " and " + at(thread.file, thread.line));
    }
  }
  if (done == count) return true;
  if (done > 0) {
    throw std::runtime_error("emulator: the barrier at " + at(first->file, first->line) + " is not reached by " +
                             std::to_string(done) + " threads of the block, which have ended");
  }
  for (std::size_t i = 0; i < count; ++i) threads[i]->state = State::ready;
  return false;
}

// Retires the fibers however the block ends.
class Team {
 public:
  explicit Team(dim3 size) : count_(static_cast<std::size_t>(size.x) * size.y * size.z) {
    while (threads.size() < count_) threads.push_back(std::make_unique<Thread>());
    for (std::size_t i = 0; i < count_; ++i) {
      Thread& thread = *threads[i];
      thread.number = i;
      thread.index = dim3(static_cast<unsigned>(i % size.x), static_cast<unsigned>(i / size.x % size.y),
                          static_cast<unsigned>(i / size.x / size.y));
      thread.state = State::ready;
      thread.barriers = 0;
      thread.fiber.prepare(&run_thread);
    }
  }
  ~Team() {
    for (std::size_t i = 0; i < count_; ++i) threads[i]->fiber.retire();
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  void run(Order order, std::mt19937& random) {
    std::vector<std::size_t> turns(count_);
    std::iota(turns.begin(), turns.end(), std::size_t{0});
    if (order == Order::reverse) std::reverse(turns.begin(), turns.end());
    do {
      do {
        if (order == Order::random) std::shuffle(turns.begin(), turns.end(), random);
        for (const std::size_t i : turns) {
          if (threads[i]->state != State::ready) continue;
          block.current = threads[i].get();
          threads[i]->fiber.enter();
          if (!block.error.empty()) throw std::runtime_error("emulator: " + std::exchange(block.error, ""));
        }
      } while (complete_operations(count_));
    } while (!pass_barrier(count_));
  }

 private:
  std::size_t count_;
};

// Shared memory of the blocks of a launch. Each has its own, all of it NaN; none is given back before all blocks have
// ended, because the thread sanitizer must not take one block's accesses for another's.
class SharedMemory {
 public:
  char* fresh() {
#ifndef EMULATOR_TSAN
    blocks_.clear();
#endif
    blocks_.emplace_back(static_cast<char*>(std::malloc(block_bytes)));
    std::memset(blocks_.back().get(), gap_byte, block_bytes);
    forbid(blocks_.back().get(), block_bytes);
    return blocks_.back().get();
  }

 private:
  struct Free {
    void operator()(char* memory) const {
      allow(memory, block_bytes);
      std::free(memory);
    }
  };
  std::vector<std::unique_ptr<char, Free>> blocks_;
};

}  // namespace

dim3 thread_index() { return block.current->index; }
dim3 block_index() { return block.index; }
dim3 grid_size() { return block.grid; }
bool tensor_cores() { return settings().tensor_cores; }

void launch(dim3 grid, dim3 size, cudaStream_t, const std::function<void()>& body) {
  if (!may_launch(grid, size)) return;
  const std::lock_guard<std::mutex> lock(one_launch);
  std::mt19937 random(settings().seed);
  const Order order = settings().order;
  std::vector<std::uint64_t> turns(static_cast<std::uint64_t>(grid.x) * grid.y * grid.z);
  std::iota(turns.begin(), turns.end(), std::uint64_t{0});
  if (order == Order::reverse) std::reverse(turns.begin(), turns.end());
  if (order == Order::random) std::shuffle(turns.begin(), turns.end(), random);
  SharedMemory memory;
  block.grid = grid;
  block.body = &body;
  for (const std::uint64_t turn : turns) {
    block.index = dim3(static_cast<unsigned>(turn % grid.x), static_cast<unsigned>(turn / grid.x % grid.y),
                       static_cast<unsigned>(turn / grid.x / grid.y));
    block.memory = memory.fresh();
    block.used = 0;
    block.allocations.clear();
    Team(size).run(order, random);
    Fiber::forget_retired(fibers_kept);
  }
  Fiber::acquire(&block.end_tag);  // only now: blocks are not ordered among themselves
  Fiber::forget_retired(0);
}

void* shared(std::size_t bytes, const char* file, int line) {
  for (const Allocation& known : block.allocations) {
    if (known.line == line && std::strcmp(known.file, file) == 0) return known.start;
  }
  if (block.used + bytes > shared_bytes) fail("more than 48 KiB of shared memory at " + at(file, line));
  char* const start = block.memory + block.used;
  allow(start, bytes);
  block.used =
      std::min(shared_bytes, (block.used + bytes + 2 * shared_gap_bytes - 1) / shared_gap_bytes * shared_gap_bytes);
  block.allocations.push_back({file, line, start});
  return start;
}

void barrier(const char* file, int line) {
  Thread& thread = *block.current;
  thread.state = State::at_barrier;
  thread.file = file;
  thread.line = line;
  // Two tags in turn: a thread that has passed may reach the next barrier before another one has passed this.
  char* const tag = block.memory + shared_bytes + thread.barriers++ % 2 * tag_bytes;
  Fiber::release(tag);
  thread.fiber.leave(false);
  Fiber::acquire(tag);
}

void multiply_add_8x8x4(double& c0, double& c1, double a, double b) {
  Thread& thread = *block.current;
  thread.operation = Operation::multiply_add;
  thread.a = a;
  thread.b = b;
  thread.c0 = c0;
  thread.c1 = c1;
  thread.state = State::in_warp_operation;
  thread.fiber.leave(false);  // orders no memory accesses, as on a card
  c0 = thread.c0;
  c1 = thread.c1;
}

double shuffle(double value, int source) {
  Thread& thread = *block.current;
  thread.operation = Operation::shuffle;
  thread.a = value;
  thread.source = source;
  thread.state = State::in_warp_operation;
  thread.fiber.leave(false);
  return thread.a;
}

unsigned long long atomic_min(unsigned long long* place, unsigned long long value) {
  unsigned long long old = __atomic_load_n(place, __ATOMIC_RELAXED);
  while (value < old && !__atomic_compare_exchange_n(place, &old, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return old;
}

}  // namespace emulator
