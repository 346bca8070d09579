"""The normal equations of data in several parts: every result is the sum of those of the parts.

The parts may be read one after the other from a stream, or lie on the workers of a cluster; what
adds them up is given, and adds in an order of its own that never changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..arrays.types import Floats
from ..backend.normal_operator import Gradient, KroneckerFactors, NormalProduct
from ..features.features import Features


class SummedOperator:
    """See :class:`linattn_fast.backend.normal_operator.NormalOperator`.

    Parameters
    ----------
    features, d_out, n_samples, total_weight
        What all parts together have.
    total
        Called with the name of a method and its arguments: the sum of its results over the parts.
    """

    def __init__(
        self,
        features: Features,
        d_out: int,
        n_samples: int,
        total_weight: float,
        total: Callable[..., Any],
    ) -> None:
        self.features = features
        self.d_out = d_out
        self.n_samples = n_samples
        self.total_weight = total_weight
        self._total = total

    def kronecker_factors(self) -> KroneckerFactors:
        """See :meth:`NormalOperator.kronecker_factors`."""
        return KroneckerFactors(*self._total("kronecker_factors"))

    def normal(self, C: Floats) -> NormalProduct:
        """See :meth:`NormalOperator.normal`."""
        return NormalProduct(*self._total("normal", C))

    def narrow(self, C: Floats) -> None:
        """See :meth:`NormalOperator.narrow`: parts are not kept in float32."""

    def gradient(self, C: Floats) -> Gradient:
        """See :meth:`NormalOperator.gradient`."""
        return Gradient(*self._total("gradient", C))
