// CUDA's execution model on the CPU, as far as csrc/cuda uses it: the same kernel sources are compiled against this
// header with g++, sanitizers included.
//
// A CUDA thread is a fiber. A fiber runs until it waits at a barrier, takes part in an operation of its warp, or ends;
// then the next one runs, in an order that the tests choose. Blocks follow one another, also in that order. What this
// finds:
//
//   a barrier that not every thread of a block reaches, or different ones   an error that names file and line
//   threads of a warp that do not all take part in its operation            an error
//   shared memory read before it is written                                NaN: it is filled with them for every block
//   results that depend on the order of threads or blocks                   other bits in another order
//   races between threads of a block, or between blocks                     the thread sanitizer: fibers are its
//   threads,
//                                                                           and only barriers order them
//   accesses out of bounds, undefined behaviour                             the address and undefined-behaviour
//   sanitizers
//
// Not modelled: caches, time, memory that is visible late, operations of part of a warp.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

// --- the runtime's functions, over host memory -----------------------------------------------------------------------

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
};
enum cudaMemoryType {
  cudaMemoryTypeUnregistered = 0,
  cudaMemoryTypeHost = 1,
  cudaMemoryTypeDevice = 2,
  cudaMemoryTypeManaged = 3,
};
struct cudaPointerAttributes {
  cudaMemoryType type;
  int device;
};
using cudaStream_t = struct CUstream_st*;

const char* cudaGetErrorString(cudaError_t error);
const char* cudaGetErrorName(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer);
cudaError_t cudaMemsetAsync(void* pointer, int value, std::size_t bytes, cudaStream_t stream);

namespace emulator {

// --- what tests set -----------------------------------------------------------------------------------------------

enum class Order { forward, reverse, random };

struct Settings {
  Order order = Order::forward;
  unsigned seed = 1;         // of the random order
  bool tensor_cores = true;  // whether kernels multiply with those or with fused multiply-adds
  int devices = 2;           // 0: as without a driver
  int refuse_launch = -1;    // so many launches from now on one is refused; -1: none
};
Settings& settings();

// Says on which device memory lies (-1: on none); elsewhere it is on device 0.
void place(const void* start, std::size_t bytes, int device);
void forget_places();

// The device that was current in the last launch, and how many launches there were.
int last_device();
long launches();

// --- what kernels are compiled to ----------------------------------------------------------------------------------

dim3 thread_index();
dim3 block_index();
dim3 grid_size();
bool tensor_cores();
void launch(dim3 grid, dim3 block, cudaStream_t stream, const std::function<void()>& body);
void* shared(std::size_t bytes, const char* file, int line);
void barrier(const char* file, int line);
// See csrc/cuda/tile.hpp.
void multiply_add_8x8x4(double& c0, double& c1, double a, double b);
// The value that lane `source` of the warp has.
double shuffle(double value, int source);
unsigned long long atomic_min(unsigned long long* place, unsigned long long value);

}  // namespace emulator

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define threadIdx (emulator::thread_index())
#define blockIdx (emulator::block_index())
#define gridDim (emulator::grid_size())
#define __shfl_sync(mask, value, source) emulator::shuffle(value, source)
#define atomicMin(place, value) emulator::atomic_min(place, value)
using std::fma;
using std::isfinite;
