// What Python sees as _cpu.NormalEquations: samples, and what is packed of them.
#pragma once

#include <memory>
#include <mutex>

#include "../core/sample_store.hpp"
#include "samples.hpp"

namespace linattn::bindings {

// Calls from several threads wait for one another.
class NormalEquations {
 public:
  NormalEquations(std::shared_ptr<const OwnedSamples> owned, bool keep);

  py::tuple kronecker_factors(int threads);
  py::tuple normal(const Doubles& coefficients, int threads);
  py::object narrow(const Doubles& coefficients, int threads);
  py::tuple gradient(const Doubles& coefficients, int threads);

  bool is_of(const OwnedSamples& samples) const { return owned_.get() == &samples; }
  // The packed samples, for as long as `lock` is held, which this takes; to be called without the GIL.
  SampleStore& locked(std::unique_lock<std::mutex>& lock) {
    lock = std::unique_lock<std::mutex>(mutex_);
    return store_;
  }

 private:
  std::int64_t features() const { return (*data_).pairs() * (*data_).queries(); }
  std::int64_t require_coefficients(const Doubles& coefficients) const;
  template <typename Body>
  void run(const Body& body);

  std::shared_ptr<const OwnedSamples> owned_;
  SamplesInUse data_;
  SampleStore store_;
  std::mutex mutex_;
};

}  // namespace linattn::bindings
