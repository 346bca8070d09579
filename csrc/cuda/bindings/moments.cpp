#include "../moments.hpp"

#include "../non_finite.hpp"
#include "data.hpp"
#include "register.hpp"

namespace linattn::cuda::bindings {

namespace {

void accumulate(const py::object& tokens, const py::object& offsets, const py::object& targets,
                const py::object& weights, const std::string& positions, const py::object& pairs,
                const py::object& queries, const py::object& gram, const py::object& cross, const py::object& energy,
                const py::object& workspace, std::uintptr_t stream) {
  Call call;
  const Data data = data_from(call, tokens, offsets, targets, weights, positions, pairs, queries);
  const Sizes& sizes = data.sizes;
  MomentSums sums{};
  if (!gram.is_none()) {
    const DeviceArray given = call.array("gram", gram);
    if (given.size() != sizes.gram_entries()) {
      given.refuse("must have " + std::to_string(sizes.gram_entries()) + " entries");
    }
    sums.gram = given.output();
  }
  require(cross.is_none() == targets.is_none(), "cross: must be given with targets, and else be None");
  require(energy.is_none() == targets.is_none(), "energy: must be given with targets, and else be None");
  if (!targets.is_none()) {
    sums.cross = call.array("cross", cross)
                     .require_shape({sizes.d_out, sizes.queries, sizes.pairs}, "(d_out, queries, pairs)")
                     .output();
    sums.energy = call.array("energy", energy).require_shape({sizes.d_out}, "(d_out,)").output();
  }
  double* const memory = call.array("workspace", workspace).memory(moments_workspace(sizes, sums.gram != nullptr));
  call.launch(stream, [&](cudaStream_t queue) { accumulate_moments(data, sums, memory, queue); });
}

void find_non_finite(const py::object& tokens, const py::object& offsets, const py::object& index,
                     std::uintptr_t stream) {
  Call call;
  const Batch batch = batch_from(call, tokens, offsets);
  std::int64_t* const out = call.array("index", index).require_shape({1}, "(1,)").integer_output();
  call.launch(stream, [&](cudaStream_t queue) { first_non_finite(batch, out, queue); });
}

}  // namespace

void register_moments(py::module_& module) {
  module.def("accumulate", &accumulate, py::arg("tokens"), py::arg("offsets"), py::arg("targets"), py::arg("weights"),
             py::arg("positions"), py::arg("pairs"), py::arg("queries"), py::arg("gram"), py::arg("cross"),
             py::arg("energy"), py::arg("workspace"), py::arg("stream"), "Add the moments of a batch.");
  module.def("first_non_finite", &find_non_finite, py::arg("tokens"), py::arg("offsets"), py::arg("index"),
             py::arg("stream"), "Number of the first sequence with NaN or infinity, or -1, into index.");
}

}  // namespace linattn::cuda::bindings
