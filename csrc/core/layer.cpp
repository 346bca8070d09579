#include "layer.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "../kernels/block_sizes.hpp"
#include "index.hpp"
#include "sequence_group.hpp"
#include "team.hpp"

namespace linattn {

namespace {

using Matrix = std::shared_ptr<const std::vector<double>>;

// y = [V_1 .. V_H] (S Q_1 z; ..; S Q_H z)
class HeadsLayer final : public Layer {
 public:
  HeadsLayer(const Kernels& kernels, Matrix values, Matrix queries, std::int64_t heads, std::int64_t d_out,
             std::int64_t d)
      : kernels_(kernels),
        values_(std::move(values)),
        queries_(std::move(queries)),
        heads_(heads),
        d_out_(d_out),
        d_(d),
        queried_(heads * d * group_samples),
        attended_(heads * d * group_samples),
        map_(d_out * d * group_samples),
        unit_(d * group_samples),
        column_(d_out * group_samples) {}

  void attend(const double* s, std::int64_t width, std::int64_t queries) override {
    s_ = s;
    mapped_ = queries > d_;
    if (mapped_) form_map(width);
  }

  void query(const double* z, std::int64_t width, double* y) override {
    if (mapped_) {
      kernels_.contract(map_.data(), d_out_, d_, z, width, y);
    } else {
      apply_heads(z, width, y);
    }
  }

 private:
  void apply_heads(const double* z, std::int64_t width, double* y) {
    kernels_.apply(queries_->data(), heads_ * d_, d_, z, width, queried_.data());
    kernels_.apply_symmetric(s_, d_, queried_.data(), heads_, width, attended_.data());
    kernels_.apply(values_->data(), d_out_, heads_ * d_, attended_.data(), width, y);
  }

  // Column l of sum_h V_h S Q_h is what the heads answer to the unit vector e_l.
  void form_map(std::int64_t width) {
    std::fill_n(unit_.data(), d_ * width, 0.0);
    for (std::int64_t l = 0; l < d_; ++l) {
      std::fill_n(unit_.data() + l * width, width, 1.0);
      apply_heads(unit_.data(), width, column_.data());
      for (std::int64_t a = 0; a < d_out_; ++a) {
        std::copy_n(column_.data() + a * width, width, map_.data() + (a * d_ + l) * width);
      }
      std::fill_n(unit_.data() + l * width, width, 0.0);
    }
  }

  const Kernels& kernels_;
  Matrix values_, queries_;  // (d_out, H d) and (H d, d)
  std::int64_t heads_, d_out_, d_;
  Buffer queried_, attended_;      // H d x width
  Buffer map_, unit_, column_;     // d_out d, d and d_out x width
  const double* s_ = nullptr;
  bool mapped_ = false;
};

// y = M z with M[a,l] = sum_u C[a,(u,l)] s_u, formed once for all queries of a sequence
class CoefficientLayer final : public Layer {
 public:
  CoefficientLayer(const Kernels& kernels, Matrix by_query, std::int64_t d_out, std::int64_t d)
      : kernels_(kernels),
        by_query_(std::move(by_query)),
        d_out_(d_out),
        d_(d),
        map_(d_out * d * group_samples) {}

  void attend(const double* s, std::int64_t width, std::int64_t) override {
    kernels_.apply(by_query_->data(), d_out_ * d_, pair_count(d_), s, width, map_.data());
  }

  void query(const double* z, std::int64_t width, double* y) override {
    kernels_.contract(map_.data(), d_out_, d_, z, width, y);
  }

 private:
  const Kernels& kernels_;
  Matrix by_query_;  // (d_out d, q)
  std::int64_t d_out_, d_;
  Buffer map_;  // d_out d x width
};

// S, z and y of one group of sequences: q, d and d_out rows of `width` samples.
struct GroupState {
  GroupState(const Kernels& kernels, std::unique_ptr<Layer> made, const TokenBatch& tokens, std::int64_t d_out)
      : group(kernels, tokens),
        layer(std::move(made)),
        s(pair_count(tokens.width()) * group_samples),
        z(tokens.width() * group_samples),
        y(d_out * group_samples) {}

  SequenceGroup group;
  std::unique_ptr<Layer> layer;
  Buffer s, z, y;
};

class GroupEvaluator {
 public:
  GroupEvaluator(const Kernels& kernels, std::unique_ptr<Layer> layer, const TokenBatch& tokens, Positions positions,
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
    for (std::int64_t column = 0; column < group.count(); ++column) store(column, group.first() + column);
  }

  template <typename Tick>
  void every_query(const Tick& tick) {
    auto& [group, layer, s, z, y] = state_;
    group.second_moments(s.data(), group.width());
    layer->attend(s.data(), group.width(), group.longest());
    for_each_token(tick, [&](const double* token, std::int64_t t) {
      layer->query(token, group.width(), y.data());
      store_position(t);
    });
  }

  // S_t = S_(t-1) + z_t z_t', one query after each update.
  template <typename Tick>
  void every_prefix(const Tick& tick) {
    auto& [group, layer, s, z, y] = state_;
    const std::int64_t d = tokens_.width(), width = group.width();
    std::fill_n(s.data(), pair_count(d) * width, 0.0);
    for_each_token(tick, [&](const double* token, std::int64_t t) {
      kernels_.second_moment(token, 1, d, width, s.data(), width);
      layer->attend(s.data(), width, 1);
      layer->query(token, width, y.data());
      store_position(t);
    });
    for (std::int64_t column = 0; column < group.count(); ++column) {
      require_finite_diagonal(s.data(), width, d, column);
    }
  }

