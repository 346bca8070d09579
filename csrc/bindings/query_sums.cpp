#include "../softmax/query_sums.hpp"

#include "../kernels/isa.hpp"
#include "arrays.hpp"
#include "register.hpp"

namespace linattn::bindings {

namespace {

void add(const Doubles& x, const Doubles& A, const Doubles& G, Doubles squares, Doubles cross, int threads) {
  require(x.ndim() == 2 && A.ndim() == 2 && G.ndim() == 3, "x, A, G: must be (M, d), (M, p) and (M, d_out, p)");
  const Queries queries{x.data(), A.data(), G.data(), x.shape(0), x.shape(1), A.shape(1), G.shape(1)};
  const std::int64_t d = queries.d, p = queries.p;
  require(queries.count > 0 && d > 0 && p > 0 && queries.d_out > 0, "x, A, G: must not be empty");
  require(A.shape(0) == queries.count && G.shape(0) == queries.count && G.shape(2) == p,
          "x, A, G: must have as many queries, and A and G one p");
  require(squares.ndim() == 2 && squares.shape(0) == p * (p + 1) / 2 && squares.shape(1) == d * (d + 1) / 2,
          "squares: must be (p (p + 1) / 2, d (d + 1) / 2)");
  require(cross.ndim() == 2 && cross.shape(0) == p * d && cross.shape(1) == queries.d_out * p,
          "cross: must be (p d, d_out p)");
  double *const squares_to = squares.mutable_data(), *const cross_to = cross.mutable_data();  // throw where read-only
  const Kernels& chosen = kernels();
  const py::none no_progress;
  const Monitor monitor = make_monitor(no_progress);
  threads = checked_threads(threads);
  const py::gil_scoped_release release;
  add_query_sums(chosen, queries, threads, monitor, squares_to, cross_to);
}

}  // namespace

void register_query_sums(py::module_& module) {
  // A copy of what is added to would be lost: only arrays that can be used where they are.
  module.def("add_query_sums", &add, py::arg("x"), py::arg("A"), py::arg("G"), py::arg("squares").noconvert(),
             py::arg("cross").noconvert(), py::arg("threads"),
             "Add sum (G'G)_uv x_l x_m to squares and sum A_r x_l G_au to cross, of queries x, A and G.");
}

}  // namespace linattn::bindings
