#include "team.hpp"

#include <chrono>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

namespace linattn {

namespace {

// Bits of Shared::next for the task; the others count calls of for_each().
constexpr int task_bits = 36;
constexpr std::uint64_t task_mask = (std::uint64_t{1} << task_bits) - 1;

// How long a thread looks for the end of the others' tasks before it sleeps: about what falling asleep and waking up
// takes, so that at most as much is lost as is gained.
constexpr std::chrono::microseconds looking{20};

}  // namespace

void Team::run(int threads, const std::function<void(Team&, int rank)>& body) {
  const auto shared = std::make_shared<Shared>();
  for (int rank = 1; rank < threads; ++rank) {
    try {
      std::thread([shared, &body, rank] {
        {
          const std::lock_guard<std::mutex> lock(shared->mutex);
          if (shared->over) return;  // body is gone
          ++shared->inside;
        }
        take_part(*shared, body, rank);
        const std::lock_guard<std::mutex> lock(shared->mutex);
        --shared->inside;
        shared->changed.notify_all();
      }).detach();
    } catch (const std::system_error&) {
      break;
    }
  }
  take_part(*shared, body, 0);
  std::unique_lock<std::mutex> lock(shared->mutex);
  shared->over = true;
  shared->changed.wait(lock, [&] { return shared->inside == 0; });
  // Not left to a thread that is late, which may not destroy what belongs to the caller
  if (const std::exception_ptr failure = std::exchange(shared->failure, nullptr)) std::rethrow_exception(failure);
}

void Team::take_part(Shared& shared, const std::function<void(Team&, int rank)>& body, int rank) {
  try {
    Team team(shared);
    body(team, rank);
  } catch (const Stop&) {
  } catch (...) {
    shared.record_failure();
  }
}

void Team::for_each(std::int64_t count, const std::function<void(std::int64_t)>& task) {
  if (count > 0) {
    try {
      for (std::int64_t index = 0; !failed() && take(count, index);) {
        task(index);
        if (shared_.done.fetch_add(1) + 1 == count) finish();
      }
    } catch (...) {
      shared_.record_failure();
    }
    wait();
    if (failed()) throw Stop{};
    ++phase_;
  }
}

// Takes the next task of this thread's for_each(); false where there is none left.
bool Team::take(std::int64_t count, std::int64_t& index) {
  std::uint64_t next = shared_.next.load();
  do {
    index = static_cast<std::int64_t>(next & task_mask);
    if (next >> task_bits != phase_ || index >= count) return false;
  } while (!shared_.next.compare_exchange_weak(next, next + 1));
  return true;
}

bool Team::finished() const { return shared_.next.load() >> task_bits > phase_; }

// All tasks are done: begins the next for_each(), and lets the waiting threads go.
void Team::finish() {
  shared_.done.store(0);
  {
    const std::lock_guard<std::mutex> lock(shared_.mutex);
    shared_.next.store((phase_ + 1) << task_bits);
  }
  shared_.changed.notify_all();
}

void Team::wait() {
  if (finished() || failed()) return;
  const auto end = std::chrono::steady_clock::now() + looking;
  while (std::chrono::steady_clock::now() < end) {
    if (finished() || failed()) return;
  }
  std::unique_lock<std::mutex> lock(shared_.mutex);
  shared_.changed.wait(lock, [&] { return finished() || failed(); });
}

void Team::Shared::record_failure() {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (!failure) failure = std::current_exception();
    failed.store(true);
  }
  changed.notify_all();
}

}  // namespace linattn
