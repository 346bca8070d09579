#include "../core/matrix_product.hpp"

#include "../kernels/isa.hpp"
#include "arrays.hpp"
#include "register.hpp"

namespace linattn::bindings {

void register_matrix_product(py::module_& module) {
  module.def(
      "multiply_transposed",
      [](const Doubles& a, const Doubles& b, int threads) {
        require(a.ndim() == 2 && b.ndim() == 2 && a.shape(1) == b.shape(1), "a, b: must be (n, k) and (m, k)");
        threads = checked_threads(threads);
        Doubles out({a.shape(0), b.shape(0)});
        double* const product = out.mutable_data();
        {
          const py::gil_scoped_release release;
          multiply_transposed(kernels(), a.data(), a.shape(0), b.data(), b.shape(0), a.shape(1), threads, product);
        }
        return out;
      },
      py::arg("a"), py::arg("b"), py::arg("threads"), "a b' (n, m) for a (n, k) and b (m, k).");
}

}  // namespace linattn::bindings
