"""Positive random features of the exponential kernel.

    phi(x)_i = exp(w_i'x - |x|^2 / 2) / sqrt(m)       w_i independent, standard normal

    E phi(x)'phi(y) = exp(x'y)       variance (exp(2 x'y + |x + y|^2) - exp(2 x'y)) / m

because E exp(w'(x + y)) = exp(|x + y|^2 / 2). Scale tokens by d^(-1/4) for the kernel of softmax
attention, exp(x'y / sqrt d).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import sqrt

import numpy as np

from ..arrays.device import module_of, put
from ..arrays.types import Floats
from ..system.arguments import as_size
from .feature_map import FeatureMap, row_products


@lru_cache(maxsize=8)
def _directions(count: int, seed: int, d: int) -> Floats:
    """The random vectors w_i, (count, d)."""
    W = np.random.default_rng((seed, d)).standard_normal((count, d))
    W.setflags(write=False)
    return W


@dataclass(frozen=True, repr=False)
class Exponential(FeatureMap):
    """Positive random features of exp(x'y); see above."""

    count: int
    """Number m of features."""
    seed: int = 0
    """The same features for the same number, in every process."""

    name = "exponential"

    def of_rows(self, x: Floats) -> Floats:
        """Map each row."""
        W = put(_directions(self.count, self.seed, x.shape[1]), like=x)
        exponents = row_products(x, W)
        exponents -= (x**2).sum(axis=1, keepdims=True) / 2
        mapped: Floats = module_of(x).exp(exponents)
        mapped /= sqrt(self.count)
        return mapped

    def width(self, d: int) -> int:
        """The number of features, whatever d is."""
        return self.count

    def __repr__(self) -> str:
        return f"maps.exponential({self.count}, seed={self.seed})"


def exponential(count: int, seed: int = 0) -> Exponential:
    """Positive random features of the kernel exp(x'y).

    Parameters
    ----------
    count
        Number of features.
    seed
        A whole number: the same features for the same number.

    Returns
    -------
    Exponential
        The map, (m, d) to (m, count).

    Examples
    --------
    >>> import numpy as np, linattn_fast as la
    >>> x = np.array([[0.3, 0.1], [0.2, -0.4]])
    >>> phi = la.maps.exponential(20_000)(x)
    >>> bool(abs(phi[0] @ phi[1] - np.exp(x[0] @ x[1])) < 0.02)
    True
    """
    return Exponential(as_size(count, "count"), as_size(seed, "seed", least=0))
