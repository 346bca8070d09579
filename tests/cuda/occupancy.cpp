// How many blocks a multiprocessor runs at once, by the toolkit's own rules: occupancy MAJOR REGISTERS SHARED THREADS
#include <cuda_occupancy.h>

#include <climits>
#include <cstdio>
#include <cstdlib>

int main(int count, char** arguments) {
  if (count != 5) return 1;
  const int major = std::atoi(arguments[1]);
  // Data-center cards of compute capability 8.0 and 9.0: 164 and 228 KiB of shared memory a multiprocessor.
  const std::size_t shared = major == 8 ? 164 << 10 : 228 << 10;
  cudaOccDeviceProp card{};
  card.computeMajor = major;
  card.maxThreadsPerBlock = 1024;
  card.maxThreadsPerMultiprocessor = 2048;
  card.regsPerBlock = card.regsPerMultiprocessor = 65536;
  card.warpSize = 32;
  card.sharedMemPerBlock = 48 << 10;
  card.sharedMemPerMultiprocessor = shared;
  card.numSms = 108;
  card.reservedSharedMemPerBlock = 1 << 10;
  card.sharedMemPerBlockOptin = shared - card.reservedSharedMemPerBlock;
  cudaOccFuncAttributes kernel{};
  kernel.maxThreadsPerBlock = INT_MAX;
  kernel.numRegs = std::atoi(arguments[2]);
  kernel.sharedSizeBytes = static_cast<std::size_t>(std::atol(arguments[3]));
  kernel.numBlockBarriers = 1;
  const cudaOccDeviceState state{};
  cudaOccResult result{};
  if (cudaOccMaxActiveBlocksPerMultiprocessor(&result, &card, &kernel, &state, std::atoi(arguments[4]), 0) !=
      CUDA_OCC_SUCCESS) {
    return 1;
  }
  std::printf("%d\n", result.activeBlocksPerMultiprocessor);
  return 0;
}
