// A small least-squares problem on one thread: its sums, its matrix and the factor of that.
//
//   A = D (Lambda + alpha I) D = U'U        cond(A) <= ||A||_inf ||U^-1||_F^2
#pragma once

#include <cstdint>
#include <vector>

#include "../common/buffer.hpp"
#include "../kernels/table.hpp"
#include "moments.hpp"
#include "samples.hpp"

namespace linattn {

// Where each entry of the upper triangle of Lambda lies in the compact Gram, row by row.
std::vector<std::int64_t> places_of(const Samples& data);

// Whether the sum of a feature's squares lost no digits to underflow, and is far from overflow.
bool squares_visible(double square, double weight);

// Whether a mean squared error, taken from moments, is so small against the targets' that it must come from the data.
bool error_cancels(double error, double energy);

// One problem after the other. One per thread; `data` holds the problem at hand.
class SmallProblem {
 public:
  SmallProblem(const Kernels& kernels, const Samples& data, double weight, const std::vector<std::int64_t>& places);

  // C (d_out x p), the mean of ||y||^2 and of ||C h - y||^2. Returns the condition number, bounded from above.
  double solve(double alpha, double* C, double* energy, double* error);

 private:
  static std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }
  double error_on_data(const double* C);
  void form(double alpha);
  bool factorise();

  const Kernels& kernels_;
  const Samples& data_;
  double weight_;
  const std::vector<std::int64_t>& places_;
  std::int64_t p_, stride_;
  SerialMoments moments_;
  std::vector<double> gram_, cross_, energy_;
  Buffer upper_, inverse_;  // p rows of `stride`
  Buffer reciprocals_, x_;  // of the pivots; one right-hand side
  std::vector<double> scale_, sums_;
  double norm_ = 0;
  bool visible_ = true;
};

}  // namespace linattn
