#include "evaluation.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "../common/block_sizes.hpp"
#include "../common/index.hpp"
#include "../common/team.hpp"
#include "sequence_group.hpp"

namespace linattn {

namespace {

constexpr std::int64_t answers_at_once = 8;

// S, z and y of one group of sequences: q, d and d_out rows of `width` samples, y for several queries.
struct GroupState {
  GroupState(const Kernels& kernels, std::unique_ptr<Layer> made, const Tokens& tokens, std::int64_t d_out)
      : group(kernels, tokens),
        layer(std::move(made)),
        s(pair_count(tokens.width()) * group_samples),
        z(tokens.width() * group_samples),
        y(answers_at_once * d_out * group_samples) {}

  SequenceGroup group;
  std::unique_ptr<Layer> layer;
  Buffer s, z, y;
};

class GroupEvaluator {
 public:
  GroupEvaluator(const Kernels& kernels, std::unique_ptr<Layer> layer, const Tokens& tokens, Positions positions,
                 std::int64_t d_out, double* out)
      : kernels_(kernels),
        tokens_(tokens),
        positions_(positions),
        d_out_(d_out),
        out_(out),
        state_(kernels, std::move(layer), tokens, d_out) {}

  template <typename Tick>
  void operator()(std::int64_t first, std::int64_t count, const Tick& tick) {
    tick();
    state_.group.select(first, count);
    for (std::int64_t column = 0; column < count; ++column) starts_[column] = tokens_.row_start(first + column);
    switch (positions_) {
      case Positions::last:
        return last_query();
      case Positions::all:
        return every_query(tick);
      case Positions::causal:
        return every_prefix(tick);
    }
  }

 private:
  void last_query() {
    auto& [group, layer, s, z, y] = state_;
    group.second_moments(s.data(), group.width());
    group.last_tokens(z.data(), group.width());
    layer->attend(s.data(), group.width(), 1);
    layer->query(z.data(), group.width(), y.data());
    for (std::int64_t column = 0; column < group.count(); ++column) store(column, group.first() + column, 1);
  }

  template <typename Tick>
  void every_query(const Tick& tick) {
    auto& [group, layer, s, z, y] = state_;
    group.second_moments(s.data(), group.width());
    layer->attend(s.data(), group.width(), group.longest());
    if (layer->map() != nullptr && answer_each_sequence(layer->map())) return;
    answer_tokens(tick, [&](const double* token, double* answer) { layer->query(token, group.width(), answer); });
  }

  // One sequence after the other, if they all lend themselves to it.
  bool answer_each_sequence(const double* map) {
    const SequenceGroup& group = state_.group;
    for (std::int64_t column = 0; column < group.count(); ++column) {
      if (!kernels_.answer_sequence(group[column], tokens_.scalar(), tokens_.width(), map + column, group.width(),
                                    d_out_, out_ + starts_[column] * d_out_)) {
        return false;
      }
    }
    return true;
  }

  template <typename Tick>
  void every_prefix(const Tick& tick) {
    auto& [group, layer, s, z, y] = state_;
    layer->start(group.width());
    answer_tokens(tick, [&](const double* token, double* answer) {
      require_finite_rows(token, group.width(), tokens_.width(), group.count());
      layer->follow(token, group.width(), answer);
    });
  }

  // body(token t of every sequence, answer) for t = 0, 1, ..; answers are stored several at a time, which lie side by
  // side.
  template <typename Tick, typename Body>
  void answer_tokens(const Tick& tick, const Body& body) {
    const std::int64_t width = state_.group.width();
    for (std::int64_t t = 0; t < state_.group.longest();) {
      tick();
      const SequenceGroup::TokenRows held = state_.group.tokens_from(t);
      while (t < held.last) {
        const std::int64_t first = t;
        double* answer = state_.y.data();
        for (; t < std::min(first + answers_at_once, held.last); ++t, answer += d_out_ * width) {
          body(held.rows + (t - held.first) * tokens_.width() * width, answer);
        }
        for (std::int64_t column = 0; column < state_.group.count(); ++column) {
          store(column, starts_[column] + first, std::min(t, state_.group[column].length) - first);
        }
      }
    }
  }

  // A column of so many answers to rows of out.
  void store(std::int64_t column, std::int64_t row, std::int64_t answers) {
    const double* y = state_.y.data() + column;
    double* out = out_ + row * d_out_;
    for (std::int64_t i = 0; i < answers * d_out_; ++i) out[i] = y[i * state_.group.width()];
  }

