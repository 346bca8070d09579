// Where the sums over samples go, in the memory of the engine that forms them: the host's, or a device's.
#pragma once

namespace linattn {

// The moments of core/moments.hpp.
struct MomentSums {
  double* gram;             // gram_entries(); nullptr: not wanted
  double* cross;            // d_out x queries x pairs
  double* energy;           // d_out
  double* sizes = nullptr;  // pairs x queries; nullptr: not wanted; else the selection was formed with squares
};

// The Kronecker factors of core/normal_equations.hpp.
struct KroneckerSums {
  double* pairs;     // pairs x pairs
  double* queries;   // queries x queries
  double* diagonal;  // pairs x queries
};

}  // namespace linattn
