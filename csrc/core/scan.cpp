#include "scan.hpp"

#include <algorithm>
#include <atomic>

#include "../common/team.hpp"
#include "finite.hpp"

namespace linattn {

namespace {

template <typename T>
bool sequence_is_finite(const Sequence& sequence, std::int64_t d) {
  const T* data = static_cast<const T*>(sequence.data);
  if (sequence.column_stride == 1 && sequence.row_stride == d) return all_finite(data, sequence.length * d);
  for (std::int64_t t = 0; t < sequence.length; ++t) {
    const T* row = data + t * sequence.row_stride;
    for (std::int64_t j = 0; j < d; ++j) {
      if (!(T(0) * row[j * sequence.column_stride] == T(0))) return false;
    }
  }
  return true;
}

}  // namespace

bool are_finite(const double* values, std::int64_t count, int threads) {
  constexpr std::int64_t at_once = 1 << 16;
  const std::int64_t tasks = (count + at_once - 1) / at_once;
  std::atomic<bool> finite{true};
  Team::run(static_cast<int>(std::min<std::int64_t>(threads, tasks / 4)), [&](Team& team, int) {
    team.for_each(tasks, [&](std::int64_t task) {
      const std::int64_t first = task * at_once;
      if (finite && !all_finite(values + first, std::min(at_once, count - first))) finite = false;
    });
  });
  return finite;
}

std::int64_t first_non_finite(const Tokens& tokens, int threads) {
  const std::int64_t at_once = std::max<std::int64_t>(1, (1 << 16) * tokens.count() / (tokens.rows() * tokens.width()));
  const std::int64_t tasks = (tokens.count() + at_once - 1) / at_once;
  std::atomic<std::int64_t> found{tokens.count()};
  Team::run(static_cast<int>(std::min<std::int64_t>(threads, tasks)), [&](Team& team, int) {
    team.for_each(tasks, [&](std::int64_t task) {
      const std::int64_t end = std::min(tokens.count(), (task + 1) * at_once);
      for (std::int64_t i = task * at_once; i < end && i < found; ++i) {
        const bool finite = tokens.scalar() == Scalar::float32 ? sequence_is_finite<float>(tokens[i], tokens.width())
                                                               : sequence_is_finite<double>(tokens[i], tokens.width());
        if (finite) continue;
        std::int64_t before = found;
        while (i < before && !found.compare_exchange_weak(before, i)) {
        }
        return;
      }
    });
  });
  return found == tokens.count() ? -1 : found.load();
}

}  // namespace linattn
