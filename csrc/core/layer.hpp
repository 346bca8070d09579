// The layer y = sum_h V_h S Q_h z, applied to batches of sequences: from heads or from coefficients.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "buffer.hpp"
#include "kernels.hpp"
#include "moments.hpp"
#include "positions.hpp"
#include "tokens.hpp"

namespace linattn {

// A function of (S, z) for a row of samples at a time. Holds scratch memory: one per thread.
class Layer {
 public:
  virtual ~Layer() = default;
  // Fixes S: s (q x width), for about so many queries.
  virtual void attend(const double* s, std::int64_t width, std::int64_t queries) = 0;
  // y (d_out x width) for queries z (d x width).
  virtual void query(const double* z, std::int64_t width, double* y) = 0;
};

using LayerFactory = std::function<std::unique_ptr<Layer>()>;

// V (heads, d_out, d) and Q (heads, d, d), row-major, copied once and shared by the layers made.
LayerFactory layer_from_heads(const Kernels& kernels, const double* v, const double* q, std::int64_t heads,
                              std::int64_t d_out, std::int64_t d);

// coefficients (d_out, p), feature index = pair * d + l.
LayerFactory layer_from_coefficients(const Kernels& kernels, const double* coefficients, std::int64_t d_out,
                                     std::int64_t d);

// out: (N, d_out) for last, (rows, d_out) for all and causal. Throws NonFinite.
void evaluate(const Kernels& kernels, const LayerFactory& layer, const TokenBatch& tokens, Positions positions,
              std::int64_t d_out, int threads, const Monitor& monitor, double* out);

// sequences (N, start + steps, d) with the first `start` tokens given: appends the layer's output as the next token,
// `steps` times. With scale > 0 every output is rounded to a multiple of 1 / scale.
void generate(const Kernels& kernels, const LayerFactory& layer, double* sequences, std::int64_t count,
              std::int64_t start, std::int64_t steps, std::int64_t d, double scale, int threads,
              const Monitor& monitor);

}  // namespace linattn