  // body(token t of every sequence, t) for t = 0, 1, ..
  template <typename Tick, typename Body>
  void for_each_token(const Tick& tick, const Body& body) {
    for (std::int64_t t = 0; t < state_.group.longest();) {
      tick();
      const SequenceGroup::Tokens held = state_.group.tokens_from(t);
      for (; t < held.last; ++t) {
        body(held.rows + (t - held.first) * tokens_.width() * state_.group.width(), t);
      }
    }
  }

  // Columns of y to rows of out, for the sequences that have a position t.
  void store_position(std::int64_t t) {
    for (std::int64_t column = 0; column < state_.group.count(); ++column) {
      if (t < state_.group[column].length) store(column, starts_[column] + t);
    }
  }

  void store(std::int64_t column, std::int64_t row) {
    for (std::int64_t a = 0; a < d_out_; ++a) {
      out_[row * d_out_ + a] = state_.y.data()[a * state_.group.width() + column];
    }
  }

  const Kernels& kernels_;
  const TokenBatch& tokens_;
  Positions positions_;
  std::int64_t d_out_;
  double* out_;
  GroupState state_;
  std::int64_t starts_[group_samples] = {};  // rows of the group's first tokens
};

class GroupGenerator {
 public:
  GroupGenerator(const Kernels& kernels, std::unique_ptr<Layer> layer, const TokenBatch& prompts, double* sequences,
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
      kernels_.second_moment(z.data(), 1, d_, width, s.data(), width);
    }
    for (std::int64_t column = 0; column < count; ++column) require_finite_diagonal(s.data(), width, d_, column);
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

// Calls body(first, count, tick) for groups of sequences, shared out among threads, each thread with a state of its
// own; body calls tick() now and then, which throws to stop it.
template <typename MakeBody>
void for_each_group(std::int64_t count, int threads, const Monitor& monitor, const MakeBody& make_body) {
  const std::int64_t groups = (count + group_samples - 1) / group_samples;
  std::atomic<std::int64_t> done{0};
  Team::run(static_cast<int>(std::min<std::int64_t>(threads, groups)), [&](Team& team, int rank) {
    auto body = make_body();
    team.for_each(groups, [&](std::int64_t group) {
      const std::int64_t first = group * group_samples;
      const std::int64_t in_group = std::min(group_samples, count - first);
      // Long sequences: other threads stop when one has failed, the calling one looks after signals.
      body(first, in_group, [&] {
        if (team.failed()) throw Interrupted{};
        if (rank == 0) monitor(done);
      });
      done += in_group;
    });
  });
}

}  // namespace

LayerFactory layer_from_heads(const Kernels& kernels, const double* v, const double* q, std::int64_t heads,
                              std::int64_t d_out, std::int64_t d) {
  auto values = std::make_shared<std::vector<double>>(static_cast<std::size_t>(d_out * heads * d));
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t a = 0; a < d_out; ++a) {
      std::copy_n(v + (h * d_out + a) * d, d, values->data() + (a * heads + h) * d);
    }
  }
  auto queries = std::make_shared<std::vector<double>>(q, q + heads * d * d);
  return [=, &kernels] { return std::make_unique<HeadsLayer>(kernels, values, queries, heads, d_out, d); };
}

LayerFactory layer_from_coefficients(const Kernels& kernels, const double* coefficients, std::int64_t d_out,
                                     std::int64_t d) {
  const std::int64_t pairs = pair_count(d);
  auto by_query = std::make_shared<std::vector<double>>(static_cast<std::size_t>(d_out * d * pairs));
  for (std::int64_t a = 0; a < d_out; ++a) {
    for (std::int64_t u = 0; u < pairs; ++u) {
      for (std::int64_t l = 0; l < d; ++l) {
        (*by_query)[static_cast<std::size_t>((a * d + l) * pairs + u)] = coefficients[(a * pairs + u) * d + l];
      }
    }
  }
  return [=, &kernels] { return std::make_unique<CoefficientLayer>(kernels, by_query, d_out, d); };
}

void evaluate(const Kernels& kernels, const LayerFactory& make_layer, const TokenBatch& tokens, Positions positions,
              std::int64_t d_out, int threads, const Monitor& monitor, double* out) {
  for_each_group(tokens.count(), threads, monitor,
                 [&] { return GroupEvaluator(kernels, make_layer(), tokens, positions, d_out, out); });
}

void generate(const Kernels& kernels, const LayerFactory& make_layer, double* sequences, std::int64_t count,
              std::int64_t start, std::int64_t steps, std::int64_t d, double scale, int threads,
              const Monitor& monitor) {
  const TokenBatch prompts = TokenBatch::dense({sequences, start, d, 1}, Scalar::float64, count, d,
                                               /*sequence_stride=*/(start + steps) * d);
  for_each_group(count, threads, monitor, [&] {
    return GroupGenerator(kernels, make_layer(), prompts, sequences, start, start + steps, scale);
  });
}

}  // namespace linattn
