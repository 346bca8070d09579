// One factor of heads by linear algebra: the span that ranks show, as python/linattn_fast/heads/span.py has it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "small_matrices.hpp"

namespace linattn {

// B(u,c), d x d, and the part of it that is not negligible: eigenvalues, the largest first, and eigenvectors, r x d.
struct Form {
  Matrix matrix;
  std::vector<double> values;
  Matrix vectors;
};

// One output: V (H x d), for H < d / 2 from the ranges of B(c).
std::optional<Matrix> values_in_ranges(const std::vector<Form>& forms, std::int64_t d, std::int64_t H);

// One output: V (H x d), for H = d / 2 by pencils.
std::optional<Matrix> values_by_pencils(const std::vector<Form>& forms, std::int64_t d, std::int64_t H);

// F (H x (d n)) with F x in U(x), by the normal equations for X in span.py. U(x) (H x n) are the rows of `bases`,
// x0 the point of the number `base`, and near[j] = (2 M(x0, e_j) W0 / S0)', H x n.
std::optional<Matrix> spanned(const double* points, std::int64_t d, const std::vector<Matrix>& bases, std::size_t base,
                              std::vector<Matrix> near);

}  // namespace linattn
