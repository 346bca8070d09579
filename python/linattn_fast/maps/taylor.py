"""The second-order Taylor expansion of exp(x'y), as a product of features.

    phi(x) = (1, x, x_i^2 / sqrt 2, x_i x_j)    i < j, pairs as in the upper triangle, row by row

    phi(x)'phi(y) = 1 + x'y + sum_i x_i^2 y_i^2 / 2 + sum_(i<j) x_i x_j y_i y_j
                  = 1 + x'y + (x'y)^2 / 2

These are 1, x and x x' / sqrt 2 with equal entries of the matrix put together, sqrt 2 times one.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from ..arrays.device import module_of
from ..arrays.types import Floats
from .feature_map import FeatureMap


@dataclass(frozen=True, repr=False)
class Taylor2(FeatureMap):
    """The products of order up to two, (1, x, x x' / sqrt 2 packed); see above."""

    name = "taylor2"

    def of_rows(self, x: Floats) -> Floats:
        """Map each row."""
        xp, d = module_of(x), x.shape[1]
        j, k = np.triu_indices(d)
        mapped: Floats = xp.empty((len(x), self.width(d)))
        mapped[:, 0], mapped[:, 1 : 1 + d] = 1.0, x
        products = mapped[:, 1 + d :]
        xp.multiply(x[:, xp.asarray(j)], x[:, xp.asarray(k)], out=products)
        products[:, xp.asarray(np.flatnonzero(j == k))] /= sqrt(2.0)
        return mapped

    def width(self, d: int) -> int:
        """One, the d coordinates, and d (d + 1) / 2 products."""
        return 1 + d + d * (d + 1) // 2

    def constant(self, width: int) -> int:
        """The first coordinate."""
        return 0


taylor2 = Taylor2()
"""(1, x, x x' / sqrt 2 packed): phi(x)'phi(y) = 1 + x'y + (x'y)^2 / 2."""
