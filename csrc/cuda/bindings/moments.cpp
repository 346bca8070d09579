#include "../moments.hpp"

#include "../non_finite.hpp"
#include "register.hpp"
#include "samples.hpp"

namespace linattn::cuda::bindings {

namespace {

void accumulate(const OwnedSamples& samples, const py::object& gram, const py::object& cross, const py::object& energy,
                const py::object& workspace, std::uintptr_t stream) {
  Call call = samples.call();
  const Sizes& sizes = samples.sizes();
  MomentSums sums{};
  if (!gram.is_none()) {
    const DeviceArray given = call.array("gram", gram);
    if (given.size() != sizes.gram_entries()) {
      given.refuse("must have " + std::to_string(sizes.gram_entries()) + " entries");
    }
    sums.gram = given.output();
  }
  require(cross.is_none() != samples.has_targets(), "cross: must be given with targets, and else be None");
  require(energy.is_none() != samples.has_targets(), "energy: must be given with targets, and else be None");
  if (samples.has_targets()) {
    sums.cross = call.array("cross", cross)
                     .require_shape({sizes.d_out, sizes.queries, sizes.pairs}, "(d_out, queries, pairs)")
                     .output();
    sums.energy = call.array("energy", energy).require_shape({sizes.d_out}, "(d_out,)").output();
  }
  double* const memory = call.array("workspace", workspace).memory(moments_workspace(sizes, sums.gram != nullptr));
  call.launch(stream, [&](cudaStream_t queue) { accumulate_moments(*samples, sums, memory, queue); });
}

void find_non_finite(const py::object& tokens, const py::object& offsets, const py::object& index,
                     std::uintptr_t stream) {
  Call call;
  const Tokens given = tokens_from(call, tokens, offsets);
  std::int64_t* const out = call.array("index", index).require_shape({1}, "(1,)").integer_output();
  call.launch(stream, [&](cudaStream_t queue) { first_non_finite(given, out, queue); });
}

}  // namespace

void register_moments(py::module_& module) {
  module.def("accumulate", &accumulate, py::arg("samples"), py::kw_only(), py::arg("gram"), py::arg("cross"),
             py::arg("energy"), py::arg("workspace"), py::arg("stream"), "Add the moments of samples.");
  module.def("first_non_finite", &find_non_finite, py::arg("tokens"), py::arg("offsets"), py::arg("index"),
             py::arg("stream"), "Number of the first sequence with NaN or infinity, or -1, into index.");
}

}  // namespace linattn::cuda::bindings
