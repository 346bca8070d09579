#include "../core/many.hpp"

#include "../kernels/isa.hpp"
#include "arrays.hpp"
#include "register.hpp"
#include "samples.hpp"

namespace linattn::bindings {

namespace {

py::tuple solve(const OwnedSamples& owned, std::int64_t problems, const Doubles& alphas, int threads,
                const py::object& progress) {
  const SamplesInUse in_use(owned, /*with_squares=*/false);
  const Samples& all = *in_use;
  require(problems > 0 && all.tokens.count() % problems == 0, "problems: must divide the number of sequences");
  require(all.targets != nullptr && all.weights == nullptr, "samples: must have targets and no weights");
  const Sequence first = all.tokens[0];
  const Tokens& targets = *all.targets;
  for (const Tokens* each : {&all.tokens, &targets}) {
    const Sequence one = (*each)[0];
    require(each->rows() == each->count() * one.length && one.column_stride == 1 && one.row_stride == each->width(),
            "samples: must be one array in C order");
  }
  require(first.length > 0, "samples: sequences must not be empty");
  require(alphas.ndim() == 1 && alphas.size() == problems, "alphas: must be (problems,)");
  const std::int64_t p = all.pairs() * all.queries();
  Doubles coefficients({problems, all.d_out(), p}), energy(problems), error(problems), condition(problems);
  const ManyFits out{coefficients.mutable_data(), energy.mutable_data(), error.mutable_data(),
                     condition.mutable_data()};
  const Kernels& chosen = kernels();
  const Monitor monitor = make_monitor(progress);
  threads = checked_threads(threads);
  const double* const ridges = alphas.data();
  {
    const py::gil_scoped_release release;
    solve_many(chosen, all, problems, ridges, threads, monitor, out);
  }
  return py::make_tuple(coefficients, energy, error, condition);
}

}  // namespace

void register_many(py::module_& module) {
  module.def("solve_many", &solve, py::arg("samples"), py::arg("problems"), py::arg("alphas"), py::arg("threads"),
             py::arg("progress"),
             "Coefficients, mean squared targets and errors, and bounds on the condition of many problems.");
}

}  // namespace linattn::bindings
