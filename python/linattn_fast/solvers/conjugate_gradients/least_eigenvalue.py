"""A lower bound on the least eigenvalue of K, from a random row beside those of a solve.

Right-hand sides alone do not tell: with targets C h a direction of eigenvalue lambda has a share
of lambda / ||K|| in them, so that a small one is invisible, but not its share in C. Ritz values
approach lambda_min from above, and may stop anywhere on the way. So one more row, of a random b of
n entries, takes part in the passes. It has the weight

    w = xi^2 / ||b||^2        xi standard normal

along the eigenvector of lambda_min, and :mod:`.lanczos` says where there may be such a weight.
Nothing but |xi| >= 1e-3 is assumed, which fails for one b in a thousand. To see so small a weight
among n others takes a random row nearly as many iterations as a solve.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...arrays.device import put
from ...arrays.types import Floats
from .lanczos import Lanczos
from .narrow import Products
from .whitening import Coordinates

_LEAST_SHARE = 1e-3
"""Value that |xi| is below with a probability of 8e-4."""
_CLOSE = 0.25
"""Share of the least Ritz value at which a bound is good enough: a better one takes more iterations
of the random row than it saves a solve."""
_NULL = 1e-14
"""A Ritz value below this share of the largest one counts as zero."""
_LARGER = 4.0
"""How many times what is measured on one vector ||D|| may be."""
_SETTLED = 1e-13
"""Relative residual of the random row at which there is nothing left to see."""


@dataclass
class Probe:
    """A random row, and what it has told about lambda_min(K) so far."""

    b: Floats
    """The random row, (1, r, t)."""
    lower: float = 0.0
    """At least this, with a probability of 0.999; 0 where nothing is known."""
    singular: bool = False
    """Whether K has a direction in which it is zero to rounding."""
    done: bool = False

    @classmethod
    def random(cls, coordinates: Coordinates, place: Floats) -> Probe:
        """A fixed random row, where ``place`` is."""
        b = np.random.default_rng(0).standard_normal((1, *coordinates.shape))
        return cls(put(b, like=place), done=b.size == 0)

    def look(self, lanczos: Lanczos, residual: float, products: Products) -> None:
        """See what the coefficients of the row say, at this relative residual."""
        ritz = lanczos.ritz_values()
        if len(ritz) == 0:
            return
        self.singular = bool(ritz[0] < _NULL * ritz[-1])
        if self.singular:
            self.lower, self.done = 0.0, True
            return
        weight = _LEAST_SHARE**2 / float((self.b**2).sum())
        lower = lanczos.least_eigenvalue(weight)
        self.done = lower >= _CLOSE * ritz[0] or residual < _SETTLED
        # With products of K + D, the bound is that of K + D
        off = _LARGER * products.off if products.narrow and products.off is not None else 0.0
        self.lower = lower - off if lower > 2 * off else 0.0

    def begin_anew(self) -> None:
        """Forget what was found."""
        self.lower, self.singular, self.done = 0.0, False, self.b.size == 0
