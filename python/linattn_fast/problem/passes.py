"""The normal equations of data in several parts: every result is a sum over the parts.

The parts may be read one after the other from a stream, or lie on the workers of a cluster. The
function that adds them up is given, and always adds in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..arrays.types import Floats
from ..backend.normal_operator import Gradient, KroneckerFactors, NormalProduct
from ..features.features import Features
from ..features.samples import Samples


@dataclass(frozen=True)
class SummedOperator:
    """See :class:`linattn_fast.backend.normal_operator.NormalOperator`."""

    features: Features
    d_out: int
    n_samples: int
    """Number of samples in all parts together."""
    total_weight: float
    """Weight of all parts together."""
    total: Callable[..., Any]
    """Sums the results of a method over the parts, given its name and its arguments."""
    total_of: Callable[..., Any] | None = None
    """Sums the results over parts that are given first."""
    rounded: list[Samples] = field(default_factory=list)
    """The parts in float32, where they are held."""

    def kronecker_factors(self) -> KroneckerFactors:
        """See :meth:`NormalOperator.kronecker_factors`."""
        return KroneckerFactors(*self.total("kronecker_factors"))

    def normal(self, C: Floats) -> NormalProduct:
        """See :meth:`NormalOperator.normal`."""
        return NormalProduct(*self.total("normal", C))

    def narrow(self, C: Floats) -> NormalProduct | None:
        """See :meth:`NormalOperator.narrow`: of the samples rounded to float32."""
        if self.total_of is None or not self.rounded:
            return None
        return NormalProduct(*self.total_of(self.rounded, "normal", C))

    def gradient(self, C: Floats) -> Gradient:
        """See :meth:`NormalOperator.gradient`."""
        return Gradient(*self.total("gradient", C))
