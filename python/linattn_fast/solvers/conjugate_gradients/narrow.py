"""Products with the Gram whose blocks are summed in float32: half the bytes and half the time.

In whitened coordinates, K = E' (Lambda + alpha I) E, such a product is that of K + D. How large D
is follows from how far features cancel in C h; with the condition number of A (x) B it is at most
about

    2^-24 sqrt(condition) ||K||

and it is measured once, on the first vector. An iteration may use K + D because its residuals are
recomputed in float64 from time to time (:mod:`.iteration`): what D spoils costs iterations, not
digits. They stay few while D is small against the least eigenvalue of K that
the iteration meets. Where it is not, the iteration goes on in float64 and never comes back.
"""

from __future__ import annotations

from ...arrays.types import Floats
from ...backend.normal_operator import NormalOperator, NormalProduct

FLOAT32 = 2.0**-24
"""Unit roundoff of float32."""
_ROUGHEST = 1e-3
"""Largest share of ||K|| that D may be expected to be, for float32 to be tried."""
WORTHWHILE = 1e8
"""Flops of a pass, 4 N p for one output, below which nothing is gained."""
_CLEAR = 500.0
"""Times ||D|| that eigenvalues have to be, if D is to cost few iterations."""


class Products:
    """The Gram times coefficients, in float32 as long as ``narrow`` says so.

    Parameters
    ----------
    operator
        The data.
    narrow
        Whether to begin in float32.
    """

    def __init__(self, operator: NormalOperator, narrow: bool = False) -> None:
        self._operator = operator
        self.narrow = narrow
        self.off: float | None = None
        """||D||, once it is measured."""
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

    def shows(self, eigenvalue: float) -> bool:
        """Whether products tell an eigenvalue, or curvature, of this size from others."""
        return not self.narrow or self.off is None or eigenvalue > _CLEAR * self.off


def products_for(operator: NormalOperator, condition: float, allowed: bool) -> Products:
    """Products in whitened coordinates of a condition number, in float32 where that may be safe."""
    return Products(operator, allowed and FLOAT32 * condition**0.5 <= _ROUGHEST)
