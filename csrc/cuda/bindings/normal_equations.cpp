#include "../normal_equations.hpp"

#include "register.hpp"
#include "samples.hpp"

namespace linattn::cuda::bindings {

namespace {

double* kept_memory(Call& call, const py::object& kept, const Sizes& sizes) {
  return kept.is_none() ? nullptr : call.array("kept", kept).memory(8 * kept_doubles(sizes));
}

void keep(const OwnedSamples& samples, const py::object& kept, const py::object& workspace, std::uintptr_t stream) {
  Call call = samples.call();
  require(!kept.is_none(), "kept: must not be None");
  double* const memory = kept_memory(call, kept, samples.sizes());
  double* const space = call.array("workspace", workspace).memory(keep_workspace(samples.sizes()));
  call.launch(stream, [&](cudaStream_t queue) { keep_samples(*samples, memory, space, queue); });
}

void factors(const OwnedSamples& samples, const py::object& kept, const py::object& of_pairs,
             const py::object& of_queries, const py::object& diagonal, const py::object& workspace,
             std::uintptr_t stream) {
  Call call = samples.call();
  const std::int64_t p = samples.sizes().pairs, l = samples.sizes().queries;
  const double* const memory = kept_memory(call, kept, samples.sizes());
  const KroneckerSums sums{call.array("of_pairs", of_pairs).require_shape({p, p}, "(pairs, pairs)").output(),
                           call.array("of_queries", of_queries).require_shape({l, l}, "(queries, queries)").output(),
                           call.array("diagonal", diagonal).require_shape({p, l}, "(pairs, queries)").output()};
  double* const space =
      call.array("workspace", workspace).memory(kronecker_workspace(samples.sizes(), memory != nullptr));
  call.launch(stream, [&](cudaStream_t queue) { kronecker_factors(*samples, memory, sums, space, queue); });
}

void normal(const OwnedSamples& samples, const py::object& kept, const py::object& coefficients,
            const py::object& product, const py::object& energy, const py::object& workspace, std::uintptr_t stream) {
  Call call = samples.call();
  const Sizes& sizes = samples.sizes();
  const double* const memory = kept_memory(call, kept, sizes);
  const DeviceArray given = call.array("coefficients", coefficients);
  if (given.dimensions() != 2 || given.size() == 0 || given.shape()[0] > most_coordinates) {
    given.refuse("must be (m, features)");
  }
  const std::int64_t m = given.shape()[0], p = sizes.features();
  const double* const c = given.require_shape({m, p}, "(m, features)").doubles();
  double* const out = call.array("product", product).require_shape({m, p}, "(m, features)").output();
  double* const squares = call.array("energy", energy).require_shape({m}, "(m,)").output();
  double* const space = call.array("workspace", workspace).memory(normal_workspace(sizes, m, memory != nullptr));
  call.launch(stream, [&](cudaStream_t queue) { normal_product(*samples, memory, c, m, out, squares, space, queue); });
}

void gradient(const OwnedSamples& samples, const py::object& kept, const py::object& coefficients,
              const py::object& total, const py::object& squared_error, const py::object& workspace,
              std::uintptr_t stream) {
  Call call = samples.call();
  require(samples.has_targets(), "targets: must not be None");
  const Sizes& sizes = samples.sizes();
  const double* const memory = kept_memory(call, kept, sizes);
  const std::int64_t m = sizes.d_out, p = sizes.features();
  const double* const c = call.array("coefficients", coefficients).require_shape({m, p}, "(d_out, features)").doubles();
  double* const out = call.array("gradient", total).require_shape({m, p}, "(d_out, features)").output();
  double* const squares = call.array("squared_error", squared_error).require_shape({m}, "(d_out,)").output();
  double* const space = call.array("workspace", workspace).memory(gradient_workspace(sizes, memory != nullptr));
  call.launch(stream, [&](cudaStream_t queue) { residual_gradient(*samples, memory, c, out, squares, space, queue); });
}

}  // namespace

void register_normal_equations(py::module_& module) {
  module.def("keep_samples", &keep, py::arg("samples"), py::kw_only(), py::arg("kept"), py::arg("workspace"),
             py::arg("stream"), "Form every sample once, into kept.");
  module.def("kronecker_factors", &factors, py::arg("samples"), py::kw_only(), py::arg("kept"), py::arg("of_pairs"),
             py::arg("of_queries"), py::arg("diagonal"), py::arg("workspace"), py::arg("stream"),
             "sum w s s', sum w z z' and the Gram's diagonal.");
  module.def("normal", &normal, py::arg("samples"), py::kw_only(), py::arg("kept"), py::arg("coefficients"),
             py::arg("product"), py::arg("energy"), py::arg("workspace"), py::arg("stream"),
             "sum w (C h) h' and sum w (C h)^2.");
  module.def("gradient", &gradient, py::arg("samples"), py::kw_only(), py::arg("kept"), py::arg("coefficients"),
             py::arg("gradient"), py::arg("squared_error"), py::arg("workspace"), py::arg("stream"),
             "sum w (y - C h) h' and sum w (y - C h)^2.");
}

}  // namespace linattn::cuda::bindings
