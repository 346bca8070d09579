#include "many.hpp"

#include <algorithm>
#include <atomic>
#include <vector>

#include "../common/team.hpp"
#include "lane_problems.hpp"
#include "small_problem.hpp"

namespace linattn {

namespace {

// Problems that a thread takes at a time.
constexpr std::int64_t most_at_once = 16;

}  // namespace

void solve_many(const Kernels& kernels, const Samples& all, std::int64_t problems, const double* alphas, int threads,
                const Monitor& monitor, const ManyFits& out) {
  const std::int64_t count = all.tokens.count() / problems, d_out = all.d_out();
  const std::int64_t p = all.pairs() * all.queries();
  const double weight = static_cast<double>(all.positions == Positions::last ? count : count * all.tokens[0].length);
  const std::vector<std::int64_t> places = places_of(all);
  std::atomic<std::int64_t> done{0};
  if (LaneProblems::fit(kernels, all)) {
    // Some groups at a time, as below.
    const std::int64_t groups = (problems + kernels.lanes - 1) / kernels.lanes;
    const std::int64_t at_once = std::clamp<std::int64_t>(groups / (8 * threads), 1, most_at_once / 2);
    Team::run(static_cast<int>(std::min<std::int64_t>(threads, groups)), [&](Team& team, int rank) {
      LaneProblems side_by_side(kernels, all, problems, places);
      team.for_each((groups + at_once - 1) / at_once, [&](std::int64_t task) {
        for (std::int64_t group = task * at_once; group < std::min(groups, (task + 1) * at_once); ++group) {
          const std::int64_t first = group * kernels.lanes,
                             own = std::min<std::int64_t>(kernels.lanes, problems - first);
          side_by_side.solve(first, own, alphas, out);
          const std::int64_t so_far = done += own;
          if (rank == 0) monitor(so_far);
        }
      });
    });
    return;
  }
  Team::run(static_cast<int>(std::min<std::int64_t>(threads, problems)), [&](Team& team, int rank) {
    const auto tokens_of = [&](const Tokens& of, std::int64_t b) {
      const Sequence one = of[b * count];
      return Tokens::dense(one, of.scalar(), count, of.width(), one.length * one.row_stride);
    };
    Tokens tokens = tokens_of(all.tokens, 0), targets = tokens_of(*all.targets, 0);
    const Samples data{tokens, &targets, nullptr, all.positions, all.selection};
    SmallProblem small(kernels, data, weight, places);
    // Some at a time, because tokens that come next in memory are asked for ahead.
    const std::int64_t at_once = std::clamp<std::int64_t>(problems / (8 * threads), 1, most_at_once);
    team.for_each((problems + at_once - 1) / at_once, [&](std::int64_t task) {
      for (std::int64_t b = task * at_once; b < std::min(problems, (task + 1) * at_once); ++b) {
        tokens = tokens_of(all.tokens, b);
        targets = tokens_of(*all.targets, b);
        out.condition[b] = small.solve(alphas[b], out.coefficients + b * d_out * p, out.energy + b, out.error + b);
        const std::int64_t so_far = ++done;
        if (rank == 0) monitor(so_far);
      }
    });
  });
}

}  // namespace linattn
