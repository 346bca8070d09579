#include "../core/triangular.hpp"

#include "../kernels/isa.hpp"
#include "arrays.hpp"
#include "register.hpp"

namespace linattn::bindings {

void register_triangular(py::module_& module) {
  module.def("cholesky_columns", &block_columns, py::arg("n"), "Columns of a block of a Cholesky factor (n, n).");
  module.def(
      "factor_cholesky",
      [](Doubles matrix, int threads) {
        require(matrix.ndim() == 2 && matrix.shape(0) == matrix.shape(1), "matrix: must be (n, n)");
        threads = checked_threads(threads);
        double* const entries = matrix.mutable_data();  // throws where it may not be written
        const std::int64_t n = matrix.shape(0);
        const Monitor monitor = make_monitor(py::none());
        const Kernels& chosen = kernels();
        const py::gil_scoped_release release;
        return factor_cholesky(chosen, entries, n, threads, monitor);
      },
      py::arg("matrix").noconvert(), py::arg("threads"),
      "Overwrite the lower triangle of a symmetric matrix with its Cholesky factor; the first pivot that fails, or 0.");
  module.def(
      "solve_triangular",
      [](const Doubles& factor, Doubles rows, bool transposed, int threads) {
        require(factor.ndim() == 2 && factor.shape(0) == factor.shape(1), "factor: must be (n, n)");
        require(rows.ndim() == 2 && rows.shape(1) == factor.shape(0), "rows: must be (k, n)");
        threads = checked_threads(threads);
        double* const entries = rows.mutable_data();
        const std::int64_t n = factor.shape(0), count = rows.shape(0);
        const Monitor monitor = make_monitor(py::none());
        const Kernels& chosen = kernels();
        const py::gil_scoped_release release;
        solve_triangular(chosen, factor.data(), n, transposed ? Side::transposed : Side::lower, entries, count, threads,
                         monitor);
      },
      py::arg("factor").noconvert(), py::arg("rows").noconvert(), py::arg("transposed"), py::arg("threads"),
      "Overwrite each row b with x where L x = b, or L'x = b, for the lower triangle L of a factor.");
}

}  // namespace linattn::bindings