  const Kernels& kernels_;
  const Tokens& tokens_;
  Positions positions_;
  std::int64_t d_out_;
  double* out_;
  GroupState state_;
  std::int64_t starts_[group_samples] = {};  // rows of the group's first tokens
};

class GroupGenerator {
 public:
  GroupGenerator(const Kernels& kernels, std::unique_ptr<Layer> layer, const Tokens& prompts, double* sequences,
                 std::int64_t start, std::int64_t end, double scale)
      : kernels_(kernels),
        sequences_(sequences),
        start_(start),
        end_(end),
        d_(prompts.width()),
        scale_(scale),
        state_(kernels, std::move(layer), prompts, d_) {}

  template <typename Tick>
  void operator()(std::int64_t first, std::int64_t count, const Tick& tick) {
    auto& [group, layer, s, z, y] = state_;
    group.select(first, count);
    const std::int64_t width = group.width();
    group.second_moments(s.data(), width);
    group.last_tokens(z.data(), width);
    for (std::int64_t t = start_; t < end_; ++t) {
      if (t % 64 == 0) tick();
      layer->attend(s.data(), width, 1);
      layer->query(z.data(), width, y.data());
      append(first, count, t);
      std::copy_n(y.data(), d_ * width, z.data());
      kernels_.add_token(z.data(), d_, width, s.data());
    }
    require_finite_diagonal(s.data(), width, d_, count);
  }

 private:
  void append(std::int64_t first, std::int64_t count, std::int64_t t) {
    for (std::int64_t column = 0; column < count; ++column) {
      double* token = sequences_ + ((first + column) * end_ + t) * d_;
      for (std::int64_t j = 0; j < d_; ++j) {
        double& value = state_.y.data()[j * state_.group.width() + column];
        if (scale_ > 0.0) value = std::nearbyint(value * scale_) / scale_;
        token[j] = value;
      }
    }
  }

  const Kernels& kernels_;
  double* sequences_;
  std::int64_t start_, end_, d_;
  double scale_;
  GroupState state_;
};

// Unwinds a thread whose result nobody will see.
struct Interrupted {};

// Coordinates of tokens that a thread takes at a time: fewer, and threads wait for each other's counters, and each asks
// for tokens ahead that another will read.
constexpr std::int64_t numbers_at_once = std::int64_t{1} << 16;

// Calls body(first, count, tick) for groups of sequences, with so many numbers in all, shared out among threads, each
// thread with a state of its own; body calls tick() now and then, which throws to stop it.
template <typename MakeBody>
void for_each_group(std::int64_t count, std::int64_t numbers, int threads, const Monitor& monitor,
                    const MakeBody& make_body) {
  const std::int64_t groups = (count + group_samples - 1) / group_samples;
  const std::int64_t at_once = std::clamp<std::int64_t>(numbers_at_once * groups / numbers, 1,
                                                        std::max<std::int64_t>(1, groups / (4 * threads)));
  const std::int64_t tasks = (groups + at_once - 1) / at_once;
  std::atomic<std::int64_t> done{0};
  Team::run(static_cast<int>(std::min<std::int64_t>(threads, tasks)), [&](Team& team, int rank) {
    auto body = make_body();
    team.for_each(tasks, [&](std::int64_t task) {
      const std::int64_t begin = task * at_once * group_samples;
      const std::int64_t end = std::min(count, begin + at_once * group_samples);
      for (std::int64_t first = begin; first < end; first += group_samples) {
        // Long sequences: other threads stop when one has failed, the calling one looks after signals.
        body(first, std::min(group_samples, end - first), [&] {
          if (team.failed()) throw Interrupted{};
          if (rank == 0) monitor(done);
        });
      }
      done += end - begin;
    });
  });
}

}  // namespace

void evaluate(const Kernels& kernels, const LayerFactory& make_layer, const Tokens& tokens, Positions positions,
              std::int64_t d_out, int threads, const Monitor& monitor, double* out) {
  for_each_group(tokens.count(), tokens.rows() * tokens.width(), threads, monitor,
                 [&] { return GroupEvaluator(kernels, make_layer(), tokens, positions, d_out, out); });
}

void generate(const Kernels& kernels, const LayerFactory& make_layer, double* sequences, std::int64_t count,
              std::int64_t start, std::int64_t steps, std::int64_t d, double scale, int threads,
              const Monitor& monitor) {
  const Tokens prompts = Tokens::dense({sequences, start, d, 1}, Scalar::float64, count, d,
                                       /*sequence_stride=*/(start + steps) * d);
  for_each_group(count, count * (start + steps) * d, threads, monitor, [&] {
    return GroupGenerator(kernels, make_layer(), prompts, sequences, start, start + steps, scale);
  });
}

}  // namespace linattn
