// The layer y = sum_h V_h S Q_h z, from heads or from coefficients.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "../common/buffer.hpp"
#include "../kernels/table.hpp"

namespace linattn {

// A function of (S, z) for a row of samples at a time. Holds scratch memory: one per thread.
class Layer {
 public:
  virtual ~Layer() = default;
  // Fixes S: s (q x width), for about so many queries.
  virtual void attend(const double* s, std::int64_t width, std::int64_t queries) = 0;
  // M (d_out d x width) with y = M z after attend(), or null where it was not formed.
  virtual const double* map() const = 0;
  // y (d_out x width) for queries z (d x width).
  virtual void query(const double* z, std::int64_t width, double* y) = 0;

  // For sequences that grow: forgets what was, then y for query z_t and S = sum over s <= t of z_s z_s', token by
  // token.
  virtual void start(std::int64_t width) = 0;
  virtual void follow(const double* z, std::int64_t width, double* y) = 0;
};

using LayerFactory = std::function<std::unique_ptr<Layer>()>;

// V (heads, d_out, d) and Q (heads, d, d), row-major, copied once and shared by the layers made.
LayerFactory layer_from_heads(const Kernels& kernels, const double* v, const double* q, std::int64_t heads,
                              std::int64_t d_out, std::int64_t d);

// coefficients (d_out, p), feature index = pair * d + l.
LayerFactory layer_from_coefficients(const Kernels& kernels, const double* coefficients, std::int64_t d_out,
                                     std::int64_t d);

}  // namespace linattn
