// Threads for the length of one call. There is no pool that outlives a call, so nothing breaks after fork().
//
// Every thread of the team runs the same body; inside it, for_each() shares out numbered tasks and returns once all of
// them are done. Tasks write disjoint outputs, so which thread takes which does not change a bit.
//
// Nobody waits for a thread that has no task in hand. Where other programs want the cores, a new thread may have to
// wait for milliseconds before it runs: it joins whatever is under way then, passing over what is done, and if all is
// done it goes away. So the body between two for_each() must not depend on what other threads are doing: it may read
// what tasks of earlier for_each() have written only through atomics, because it may still be there when later tasks
// write it again.
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
  // Fewer threads take part when the system refuses to start more, or starts them too late.
  static void run(int threads, const std::function<void(Team&, int rank)>& body);

  // Collective: every thread calls it in the same order with the same count. task(index) for index = 0 .. count - 1,
  // each once.
  void for_each(std::int64_t count, const std::function<void(std::int64_t)>& task);

  // True once a task has thrown: long tasks look at it to stop early.
  bool failed() const { return shared_.failed.load(std::memory_order_relaxed); }

 private:
  struct Stop {};  // unwinds the other threads after a failure

  // What the threads of one run share. It lives until the last of them has seen that the run is over.
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    // Which for_each() is under way, and the next of its tasks: one number, so that no thread that is late takes a task
    // of another for_each() than it means.
    std::atomic<std::uint64_t> next{0};
    std::atomic<std::int64_t> done{0};  // tasks of this for_each() that are done
    std::atomic<bool> failed{false};
    std::exception_ptr failure;
    int inside = 0;     // threads in the body, but for rank 0
    bool over = false;  // rank 0 has left the body, and others no longer enter it

    void record_failure();
  };

  explicit Team(Shared& shared) : shared_(shared) {}

  static void take_part(Shared& shared, const std::function<void(Team&, int rank)>& body, int rank);
  bool take(std::int64_t count, std::int64_t& index);
  bool finished() const;
  void finish();
  void wait();

  Shared& shared_;
  std::uint64_t phase_ = 0;  // the for_each() that this thread is in, counted from 0
};

}  // namespace linattn
