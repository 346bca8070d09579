#include "../layer.hpp"

#include "register.hpp"
#include "samples.hpp"

namespace linattn::cuda::bindings {

namespace {

// The samples of a layer with so many outputs: tokens and positions alone count, and all features take part.
Samples of_layer(const OwnedSamples& samples, std::int64_t d_out) {
  require(!samples.sizes().selected, "samples: must have all features");
  Samples data = *samples;
  data.sizes.d_out = d_out;
  return data;
}

double* outputs(Call& call, const py::object& out, const Sizes& sizes) {
  const std::int64_t rows = sizes.positions == Positions::last ? sizes.count : sizes.rows;
  return call.array("out", out).require_shape({rows, sizes.d_out}, "(queries, d_out)").output();
}

void heads(const py::object& v, const py::object& q, const OwnedSamples& samples, const py::object& out,
           const py::object& workspace, std::uintptr_t stream) {
  Call call = samples.call();
  const DeviceArray values = call.array("V", v), maps = call.array("Q", q);
  if (values.dimensions() != 3 || values.size() == 0 || values.shape()[1] > most_coordinates) {
    values.refuse("must be (H, d_out, d)");
  }
  const Samples data = of_layer(samples, values.shape()[1]);
  const std::int64_t count = values.shape()[0], d = data.sizes.d;
  const double* const v_data = values.require_shape({count, data.sizes.d_out, d}, "(H, d_out, d)").doubles();
  const double* const q_data = maps.require_shape({count, d, d}, "(H, d, d)").doubles();
  double* const y = outputs(call, out, data.sizes);
  double* const memory = call.array("workspace", workspace).memory(heads_workspace(data.sizes, count));
  call.launch(stream, [&](cudaStream_t queue) { evaluate_heads(data, v_data, q_data, count, y, memory, queue); });
}

void coefficients(const py::object& c, const OwnedSamples& samples, const py::object& out, const py::object& workspace,
                  std::uintptr_t stream) {
  Call call = samples.call();
  const DeviceArray given = call.array("coefficients", c);
  if (given.dimensions() != 2 || given.size() == 0 || given.shape()[0] > most_coordinates) {
    given.refuse("must be (d_out, features)");
  }
  const Samples data = of_layer(samples, given.shape()[0]);
  const double* const c_data =
      given.require_shape({data.sizes.d_out, data.sizes.features()}, "(d_out, features)").doubles();
  double* const y = outputs(call, out, data.sizes);
  double* const memory = call.array("workspace", workspace).memory(coefficients_workspace(data.sizes));
  call.launch(stream, [&](cudaStream_t queue) { evaluate_coefficients(data, c_data, y, memory, queue); });
}

}  // namespace

void register_layer(py::module_& module) {
  module.def("evaluate_heads", &heads, py::arg("V"), py::arg("Q"), py::arg("samples"), py::kw_only(), py::arg("out"),
             py::arg("workspace"), py::arg("stream"), "The layer from its heads, into out.");
  module.def("evaluate_coefficients", &coefficients, py::arg("coefficients"), py::arg("samples"), py::kw_only(),
             py::arg("out"), py::arg("workspace"), py::arg("stream"), "The layer from its coefficients, into out.");
}

}  // namespace linattn::cuda::bindings
