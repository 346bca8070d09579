"""The normal equations of data in several parts: every result is the sum of those of the parts.

The parts may be read one after the other from a stream, or lie on the workers of a cluster; what
adds them up is given, and adds in an order of its own that never changes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from ..arrays.types import Floats
from ..backend.choice import get_backend
from ..backend.normal_operator import (
    Gradient,
    KroneckerFactors,
    NormalOperator,
    NormalProduct,
    added,
)
from ..data.tokens import require_positive, total_weight
from ..features.features import Features
from .in_memory import Problem
from .streamed import StreamedProblem


def operator_of(part: Problem, *, keep: bool) -> NormalOperator:
    """The normal equations of data in memory; ``keep`` its packed samples from pass to pass."""
    return get_backend(part.backend).normal_operator(
        part.tokens, part.targets, part.weights, part.positions, part.features, keep=keep
    )


class SummedOperator:
    """See :class:`linattn_fast.backend.normal_operator.NormalOperator`.

    Parameters
    ----------
    features, d_out, n_samples, total_weight, largest_weight
        Of all parts together.
    total
        Called with the name of a method and its arguments: the sum of its results over the parts.
    """

    def __init__(
        self,
        features: Features,
        d_out: int,
        n_samples: int,
        total_weight: float,
        largest_weight: float,
        total: Callable[..., Any],
    ) -> None:
        self.features = features
        self.d_out = d_out
        self.n_samples = n_samples
        self.total_weight = total_weight
        self.noise_samples = total_weight / largest_weight if largest_weight > 0 else 0.0
        self._total = total

    def kronecker_factors(self) -> KroneckerFactors:
        """See :meth:`NormalOperator.kronecker_factors`."""
        return KroneckerFactors(*self._total("kronecker_factors"))

    def normal(self, C: Floats) -> NormalProduct:
        """See :meth:`NormalOperator.normal`."""
        return NormalProduct(*self._total("normal", C))

    def gradient(self, C: Floats) -> Gradient:
        """See :meth:`NormalOperator.gradient`."""
        return Gradient(*self._total("gradient", C))


def streamed_operator(problem: StreamedProblem) -> SummedOperator:
    """Operator of a stream: every call reads it once."""
    n_samples, weight, largest = 0, 0.0, 0.0
    with problem.parts() as parts:
        for part in parts:
            n_samples += part.n_samples
            weight += total_weight(part.tokens, part.weights, part.positions)
            largest = max(largest, 1.0 if part.weights is None else float(part.weights.max()))
    require_positive(weight)

    def total(name: str, *arguments: Floats) -> Any:
        with problem.parts() as parts:
            return reduce(
                added, (getattr(operator_of(part, keep=False), name)(*arguments) for part in parts)
            )

    return SummedOperator(problem.features, problem.d_out, n_samples, weight, largest, total)
