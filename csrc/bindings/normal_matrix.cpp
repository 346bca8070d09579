#include "../core/normal_matrix.hpp"

#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "../common/index.hpp"
#include "../core/ritz.hpp"
#include "../core/shifted_gram.hpp"
#include "../core/tridiagonal.hpp"
#include "../kernels/isa.hpp"
#include "arrays.hpp"
#include "register.hpp"

namespace linattn::bindings {

namespace {

CompactGram compact(const Doubles& gram, std::int64_t pairs, std::int64_t queries, bool triples) {
  require(pairs > 0 && queries > 0, "pairs, queries: must be positive");
  require(!triples || pair_count(queries) == pairs, "triples: all pairs of the queries must take part");
  require(gram.size() == gram_entries(pairs, queries, triples), "gram: does not have the entries of so many features");
  return {gram.data(), pairs, queries, triples};
}

std::tuple<Doubles, Doubles> sizes(const Doubles& gram, std::int64_t pairs, std::int64_t queries, bool triples,
                                   std::int64_t d) {
  const CompactGram entries = compact(gram, pairs, queries, triples);
  require(d >= 0 && (d == 0 || pair_count(d) == pairs), "d: must have so many pairs");
  Doubles diagonal(entries.features()), magnitudes(d > 0 ? entries.features() : 0);
  gram_diagonal(entries, diagonal.mutable_data());
  if (d > 0) gram_magnitudes(entries, d, magnitudes.mutable_data());
  return {diagonal, magnitudes};
}

std::tuple<Doubles, Doubles, double> dense(const Doubles& gram, std::int64_t pairs, std::int64_t queries, bool triples,
                                           double weight, double ridge, const std::optional<Doubles>& sizes,
                                           int threads) {
  const CompactGram entries = compact(gram, pairs, queries, triples);
  const std::int64_t p = entries.features();
  require(!sizes || sizes->size() == p, "sizes: must be (features,)");
  threads = checked_threads(threads);
  Doubles matrix({p, p}), scale(sizes ? p : 0);
  double* const out = matrix.mutable_data();
  double* const units = sizes ? scale.mutable_data() : nullptr;
  double norm = 0.0;
  {
    const py::gil_scoped_release release;
    if (sizes) power_of_two_scale(sizes->data(), p, units);
    norm = dense_gram(entries, weight, ridge, units, threads, out);
  }
  return {matrix, scale, norm};
}

std::pair<double, double> ritz(const Doubles& factor, const Doubles& scale, std::int64_t inverse_steps,
                               std::int64_t forward_steps, int threads) {
  require(factor.ndim() == 2 && factor.shape(0) == factor.shape(1), "factor: must be (n, n)");
  const std::int64_t n = factor.shape(0);
  require(scale.size() == n, "scale: must be (n,)");
  require(std::min(inverse_steps, forward_steps) > 0 && std::max(inverse_steps, forward_steps) <= n / abreast,
          "steps: more than so many rows allow");
  threads = checked_threads(threads);
  const Kernels& chosen = kernels();
  const double *const entries = factor.data(), *const units = scale.data();
  const py::gil_scoped_release release;
  const RitzValues found = ritz_values(chosen, entries, units, n, inverse_steps, forward_steps, threads);
  return {found.of_inverse, found.of_matrix};
}

bool exceeds_shift(const Doubles& gram, std::int64_t pairs, std::int64_t queries, bool triples, const Doubles& sizes,
                   const Doubles& magnitudes, const std::tuple<double, double, double, double, double>& numbers,
                   int threads) {
  const CompactGram entries = compact(gram, pairs, queries, triples);
  require(sizes.size() == entries.features() && magnitudes.size() == entries.features(),
          "sizes, magnitudes: must be (features,)");
  const auto [lost, tau, rounding, backward, margin] = numbers;
  const Shift shift{lost, tau, rounding, backward, margin};
  threads = checked_threads(threads);
  const Monitor monitor = make_monitor(py::none());
  const Kernels& chosen = kernels();
  const double *const own = sizes.data(), *const larger = magnitudes.data();
  const py::gil_scoped_release release;
  return exceeds(chosen, entries, own, larger, shift, threads, monitor);
}

std::tuple<double, double> extremes(const Doubles& diagonal, const Doubles& beside) {
  require(diagonal.size() > 0 && beside.size() + 1 == diagonal.size(), "beside: must be (n - 1,) for n > 0");
  const double *const a = diagonal.data(), *const b = beside.data();
  const std::int64_t n = diagonal.size();
  const py::gil_scoped_release release;
  const Extremes found = extreme_eigenvalues(a, b, n);
  return {found.smallest, found.largest};
}

}  // namespace

void register_normal_matrix(py::module_& module) {
  module.def("gram_sizes", &sizes, py::arg("gram"), py::arg("pairs"), py::arg("queries"), py::arg("triples"),
             py::arg("d"),
             "The diagonal of the Gram (p,), and sum w S_jj S_kk z_l^2 (p,) for all pairs of d coordinates; d = 0: "
             "none.");
  module.def("dense_gram", &dense, py::arg("gram"), py::arg("pairs"), py::arg("queries"), py::arg("triples"),
             py::arg("weight"), py::arg("ridge"), py::arg("sizes"), py::arg("threads"),
             "A = D (G / weight + ridge I) D (p, p), D (p,) of powers of two from sizes (p,), and the largest row sum "
             "of absolute values; D = I, and empty, where sizes is None.");
  module.def("ritz_values", &ritz, py::arg("factor").noconvert(), py::arg("scale").noconvert(),
             py::arg("inverse_steps"), py::arg("forward_steps"), py::arg("threads"),
             "The largest eigenvalues of the inverse of D^-1 L L' D^-1, and of itself, on block Krylov spaces.");
  module.def("gram_exceeds", &exceeds_shift, py::arg("gram"), py::arg("pairs"), py::arg("queries"), py::arg("triples"),
             py::arg("sizes"), py::arg("magnitudes"), py::arg("shift"), py::arg("threads"),
             "Whether Cholesky runs to completion on D (G - (lost m + tau) rounding) D - backward tr - margin, D of "
             "powers of two from sizes (p,), m the magnitudes (p,); shift is (lost, tau, rounding, backward, margin).");
  module.def("extreme_eigenvalues", &extremes, py::arg("diagonal"), py::arg("beside"),
             "The smallest and the largest eigenvalue of a symmetric tridiagonal matrix; NaN if it is not finite.");
}

}  // namespace linattn::bindings
