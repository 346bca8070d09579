#include "../normal_equations.hpp"

#include "data.hpp"
#include "register.hpp"

namespace linattn::cuda::bindings {

namespace {

double* kept_memory(Call& call, const py::object& kept, const Sizes& sizes) {
  return kept.is_none() ? nullptr : call.array("kept", kept).memory(8 * kept_doubles(sizes));
}

void keep(const py::object& tokens, const py::object& offsets, const py::object& weights, const std::string& positions,
          const py::object& pairs, const py::object& queries, const py::object& kept, const py::object& workspace,
          std::uintptr_t stream) {
  Call call;
  const Data data = data_from(call, tokens, offsets, py::none(), weights, positions, pairs, queries);
  require(!kept.is_none(), "kept: must not be None");
  double* const samples = kept_memory(call, kept, data.sizes);
  double* const memory = call.array("workspace", workspace).memory(keep_workspace(data.sizes));
  call.launch(stream, [&](cudaStream_t queue) { keep_samples(data, samples, memory, queue); });
}

void factors(const py::object& tokens, const py::object& offsets, const py::object& weights,
             const std::string& positions, const py::object& pairs, const py::object& queries, const py::object& kept,
             const py::object& of_pairs, const py::object& of_queries, const py::object& diagonal,
             const py::object& workspace, std::uintptr_t stream) {
  Call call;
  const Data data = data_from(call, tokens, offsets, py::none(), weights, positions, pairs, queries);
  const std::int64_t p = data.sizes.pairs, l = data.sizes.queries;
  const double* const samples = kept_memory(call, kept, data.sizes);
  const KroneckerSums sums{call.array("of_pairs", of_pairs).require_shape({p, p}, "(pairs, pairs)").output(),
                           call.array("of_queries", of_queries).require_shape({l, l}, "(queries, queries)").output(),
                           call.array("diagonal", diagonal).require_shape({p, l}, "(pairs, queries)").output()};
  double* const memory = call.array("workspace", workspace).memory(kronecker_workspace(data.sizes, samples != nullptr));
  call.launch(stream, [&](cudaStream_t queue) { kronecker_factors(data, samples, sums, memory, queue); });
}

void normal(const py::object& tokens, const py::object& offsets, const py::object& weights,
            const std::string& positions, const py::object& pairs, const py::object& queries, const py::object& kept,
            const py::object& coefficients, const py::object& product, const py::object& energy,
            const py::object& workspace, std::uintptr_t stream) {
  Call call;
  const Data data = data_from(call, tokens, offsets, py::none(), weights, positions, pairs, queries);
  const double* const samples = kept_memory(call, kept, data.sizes);
  const DeviceArray given = call.array("coefficients", coefficients);
  if (given.dimensions() != 2 || given.size() == 0 || given.shape()[0] > 65535) given.refuse("must be (m, features)");
  const std::int64_t m = given.shape()[0], p = data.sizes.features();
  const double* const c = given.require_shape({m, p}, "(m, features)").doubles();
  double* const out = call.array("product", product).require_shape({m, p}, "(m, features)").output();
  double* const squares = call.array("energy", energy).require_shape({m}, "(m,)").output();
  double* const memory = call.array("workspace", workspace).memory(normal_workspace(data.sizes, m, samples != nullptr));
  call.launch(stream, [&](cudaStream_t queue) { normal_product(data, samples, c, m, out, squares, memory, queue); });
}

void gradient(const py::object& tokens, const py::object& offsets, const py::object& targets, const py::object& weights,
              const std::string& positions, const py::object& pairs, const py::object& queries, const py::object& kept,
              const py::object& coefficients, const py::object& total, const py::object& squared_error,
              const py::object& workspace, std::uintptr_t stream) {
  Call call;
  require(!targets.is_none(), "targets: must not be None");
  const Data data = data_from(call, tokens, offsets, targets, weights, positions, pairs, queries);
  const double* const samples = kept_memory(call, kept, data.sizes);
  const std::int64_t m = data.sizes.d_out, p = data.sizes.features();
  const double* const c = call.array("coefficients", coefficients).require_shape({m, p}, "(d_out, features)").doubles();
  double* const out = call.array("gradient", total).require_shape({m, p}, "(d_out, features)").output();
  double* const squares = call.array("squared_error", squared_error).require_shape({m}, "(d_out,)").output();
  double* const memory = call.array("workspace", workspace).memory(gradient_workspace(data.sizes, samples != nullptr));
  call.launch(stream, [&](cudaStream_t queue) { residual_gradient(data, samples, c, out, squares, memory, queue); });
}

}  // namespace

void register_normal_equations(py::module_& module) {
  module.def("keep_samples", &keep, py::arg("tokens"), py::arg("offsets"), py::arg("weights"), py::arg("positions"),
             py::arg("pairs"), py::arg("queries"), py::arg("kept"), py::arg("workspace"), py::arg("stream"),
             "Form every sample once, for the passes.");
  module.def("kronecker_factors", &factors, py::arg("tokens"), py::arg("offsets"), py::arg("weights"),
             py::arg("positions"), py::arg("pairs"), py::arg("queries"), py::arg("kept"), py::arg("of_pairs"),
             py::arg("of_queries"), py::arg("diagonal"), py::arg("workspace"), py::arg("stream"),
             "sum w s s', sum w z z', and the diagonal of the Gram.");
  module.def("normal", &normal, py::arg("tokens"), py::arg("offsets"), py::arg("weights"), py::arg("positions"),
             py::arg("pairs"), py::arg("queries"), py::arg("kept"), py::arg("coefficients"), py::arg("product"),
             py::arg("energy"), py::arg("workspace"), py::arg("stream"), "sum w (C h) h' and sum w (C h)^2.");
  module.def("gradient", &gradient, py::arg("tokens"), py::arg("offsets"), py::arg("targets"), py::arg("weights"),
             py::arg("positions"), py::arg("pairs"), py::arg("queries"), py::arg("kept"), py::arg("coefficients"),
             py::arg("gradient"), py::arg("squared_error"), py::arg("workspace"), py::arg("stream"),
             "sum w (y - C h) h' and sum w (y - C h)^2.");
}

}  // namespace linattn::cuda::bindings
