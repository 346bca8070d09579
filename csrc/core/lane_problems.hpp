// Small least-squares problems on one thread, as many at once as a vector has lanes: one problem a lane, from its
// tokens to its coefficients. Every sum belongs to one problem, so nothing is added across lanes, and a problem has the
// same bits whichever others are beside it.
//
//   A = D (Lambda + alpha I) D = U'U        cond(A) <= ||A||_inf ||U^-1||_F^2
#pragma once

#include <cstdint>
#include <vector>

#include "../common/buffer.hpp"
#include "../kernels/table.hpp"
#include "many.hpp"
#include "samples.hpp"

namespace linattn {

// One per thread. The sequences of `all` are those of problem 0, then those of problem 1, ..
class LaneProblems {
 public:
  // Whether the matrices of such problems, one a lane, stay in the cache; else they are faster one by one.
  static bool fit(const Kernels& kernels, const Samples& all);

  LaneProblems(const Kernels& kernels, const Samples& all, std::int64_t problems,
               const std::vector<std::int64_t>& places);

  // Problems first .. first + count, at most as many as there are lanes. Throws NonFinite for features that are chosen;
  // else tokens that are not finite give an infinite condition.
  void solve(std::int64_t first, std::int64_t count, const double* alphas, const ManyFits& out);

 private:
  // Rows of a block of samples: s (q), z (k) and y (d_out).
  struct Block {
    double *s, *z, *y;
    std::int64_t first, samples;
  };
  static std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }
  double* entry(const Buffer& vectors, std::int64_t i) const { return vectors.data() + i * lanes_; }

  void select(std::int64_t first, std::int64_t count);
  Block block(std::int64_t b) const;
  void fill(const Block& block);
  void fill_last(const Block& block, double* s, double* z);
  void fill_causal(const Block& block, double* s, double* z);
  void gather(const std::vector<Sequence>& problems, const Tokens& of, const Block& block, double* rows);
  Ahead next_block(const Block& block) const;
  void add(const Block& block);
  bool visible(std::int64_t lane) const;
  void solve_outputs();
  void squared_errors();

  const Kernels& kernels_;
  const Samples& all_;
  const std::vector<std::int64_t>& places_;
  std::int64_t lanes_, sequences_, length_, samples_, block_size_, q_, k_, d_, d_out_, p_, blocks_, kept_;
  std::int64_t first_ = 0, count_ = 0;  // of the problems at hand
  double weight_;
  std::vector<Sequence> tokens_, targets_;  // of the sequence at hand, or of all (causal); of all targets
  std::vector<RowPair> formed_, query_pairs_, gram_rows_, cross_rows_;
  std::vector<std::int64_t> pair_rows_;
  std::vector<Buffer> rows_;                             // of the blocks that are kept
  Buffer all_s_, all_z_, query_rows_, scratch_, carry_;  // of the block at hand
  Buffer gram_, cross_, energy_, shift_;                 // vectors of problems
  Buffer upper_, scale_, sums_, norm_, inverse_norm_, reciprocals_, columns_, coefficients_, explained_, ridge_, error_;
};

}  // namespace linattn
