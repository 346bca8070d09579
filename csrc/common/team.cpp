#include "team.hpp"

#include <system_error>
#include <thread>
#include <vector>

namespace linattn {

void Team::run(int threads, const std::function<void(Team&, int rank)>& body) {
  Team team;
  const auto member = [&](int rank) {
    try {
      body(team, rank);
    } catch (const Stop&) {
    } catch (...) {
      team.record_failure();
    }
    team.leave();
  };
  const auto wait_for_start = [&] {
    std::unique_lock<std::mutex> lock(team.mutex_);
    team.changed_.wait(lock, [&] { return team.started_; });
  };

  std::vector<std::thread> others;
  others.reserve(static_cast<std::size_t>(threads > 1 ? threads - 1 : 0));
  for (int rank = 1; rank < threads; ++rank) {
    try {
      others.emplace_back([&, rank] {
        wait_for_start();
        member(rank);
      });
    } catch (const std::system_error&) {
      break;
    }
  }
  {
    const std::lock_guard<std::mutex> lock(team.mutex_);
    team.size_ = static_cast<int>(others.size()) + 1;
    team.started_ = true;
  }
  team.changed_.notify_all();
  member(0);
  for (std::thread& thread : others) thread.join();
  if (team.failure_) std::rethrow_exception(team.failure_);
}

void Team::for_each(std::int64_t count, const std::function<void(std::int64_t)>& task) {
  try {
    while (!failed()) {
      const std::int64_t index = next_.fetch_add(1);
      if (index >= count) break;
      task(index);
    }
  } catch (...) {
    record_failure();
  }
  barrier();
  if (failed()) throw Stop{};
}

void Team::barrier() {
  std::unique_lock<std::mutex> lock(mutex_);
  const std::uint64_t generation = generation_;
  if (++waiting_ == size_) {
    release(lock);
  } else {
    changed_.wait(lock, [&] { return generation_ != generation; });
  }
}

// Resets the task counter and lets the waiting threads go.
void Team::release(std::unique_lock<std::mutex>& lock) {
  waiting_ = 0;
  next_.store(0);
  ++generation_;
  lock.unlock();
  changed_.notify_all();
}

// A thread that has finished or failed no longer counts, so those still at a barrier do not wait for it.
void Team::leave() {
  std::unique_lock<std::mutex> lock(mutex_);
  --size_;
  if (waiting_ > 0 && waiting_ == size_) release(lock);
}

void Team::record_failure() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!failure_) failure_ = std::current_exception();
  failed_.store(true);
}

}  // namespace linattn
