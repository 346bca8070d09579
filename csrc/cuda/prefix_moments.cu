#include "prefix_moments.hpp"

namespace linattn::cuda {

namespace {

// Rows in ascending order, and which of them start a sequence.
class SequenceStarts {
 public:
  __device__ SequenceStarts(const Tokens& tokens, std::int64_t row)
      : tokens_(tokens), sequence_(tokens.sequence_of(row)) {}

  __device__ bool at(std::int64_t row) {
    while (tokens_.end(sequence_) <= row) ++sequence_;
    return tokens_.begin(sequence_) == row;
  }

 private:
  const Tokens& tokens_;
  std::int64_t sequence_;
};

// Rows of one span, and one of the pairs: what a thread of the walks below has.
struct Walk {
  std::int64_t begin, end, u;
  bool empty;

  __device__ Walk(std::int64_t pairs, std::int64_t first, std::int64_t rows) {
    const std::int64_t span = element_number() / pairs;
    begin = first + span * span_rows;
    end = begin + span_rows < first + rows ? begin + span_rows : first + rows;
    u = element_number() % pairs;
    empty = begin >= end;
  }
};

__device__ double product(const Tokens& tokens, Pair pair, std::int64_t row) {
  return tokens.values[row * tokens.width + pair.j] * tokens.values[row * tokens.width + pair.k];
}

// sums[span, u]: from the span's last sequence start, or from its first row; starts[span]: whether it has a start (0,
// 1).
__global__ void __launch_bounds__(threads_per_block)
    sum_spans(Tokens tokens, PairList pairs, std::int64_t first, std::int64_t rows, double* sums, double* starts) {
  const Walk own(pairs.count, first, rows);
  if (own.empty) return;
  const Pair pair = pairs[own.u];
  SequenceStarts starts_in(tokens, own.begin);
  double sum = 0.0;
  bool any = false;
  for (std::int64_t row = own.begin; row < own.end; ++row) {
    if (starts_in.at(row)) {
      sum = 0.0;
      any = true;
    }
    sum += product(tokens, pair, row);
  }
  sums[element_number()] = sum;
  if (own.u == 0) starts[element_number() / pairs.count] = any ? 1.0 : 0.0;
}

// sums[span, u] becomes what the span's first row continues; carry[u] what the row after the last one would.
__global__ void __launch_bounds__(threads_per_block)
    carry_over_spans(std::int64_t pairs, std::int64_t spans, bool from_start, const double* starts, double* sums,
                     double* carry) {
  const std::int64_t u = element_number();
  if (u >= pairs) return;
  double running = from_start ? 0.0 : carry[u];
  for (std::int64_t span = 0; span < spans; ++span) {
    const double own = sums[span * pairs + u];
    sums[span * pairs + u] = running;
    running = starts[span] != 0.0 ? own : running + own;
  }
  carry[u] = running;
}

__global__ void __launch_bounds__(threads_per_block)
    write_prefixes(Tokens tokens, PairList pairs, std::int64_t first, std::int64_t rows, const double* carried,
                   double* s) {
  const Walk own(pairs.count, first, rows);
  if (own.empty) return;
  const Pair pair = pairs[own.u];
  SequenceStarts starts_in(tokens, own.begin);
  double sum = carried[element_number()];
  for (std::int64_t row = own.begin; row < own.end; ++row) {
    if (starts_in.at(row)) sum = 0.0;
    sum += product(tokens, pair, row);
    s[(row - first) * pairs.count + own.u] = sum;
  }
}

}  // namespace

void prefix_moments(const Tokens& tokens, const PairList& pairs, std::int64_t first, std::int64_t rows, double* carry,
                    double* scratch, double* s, cudaStream_t stream) {
  const std::int64_t spans = (rows + span_rows - 1) / span_rows;
  double *const sums = scratch, *const starts = scratch + spans * pairs.count;  // spans x pairs, spans
  LINATTN_LAUNCH(sum_spans, blocks_for(spans * pairs.count), threads_per_block, stream, tokens, pairs, first, rows,
                 sums, starts);
  LINATTN_LAUNCH(carry_over_spans, blocks_for(pairs.count), threads_per_block, stream, pairs.count, spans, first == 0,
                 starts, sums, carry);
  LINATTN_LAUNCH(write_prefixes, blocks_for(spans * pairs.count), threads_per_block, stream, tokens, pairs, first, rows,
                 sums, s);
}

}  // namespace linattn::cuda
