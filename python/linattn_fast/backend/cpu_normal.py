"""The normal equations in compiled code: :class:`NormalOperator` over packed samples."""

from __future__ import annotations

import numpy as np

from ..arrays.compiled import core
from ..arrays.types import Floats, Positions
from ..data.non_finite import non_finite_error
from ..data.tokens import Tokens, total_weight
from ..features.features import Features
from ..system.threads import get_num_threads
from .normal_operator import Gradient, KroneckerFactors, NormalProduct


def compiled_samples(
    tokens: Tokens,
    targets: Tokens | None = None,
    weights: Floats | None = None,
    positions: Positions = "last",
    features: Features | None = None,
) -> core.Samples:
    """Samples as the extension takes them, with all features where none are given."""
    chosen = None if features is None or features.everything else features
    return core.Samples(
        tokens=tokens.storage,
        offsets=tokens.offsets,
        targets=None if targets is None else targets.storage,
        target_offsets=None if targets is None else targets.offsets,
        weights=weights,
        positions=positions,
        pairs=None if chosen is None else chosen.pair_numbers,
        queries=None if chosen is None else chosen.queries,
    )


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
        samples = compiled_samples(tokens, targets, weights, positions, features)
        self._equations = core.NormalEquations(samples, keep=keep)

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
