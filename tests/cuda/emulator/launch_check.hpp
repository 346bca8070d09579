// What the driver refuses before a kernel starts.
#pragma once

#include "emulator.hpp"

namespace emulator {

// False, with the error left for cudaGetLastError, where a card would not start such a launch.
bool may_launch(dim3 grid, dim3 block);

}  // namespace emulator
