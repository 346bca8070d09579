"""The normal equations in compiled code: :class:`NormalOperator` over packed samples."""

from __future__ import annotations

import numpy as np

from ..arrays.compiled import core
from ..arrays.types import Floats, Positions
from ..data.non_finite import non_finite_error
from ..data.tokens import Tokens, total_weight
from ..features.features import Features
from ..system.machine import get_num_threads
from .normal_operator import Gradient, KroneckerFactors, NormalProduct


class CpuNormalOperator:
    """Passes over blocks of samples, on all threads, with the GIL released.

    Parameters
    ----------
    tokens, targets, weights, positions, features
        A checked batch, as the backends take it; it must not change while this object is in use.
    keep
        Hold on to the packed samples after the first pass; else every pass makes them from the
        tokens.
    """

    def __init__(
        self,
        tokens: Tokens,
        targets: Tokens,
        weights: Floats | None,
        positions: Positions,
        features: Features,
        *,
        keep: bool,
    ) -> None:
        self.features = features
        self.d_out = targets.d
        self.n_samples = tokens.n_samples(positions)
        self.total_weight = total_weight(tokens, weights, positions)
        self._tokens = tokens
        self._equations = core.NormalEquations(
            tokens.storage,
            tokens.offsets,
            targets.storage,
            targets.offsets,
            weights,
            positions,
            None if features.everything else features.pair_numbers,
            None if features.everything else features.queries,
            keep,
        )

    def _finite(self, *arrays: Floats) -> tuple[Floats, ...]:
        if not all(np.isfinite(array).all() for array in arrays):
            raise non_finite_error(self._tokens)
        return arrays

    def kronecker_factors(self) -> KroneckerFactors:
        """See :meth:`NormalOperator.kronecker_factors`."""
        try:
            sums = self._equations.kronecker_factors(get_num_threads())
        except core.NonFiniteError:
            raise non_finite_error(self._tokens) from None
        return KroneckerFactors(*self._finite(*sums))

    def normal(self, C: Floats) -> NormalProduct:
        """See :meth:`NormalOperator.normal`."""
        try:
            sums = self._equations.normal(C, get_num_threads())
        except core.NonFiniteError:
            raise non_finite_error(self._tokens) from None
        return NormalProduct(*self._finite(*sums))

    def gradient(self, C: Floats) -> Gradient:
        """See :meth:`NormalOperator.gradient`."""
        try:
            sums = self._equations.gradient(C, get_num_threads())
        except core.NonFiniteError:
            raise non_finite_error(self._tokens) from None
        return Gradient(*self._finite(*sums))
