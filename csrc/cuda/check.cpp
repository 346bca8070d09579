#include <stdexcept>
#include <string>

#include "platform.hpp"

namespace linattn::cuda {

void check(cudaError_t error, const char* file, int line) {
  if (error == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // reported here: the next launch must not be blamed
  const std::string path(file);
  const std::size_t start = path.rfind("csrc/");  // the compiler was given absolute paths
  throw std::runtime_error("CUDA: " + std::string(cudaGetErrorString(error)) + " (" + cudaGetErrorName(error) + ", " +
                           path.substr(start == std::string::npos ? 0 : start) + ":" + std::to_string(line) + ")");
}

}  // namespace linattn::cuda
