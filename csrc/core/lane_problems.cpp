#include "lane_problems.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "../common/block_sizes.hpp"
#include "../common/index.hpp"
#include "moments.hpp"
#include "sequence_group.hpp"
#include "small_problem.hpp"

namespace linattn {

namespace {

// Bytes of matrices that stay in the L2 cache, and of samples that are kept there for their errors.
constexpr std::int64_t most_matrix_bytes = 512 << 10, most_kept_bytes = 1 << 20;

RowPair row_pair(std::int64_t x, std::int64_t y) {
  return {static_cast<std::int32_t>(x), static_cast<std::int32_t>(y)};
}

}  // namespace

bool LaneProblems::fit(const Kernels& kernels, const Samples& all) {
  const std::int64_t p = all.pairs() * all.queries();
  return all.positions != Positions::all && (gram_size(all) + pair_count(p)) * kernels.lanes * 8 <= most_matrix_bytes;
}

LaneProblems::LaneProblems(const Kernels& kernels, const Samples& all, std::int64_t problems,
                           const std::vector<std::int64_t>& places)
    : kernels_(kernels),
      all_(all),
      places_(places),
      lanes_(kernels.lanes),
      sequences_(all.tokens.count() / problems),
      length_(all.tokens[0].length),
      samples_(all.positions == Positions::last ? sequences_ : sequences_ * length_),
      block_size_(block_samples / lanes_),
      q_(all.pairs()),
      k_(all.queries()),
      d_(all.d()),
      d_out_(all.d_out()),
      p_(q_ * k_),
      blocks_((samples_ + block_size_ - 1) / block_size_),
      kept_((q_ + k_ + d_out_) * block_stride * 8 * blocks_ <= most_kept_bytes ? blocks_ : 1),
      weight_(static_cast<double>(samples_)),
      tokens_(at(lanes_)),
      targets_(at(lanes_)),
      query_rows_(pair_count(k_) * block_stride),
      scratch_(std::max(sequence_scratch(d_, 0), block_samples * std::max(d_, d_out_))),
      carry_(all.formed_pairs() * lanes_),
      gram_(gram_size(all) * lanes_),
      cross_(d_out_ * p_ * lanes_),
      energy_(d_out_ * lanes_),
      shift_(lanes_),
      upper_(p_ * p_ * lanes_),
      scale_(p_ * lanes_),
      sums_(p_ * lanes_),
      norm_(lanes_),
      inverse_norm_(lanes_),
      reciprocals_(p_ * lanes_),
      columns_(4 * p_ * lanes_),
      coefficients_(d_out_ * p_ * lanes_),
      explained_(lanes_),
      ridge_(lanes_),
      error_(d_out_ * lanes_) {
  for (std::int64_t b = 0; b < kept_; ++b) rows_.emplace_back((q_ + k_ + d_out_) * block_stride);
  for (std::int64_t i = 0; i < all.formed_pairs(); ++i) {
    const Pair pair = pair_at(all.forms_few() ? all.selection->formed[at(i)] : i, d_);
    formed_.push_back(row_pair(pair.j, pair.k));
  }
  if (all.selection != nullptr) {
    all_s_ = Buffer((all.formed_pairs() + 1) * block_stride);
    all_z_ = Buffer(d_ * block_stride);
    for (const std::int64_t pair : all.selection->pairs) pair_rows_.push_back(all.row_of(pair));
  }
  for (Pair pair{0, 0}; pair.j < k_; pair = next_pair(pair, k_)) query_pairs_.push_back(row_pair(pair.j, pair.k));
  for (Pair pair{0, 0}; pair.j < q_; pair = next_pair(pair, q_)) gram_rows_.push_back(row_pair(pair.j, pair.k));
  for (std::int64_t a = 0; a < d_out_; ++a) {
    for (std::int64_t l = 0; l < k_; ++l) cross_rows_.push_back(row_pair(a, l));
  }
}

void LaneProblems::solve(std::int64_t first, std::int64_t count, const double* alphas, const ManyFits& out) {
  select(first, count);
  for (std::int64_t lane = 0; lane < lanes_; ++lane) {
    shift_.data()[lane] = weight_ * alphas[first + std::min(lane, count - 1)];
  }
  std::fill_n(gram_.data(), gram_size(all_) * lanes_, 0.0);
  std::fill_n(cross_.data(), d_out_ * p_ * lanes_, 0.0);
  std::fill_n(energy_.data(), d_out_ * lanes_, 0.0);
  for (std::int64_t b = 0; b < blocks_; ++b) {
    fill(block(b));
    add(block(b));
  }
  kernels_.equilibrate_lanes(gram_.data(), places_.data(), p_, shift_.data(), upper_.data(), scale_.data(),
                             sums_.data(), norm_.data());
  kernels_.factor_lanes(upper_.data(), p_, reciprocals_.data());
  kernels_.squared_inverse_lanes(upper_.data(), reciprocals_.data(), p_, columns_.data(), inverse_norm_.data());
  solve_outputs();
  bool cancelled = false;
  for (std::int64_t lane = 0; lane < count; ++lane) {
    const std::int64_t b = first + lane;
    const double condition = norm_.data()[lane] * inverse_norm_.data()[lane];
    const bool solved = visible(lane) && condition < std::numeric_limits<double>::infinity();  // not NaN
    out.condition[b] = solved ? condition : std::numeric_limits<double>::infinity();
    out.energy[b] = 0;
    for (std::int64_t a = 0; a < d_out_; ++a) out.energy[b] += entry(energy_, a)[lane] / weight_;
    out.error[b] = out.energy[b] - (explained_.data()[lane] + alphas[b] * ridge_.data()[lane]);
    cancelled = cancelled || (solved && error_cancels(out.error[b], out.energy[b]));
    double* const C = out.coefficients + b * d_out_ * p_;
    for (std::int64_t i = 0; i < d_out_ * p_; ++i) C[i] = entry(coefficients_, i)[lane];
  }
  if (!cancelled) return;
  squared_errors();
  for (std::int64_t lane = 0; lane < count; ++lane) {
    const std::int64_t b = first + lane;
    if (!error_cancels(out.error[b], out.energy[b])) continue;
    out.error[b] = 0;
    for (std::int64_t a = 0; a < d_out_; ++a) out.error[b] += entry(error_, a)[lane] / weight_;
  }
}

// Lanes without a problem of their own have the last one's.
void LaneProblems::select(std::int64_t first, std::int64_t count) {
  first_ = first;
  count_ = count;
  for (std::int64_t lane = 0; lane < lanes_; ++lane) {
    const std::int64_t sequence = (first + std::min(lane, count - 1)) * sequences_;
    tokens_[at(lane)] = all_.tokens[sequence];
    if (all_.positions == Positions::causal) tokens_[at(lane)].length *= sequences_;  // they follow each other
    targets_[at(lane)] = (*all_.targets)[sequence];
    targets_[at(lane)].length *= sequences_;
  }
  std::fill_n(carry_.data(), all_.formed_pairs() * lanes_, 0.0);
}

LaneProblems::Block LaneProblems::block(std::int64_t b) const {
  double* const rows = rows_[at(b % kept_)].data();
  return {rows, rows + q_ * block_stride, rows + (q_ + k_) * block_stride, b * block_size_,
          std::min(block_size_, samples_ - b * block_size_)};
}

void LaneProblems::fill(const Block& block) {
  const bool selected = all_.selection != nullptr;
  double* const s = selected ? all_s_.data() : block.s;
  double* const z = selected ? all_z_.data() : block.z;
  if (all_.positions == Positions::last) {
    fill_last(block, s, z);
  } else {
    fill_causal(block, s, z);
  }
  gather(targets_, *all_.targets, block, block.y);
  if (!selected) return;
  const std::int64_t width = block.samples * lanes_;
  const bool one_more = all_.forms_few() && all_.positions == Positions::last;
  require_finite_rows(s, block_stride, all_.formed_pairs() + (one_more ? 1 : 0), width);
  require_finite_rows(z, block_stride, d_, width);
  for (std::int64_t u = 0; u < q_; ++u) {
    std::copy_n(s + pair_rows_[at(u)] * block_stride, width, block.s + u * block_stride);
  }
  for (std::int64_t l = 0; l < k_; ++l) {
    std::copy_n(z + all_.selection->queries[at(l)] * block_stride, width, block.z + l * block_stride);
  }
}

// A sequence of each problem after the other.
void LaneProblems::fill_last(const Block& block, double* s, double* z) {
  const bool few = all_.forms_few();
  const std::int64_t bytes = length_ * d_ * (all_.tokens.scalar() == Scalar::float32 ? 4 : 8);
  const SequenceColumns in{tokens_.data(),
                           nullptr,
                           all_.tokens.scalar(),
                           all_.tokens.scalar(),
                           lanes_,
                           d_,
                           0,
                           lanes_,
                           few ? formed_.data() : nullptr,
                           few ? all_.formed_pairs() : 0};
  kernels_.lane_sequences(in, block.samples, scratch_.data(), s, z, block_stride);
  for (Sequence& each : tokens_) each.data = static_cast<const char*>(each.data) + block.samples * bytes;
}

// Tokens of each problem after the other, and S of every prefix of their sequences.
void LaneProblems::fill_causal(const Block& block, double* s, double* z) {
  gather(tokens_, all_.tokens, block, z);
  const std::int64_t passed = block.first % length_;  // a sequence that is over makes way for the next
  kernels_.lane_prefixes(z, block.samples, block_stride, length_, passed == 0 ? length_ : passed, formed_.data(),
                         all_.formed_pairs(), carry_.data(), s);
}

// rows (one a coordinate) = the rows of a block, one problem a lane.
void LaneProblems::gather(const std::vector<Sequence>& problems, const Tokens& of, const Block& block, double* rows) {
  const auto kernel = of.scalar() == Scalar::float32 ? kernels_.gather_float32 : kernels_.gather_float64;
  const std::int64_t width = of.width(), last = block.first + block.samples;
  if (width == 1) return kernel(problems.data(), lanes_, block.first, last, 1, lanes_, rows, lanes_);
  kernel(problems.data(), lanes_, block.first, last, width, lanes_, scratch_.data(), lanes_);
  for (std::int64_t i = 0; i < block.samples; ++i) {
    for (std::int64_t j = 0; j < width; ++j) {
      std::copy_n(scratch_.data() + (i * width + j) * lanes_, lanes_, rows + j * block_stride + i * lanes_);
    }
  }
}

// The tokens that are read after a block, of these problems or of the next ones. Asks for the few targets at once.
Ahead LaneProblems::next_block(const Block& block) const {
  const bool last = all_.positions == Positions::last;
  const std::int64_t done = block.first + block.samples, problem = samples_ / (last ? 1 : length_);
  std::int64_t first = first_, start = done;  // a problem, and a sample of it
  if (done == samples_) {
    first += lanes_;
    start = 0;
    if ((first + lanes_) * problem > all_.tokens.count()) return {};
  }
  const std::int64_t count = std::min(block_size_, samples_ - start);
  const auto sizes = [](const Tokens& of) { return of.width() * (of.scalar() == Scalar::float32 ? 4 : 8); };
  const std::int64_t token_bytes = sizes(all_.tokens) * (last ? length_ : 1), target_bytes = sizes(*all_.targets);
  Ahead ahead;
  ahead.runs = lanes_;
  ahead.bytes = count * token_bytes;
  for (std::int64_t lane = 0; lane < lanes_; ++lane) {
    const std::int64_t sequence = std::min((first + lane) * problem, all_.tokens.count() - 1);
    ahead.starts[lane] = static_cast<const char*>(all_.tokens[sequence].data) + start * token_bytes;
    const char* const y = static_cast<const char*>((*all_.targets)[sequence].data) + start * target_bytes;
    for (std::int64_t i = 0; i < count * target_bytes; i += 64) __builtin_prefetch(y + i);
  }
  return ahead;
}

// gram, cross and energy += those of a block (moments.hpp).
void LaneProblems::add(const Block& block) {
  const std::int64_t width = block.samples * lanes_, pairs = pair_count(k_);
  const Ahead ahead = next_block(block);
  kernels_.multiply_row_pairs(block.z, block.z, query_pairs_.data(), pairs, block.samples, block_stride,
                              query_rows_.data());
  kernels_.multiply_lanes(block.s, block.s, gram_rows_.data(), pair_count(q_), query_rows_.data(), pairs, width,
                          gram_.data(), ahead);
  kernels_.multiply_lanes(block.y, block.z, cross_rows_.data(), d_out_ * k_, block.s, q_, width, cross_.data(), {});
  for (std::int64_t a = 0; a < d_out_; ++a) {
    const double* const y = block.y + a * block_stride;
    for (std::int64_t i = 0; i < block.samples; ++i) {
      for (std::int64_t lane = 0; lane < lanes_; ++lane) {
        entry(energy_, a)[lane] += y[i * lanes_ + lane] * y[i * lanes_ + lane];
      }
    }
  }
}

// Whether no feature of a problem is so small or large that products have lost digits, and not all are zero.
bool LaneProblems::visible(std::int64_t lane) const {
  bool seen = false;
  const std::int64_t* diagonal = places_.data();
  for (std::int64_t i = 0; i < p_; diagonal += p_ - i, ++i) {
    const double square = entry(gram_, *diagonal)[lane];
    if (!(square >= 0) || (square > 0 && !squares_visible(square, weight_))) return false;
    seen = seen || square > 0;
  }
  return seen;
}

// C = cross A^-1, and what it explains.
void LaneProblems::solve_outputs() {
  std::fill_n(explained_.data(), lanes_, 0.0);
  std::fill_n(ridge_.data(), lanes_, 0.0);
  for (std::int64_t a = 0; a < d_out_; ++a) {
    double* const x = entry(coefficients_, a * p_);
    const double* const b = entry(cross_, a * p_);  // (k, q)
    for (std::int64_t i = 0; i < p_; ++i) {
      const double *const from = b + (i % k_ * q_ + i / k_) * lanes_, *const scale = entry(scale_, i);
      for (std::int64_t lane = 0; lane < lanes_; ++lane) x[i * lanes_ + lane] = from[lane] * scale[lane];
    }
    kernels_.solve_lanes(upper_.data(), reciprocals_.data(), p_, x);
    std::vector<double> sum(at(lanes_));
    for (std::int64_t i = 0; i < p_; ++i) {
      const double *const from = b + (i % k_ * q_ + i / k_) * lanes_, *const scale = entry(scale_, i);
      for (std::int64_t lane = 0; lane < lanes_; ++lane) {
        const double found = x[i * lanes_ + lane] *= scale[lane];
        sum[at(lane)] += found * from[lane];
        ridge_.data()[lane] += found * found;
      }
    }
    for (std::int64_t lane = 0; lane < lanes_; ++lane) explained_.data()[lane] += sum[at(lane)] / weight_;
  }
}

// Sums of ||C h - y||^2, sample by sample.
void LaneProblems::squared_errors() {
  std::fill_n(error_.data(), d_out_ * lanes_, 0.0);
  const bool again = kept_ < blocks_;
  if (again) select(first_, count_);
  for (std::int64_t b = 0; b < blocks_; ++b) {
    const Block own = block(b);
    if (again) fill(own);
    for (std::int64_t a = 0; a < d_out_; ++a) {
      kernels_.squared_error_lanes(entry(coefficients_, a * p_), own.s, q_, own.z, k_, own.y + a * block_stride,
                                   block_stride, own.samples, entry(error_, a));
    }
  }
}

}  // namespace linattn
