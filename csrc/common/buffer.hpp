// Zeroed memory aligned to a cache line, which is also the widest vector.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>

namespace linattn {

template <typename T>
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(std::int64_t size)
      : data_(static_cast<T*>(::operator new[](static_cast<std::size_t>(size) * sizeof(T), alignment))) {
    std::fill_n(data_.get(), size, T(0));
  }
  T* data() const { return data_.get(); }

 private:
  static constexpr std::align_val_t alignment{64};
  struct Release {
    void operator()(T* pointer) const { ::operator delete[](pointer, alignment); }
  };
  std::unique_ptr<T[], Release> data_;
};

using Buffer = AlignedBuffer<double>;
using FloatBuffer = AlignedBuffer<float>;

}  // namespace linattn
