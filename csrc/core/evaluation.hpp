// A layer applied to sequences.
#pragma once

#include <cstdint>

#include "../common/monitor.hpp"
#include "../common/positions.hpp"
#include "layer.hpp"
#include "tokens.hpp"

namespace linattn {

// out: (N, d_out) for last, (rows, d_out) for all and causal. Throws NonFinite.
void evaluate(const Kernels& kernels, const LayerFactory& layer, const Tokens& tokens, Positions positions,
              std::int64_t d_out, int threads, const Monitor& monitor, double* out);

// sequences (N, start + steps, d) with the first `start` tokens given: appends the layer's output as the next token,
// `steps` times. With scale > 0 every output is rounded to a multiple of 1 / scale.
void generate(const Kernels& kernels, const LayerFactory& layer, double* sequences, std::int64_t count,
              std::int64_t start, std::int64_t steps, std::int64_t d, double scale, int threads,
              const Monitor& monitor);

}  // namespace linattn
