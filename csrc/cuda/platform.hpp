// What nvcc has and g++ cannot parse, or says in another way: one kernel source serves the compiler for cards and the
// emulator that runs kernels on the CPU (tests/cuda/emulator).
#pragma once

#include <cstdint>

#ifdef LINATTN_CUDA_EMULATED
#include "emulator.hpp"
#define LINATTN_START(kernel, grid, block, stream, ...) \
  emulator::launch(grid, block, stream, [=] { kernel(__VA_ARGS__); })
// Memory of a block: every thread that passes this line gets the same object.
#define LINATTN_SHARED(Type, name) Type& name = *static_cast<Type*>(emulator::shared(sizeof(Type), __FILE__, __LINE__))
#define LINATTN_BARRIER() emulator::barrier(__FILE__, __LINE__)
#define LINATTN_UNROLL
#else
#include <cuda_runtime.h>
#define LINATTN_START(kernel, grid, block, stream, ...) kernel<<<grid, block, 0, stream>>>(__VA_ARGS__)
#define LINATTN_SHARED(Type, name) __shared__ Type name
#define LINATTN_BARRIER() __syncthreads()
#define LINATTN_UNROLL _Pragma("unroll")
#endif

// Queues a kernel; throws with this file and line where the launch was refused, or where an earlier one is known to
// have failed. Never waits.
#define LINATTN_LAUNCH(kernel, grid, block, stream, ...)            \
  do {                                                              \
    LINATTN_START(kernel, grid, block, stream, __VA_ARGS__);        \
    ::linattn::cuda::check(cudaGetLastError(), __FILE__, __LINE__); \
  } while (false)

#define LINATTN_CHECK(call) ::linattn::cuda::check(call, __FILE__, __LINE__)

namespace linattn::cuda {

// Throws std::runtime_error unless `error` is success.
void check(cudaError_t error, const char* file, int line);

constexpr int threads_per_block = 256;

#if defined(__CUDACC__) || defined(LINATTN_CUDA_EMULATED)
// Number of this thread where a launch has one thread an element.
__device__ inline std::int64_t element_number() {
  return static_cast<std::int64_t>(blockIdx.x) * threads_per_block + static_cast<std::int64_t>(threadIdx.x);
}
#endif

// Blocks for a launch with one thread an element.
inline dim3 blocks_for(std::int64_t elements) {
  return dim3(static_cast<unsigned>((elements + threads_per_block - 1) / threads_per_block));
}

}  // namespace linattn::cuda
