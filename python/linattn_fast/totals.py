"""Sums over samples with all that belongs to them: what moments hold, and what they add up.

Over the samples of a batch, or of several batches added in order:

    gram = sum w h h'    cross = sum w h y'    energy = sum w y^2    W = sum w
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from . import compact
from .accumulation import Accumulation, summand_sizes
from .backend import BatchMoments, Precision, Progress, get_backend
from .features import Features
from .tokens import Array, Floats, Positions, Tokens, total_weight, underflow_error

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

    def __post_init__(self) -> None:
        for array in self.sums:
            array.setflags(write=False)


def merged(parts: Sequence[Totals]) -> Totals:
    """Of the samples of all parts together, added in the order given."""
    if len(parts) == 1:
        return parts[0]
    sizes = [part.magnitudes for part in parts if part.magnitudes is not None]
    return Totals(
        BatchMoments(*(_added(arrays) for arrays in zip(*(p.sums for p in parts), strict=True))),
        sum(part.n_samples for part in parts),
        reduce(float.__add__, (part.total_weight for part in parts)),
        reduce(Accumulation.merged, (part.accumulation for part in parts)),
        _added(sizes) if sizes else None,
    )


def _added(arrays: Sequence[Array]) -> Array:
    """((a + b) + c) + ..., in one new array."""
    total = arrays[0] + arrays[1]
    for array in arrays[2:]:
        total += array
    return total


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
    engine = get_backend(backend)
    sums = engine.moments(
        tokens, targets, weights, positions, precision, features=features, progress=progress
    )
    largest = compact.diagonal(sums.gram, features, positions).max()
    if largest < _SMALLEST and (weights is None or weights.any()):
        queries = slice(-1, None) if positions == "last" else slice(None)
        if features.everything and any(z[queries, features.queries].any() for z in tokens):
            raise underflow_error(tokens)
    samples = tokens.n_samples(positions)
    how = Accumulation(
        *engine.roundings(samples, precision),
        longest=int(tokens.lengths.max()),
        underflow=engine.underflow,
        largest_weight=1.0 if weights is None else float(weights.max()),
    )
    sizes = None if features.everything else summand_sizes(tokens, weights, positions, features)
    return Totals(sums, samples, total_weight(tokens, weights, positions), how, sizes)
