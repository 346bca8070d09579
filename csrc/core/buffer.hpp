// Zeroed memory aligned to a cache line, which is also the widest vector.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>

namespace linattn {

class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::int64_t size)
      : data_(static_cast<double*>(::operator new[](static_cast<std::size_t>(size) * sizeof(double), alignment))) {
    std::fill_n(data_.get(), size, 0.0);
  }
  double* data() const { return data_.get(); }

 private:
  static constexpr std::align_val_t alignment{64};
  struct Release {
    void operator()(double* pointer) const { ::operator delete[](pointer, alignment); }
  };
  std::unique_ptr<double[], Release> data_;
};

}  // namespace linattn
