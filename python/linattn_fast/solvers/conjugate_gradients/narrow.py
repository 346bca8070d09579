"""Products with the Gram whose blocks are summed in float32: half the bytes and half the time.

In whitened coordinates, K = E' (Lambda + alpha I) E, such a product is off by about

    level = 2^-24 sqrt(condition)          of ||K|| ||v||

with the condition number of A (x) B: features cancel in C h where tokens depend on one another, and
float32 loses what cancels. An iteration may use them because its residuals are recomputed in
float64 from time to time (:mod:`linattn_fast.solvers.conjugate_gradients.iteration`): what they lose costs iterations,
not digits. Where they turn out to be too rough, it goes on in float64 and never comes back.
"""

from __future__ import annotations

from ...arrays.types import Floats
from ...backend.normal_operator import NormalOperator, NormalProduct

FLOAT32 = 2.0**-24
"""Unit roundoff of float32."""
_ROUGHEST = 1e-3
"""Largest level at which float32 is tried."""
_WORTHWHILE = 1e8
"""Flops of a pass, 4 N p for one output, below which nothing is gained."""
_RESOLVED = 10.0
"""Levels below which a curvature, relative to the largest one, is not to be told from zero."""


class Products:
    """The Gram times coefficients, in float32 as long as ``narrow`` says so.

    Parameters
    ----------
    operator
        The data.
    level
        Error to be expected of a product in float32; None for float64 only.
    """

    def __init__(self, operator: NormalOperator, level: float | None = None) -> None:
        self._operator = operator
        self.narrow = level is not None
        self.level = 0.0 if level is None else level
        self.passes = 0
        """In float32, so far."""

    def __call__(self, C: Floats) -> NormalProduct:
        """Multiply the Gram with C (m, p)."""
        if self.narrow:
            found = self._operator.narrow(C)
            if found is not None:
                self.passes += 1
                return found
            self.narrow = False
        return self._operator.normal(C)

    def exact(self, C: Floats) -> NormalProduct:
        """Multiply likewise, always in float64."""
        return self._operator.normal(C)

    @property
    def flat(self) -> float:
        """Share of the largest curvature below which a product does not show one; 0 in float64."""
        return _RESOLVED * self.level if self.narrow else 0.0


def products_for(operator: NormalOperator, condition: float, allowed: bool) -> Products:
    """Products in whitened coordinates of a condition number, in float32 where that is safe."""
    level = FLOAT32 * condition**0.5
    work = 4.0 * operator.n_samples * operator.features.count
    safe = allowed and level <= _ROUGHEST and work >= _WORTHWHILE
    return Products(operator, level if safe else None)
