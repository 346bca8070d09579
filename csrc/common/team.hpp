// Threads for the length of one call. There is no pool that outlives a call, so nothing breaks after fork().
//
// Every thread of the team runs the same body; inside it, for_each() shares out numbered tasks and returns on all
// threads once all tasks are done. Tasks write disjoint outputs, so which thread takes which does not change a bit.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>

namespace linattn {

class Team {
 public:
  // Runs body on up to `threads` threads, the calling one (rank 0) included, and rethrows the first exception.
  // Fewer threads take part when the system refuses to start more.
  static void run(int threads, const std::function<void(Team&, int rank)>& body);

  // Collective. task(index) for index = 0 .. count - 1, each once.
  void for_each(std::int64_t count, const std::function<void(std::int64_t)>& task);

  // True once a task has thrown: long tasks look at it to stop early.
  bool failed() const { return failed_.load(std::memory_order_relaxed); }

 private:
  struct Stop {};  // unwinds the other threads after a failure

  void barrier();
  void release(std::unique_lock<std::mutex>& lock);
  void leave();
  void record_failure();

  std::mutex mutex_;
  std::condition_variable changed_;
  int size_ = 1, waiting_ = 0;
  std::uint64_t generation_ = 0;
  bool started_ = false;
  std::atomic<std::int64_t> next_{0};
  std::atomic<bool> failed_{false};
  std::exception_ptr failure_;
};

}  // namespace linattn
