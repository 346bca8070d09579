"""Sums over samples with all that belongs to them: what moments hold, and what they add up.

Over the samples of a batch, or of several batches added in order:

    gram = sum w h h'    cross = sum w h y'    energy = sum w y^2    W = sum w
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from ..arrays.device import device_of, frozen, on_device, put_all, to_host
from ..arrays.floats import gradual_underflow, keeps_subnormals
from ..arrays.types import Array, Floats, Positions
from ..backend.choice import get_backend
from ..backend.interface import BatchMoments, Precision
from ..data.non_finite import underflow_error
from ..data.tokens import Tokens, finite_weight, total_weight
from ..features import compact
from ..features.accumulation import Accumulation
from ..features.features import Features
from ..system.progress import Progress

_SMALLEST = float(np.finfo(np.float64).tiny / np.finfo(np.float64).eps)
"""A Gram whose largest entry is below this has lost digits to underflow."""


@dataclass(frozen=True)
class Totals:
    """Sums over samples, their number and weight, and how the sums were rounded."""

    sums: BatchMoments
    """Never written to again: merged moments share them."""
    n_samples: int
    total_weight: float
    """W."""
    accumulation: Accumulation
    magnitudes: Floats | None
    """Sum of w S_jj S_kk z_l^2, (n_pairs, n_queries); None where the Gram has it."""
    scalar_targets: bool = False
    """Whether all targets came without an axis of outputs."""

    def __post_init__(self) -> None:
        for array in self.sums:
            frozen(array)

    def placed(self, place: Callable[[Array], Array]) -> Totals:
        """The same, each array where ``place`` puts it."""
        sizes = None if self.magnitudes is None else place(self.magnitudes)
        return replace(self, sums=BatchMoments(*map(place, self.sums)), magnitudes=sizes)

    def get(self) -> Totals:
        """The same, on the host."""
        return self.placed(to_host)


def merged(parts: Sequence[Totals]) -> Totals:
    """Of the samples of all parts together, added in the order given."""
    if len(parts) == 1:
        return parts[0]
    try:
        with gradual_underflow(), np.errstate(over="raise"):
            return _merged(parts)
    except FloatingPointError:
        raise ValueError(
            "moments: what is added up overflows float64; rescale the data or the weights"
        ) from None


def _merged(parts: Sequence[Totals]) -> Totals:
    weight = finite_weight(reduce(float.__add__, (part.total_weight for part in parts)))
    how = reduce(Accumulation.merged, (part.accumulation for part in parts))
    if not keeps_subnormals():
        how = how._replace(underflow=True)
    sizes = [part.magnitudes for part in parts if part.magnitudes is not None]
    return Totals(
        BatchMoments(*(_added(arrays) for arrays in zip(*(p.sums for p in parts), strict=True))),
        sum(part.n_samples for part in parts),
        weight,
        how,
        _added(sizes) if sizes else None,
        all(part.scalar_targets for part in parts),
    )


def _added(arrays: Sequence[Array]) -> Array:
    """((a + b) + c) + ..., in one new array where a is."""
    first, second, *rest = put_all(list(arrays), like=arrays[0])
    with on_device(device_of(first)):
        total: Array = first + second
        for array in rest:
            total += array
    return total


@gradual_underflow()
def totals_of_batch(
    tokens: Tokens,
    targets: Tokens | None,
    weights: Floats | None,
    *,
    positions: Positions,
    features: Features,
    backend: str,
    precision: Precision,
    progress: Progress,
) -> Totals:
    """Sum over a checked batch; raises where its products overflow, or underflow as a whole."""
    weight = total_weight(tokens, weights, positions)
    engine = get_backend(backend, tokens)
    sums = engine.moments(
        tokens, targets, weights, positions, precision, features=features, progress=progress
    )
    with on_device(device_of(sums.gram)):
        largest = float(compact.diagonal(sums.gram, features, positions).max())
    if largest < _SMALLEST:  # of chosen features, all may be zero where queries are not
        some = features.everything and _some_query(tokens, weights, positions)
        if some or (largest > 0 and engine.underflow):
            raise underflow_error(tokens, weights)
    samples = tokens.n_samples(positions)
    how = Accumulation(
        *engine.roundings(samples, precision),
        longest=int(tokens.lengths.max()),
        underflow=engine.underflow or not keeps_subnormals(),
        largest_weight=1.0 if weights is None else float(weights.max()),
    )
    scalar = targets is not None and targets.scalar
    return Totals(sums, samples, weight, how, engine.magnitudes, scalar)


def _some_query(tokens: Tokens, weights: Floats | None, positions: Positions) -> bool:
    """Whether a query of positive weight is not zero, and with it S_ll z_l for some l."""
    queries = slice(-1, None) if positions == "last" else slice(None)
    return any(
        bool(to_host(z)[queries].any())
        for i, z in enumerate(tokens)
        if weights is None or weights[i] > 0
    )
