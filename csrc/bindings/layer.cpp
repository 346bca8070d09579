#include "../core/evaluation.hpp"

#include <pybind11/stl.h>

#include <cmath>

#include "../common/index.hpp"
#include "../kernels/isa.hpp"
#include "register.hpp"
#include "samples.hpp"

namespace linattn::bindings {

namespace {

void require_heads(const Doubles& v, const Doubles& q) {
  require(v.ndim() == 3 && q.ndim() == 3 && v.shape(0) == q.shape(0) && v.shape(2) == q.shape(1) &&
              q.shape(1) == q.shape(2),
          "V, Q: must be (H, d_out, d) and (H, d, d)");
}

// A layer needs tokens and positions alone; with chosen features it would be another function.
Doubles run(const LayerFactory& layer, const Kernels& chosen, const OwnedSamples& samples, std::int64_t d_out,
            int threads) {
  require(!samples.selected(), "samples: must have all features");
  const Tokens& tokens = samples.tokens();
  Doubles out({samples.positions() == Positions::last ? tokens.count() : tokens.rows(), d_out});
  double* data = out.mutable_data();
  const Monitor monitor = make_monitor(py::none());
  threads = checked_threads(threads);
  const py::gil_scoped_release release;
  evaluate(chosen, layer, tokens, samples.positions(), d_out, threads, monitor, data);
  return out;
}

Doubles evaluate_heads(const Doubles& v, const Doubles& q, const OwnedSamples& samples, int threads) {
  require_heads(v, q);
  require(samples.tokens().width() == v.shape(2), "tokens: d must be that of the heads");
  const Kernels& chosen = kernels();
  const LayerFactory layer = layer_from_heads(chosen, v.data(), q.data(), v.shape(0), v.shape(1), v.shape(2));
  return run(layer, chosen, samples, v.shape(1), threads);
}

Doubles evaluate_coefficients(const Doubles& coefficients, const OwnedSamples& samples, int threads) {
  const std::int64_t d = samples.tokens().width();
  require(coefficients.ndim() == 2 && coefficients.shape(1) == pair_count(d) * d,
          "coefficients: must be (d_out, d (d + 1) / 2 * d)");
  const Kernels& chosen = kernels();
  const LayerFactory layer = layer_from_coefficients(chosen, coefficients.data(), coefficients.shape(0), d);
  return run(layer, chosen, samples, coefficients.shape(0), threads);
}

Doubles generate_tokens(const Doubles& v, const Doubles& q, const Doubles& prompts, std::int64_t steps,
                        std::optional<int> decimals, int threads) {
  require_heads(v, q);
  const std::int64_t d = v.shape(2);
  require(v.shape(1) == d, "V: d_out must be d");
  require(prompts.ndim() == 3 && prompts.size() > 0 && prompts.shape(2) == d, "prompts: must be (N, n, d)");
  require(steps >= 0 && steps <= (std::int64_t{1} << 40), "steps: must not be negative");
  const std::int64_t count = prompts.shape(0), start = prompts.shape(1);
  Doubles out({count, start + steps, d});
  for (std::int64_t i = 0; i < count; ++i) {
    std::copy_n(prompts.data(i, 0, 0), start * d, out.mutable_data(i, 0, 0));
  }
  double* data = out.mutable_data();
  const Kernels& chosen = kernels();
  const LayerFactory layer = layer_from_heads(chosen, v.data(), q.data(), v.shape(0), d, d);
  const double scale = decimals ? std::pow(10.0, *decimals) : 0.0;
  const Monitor monitor = make_monitor(py::none());
  threads = checked_threads(threads);
  const py::gil_scoped_release release;
  generate(chosen, layer, data, count, start, steps, d, scale, threads, monitor);
  return out;
}

}  // namespace

void register_layer(py::module_& module) {
  module.def("evaluate_heads", &evaluate_heads, py::arg("V"), py::arg("Q"), py::arg("samples"), py::arg("threads"),
             "The layer from its heads: (N, d_out) for 'last', (rows, d_out) for 'all' and 'causal'.");
  module.def("evaluate_coefficients", &evaluate_coefficients, py::arg("coefficients"), py::arg("samples"),
             py::arg("threads"), "The layer from its coefficients, with the same result.");
  module.def("generate", &generate_tokens, py::arg("V"), py::arg("Q"), py::arg("prompts"), py::arg("steps"),
             py::arg("decimals"), py::arg("threads"),
             "Prompts (N, n, d) followed by `steps` tokens that the layer appends.");
}

}  // namespace linattn::bindings
