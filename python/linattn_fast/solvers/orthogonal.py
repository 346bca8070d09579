"""Fits from the features themselves, by orthogonal transformations: no Gram loses anything.

    [ sqrt(w) h'   sqrt(w) y' ] of all samples, reduced to a triangle some rows at a time

Solver "qr": slower than Cholesky, for ill-conditioned and singular problems. The triangle and what
follows from it are in :mod:`linattn_fast.linalg.orthogonal`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import numpy as np

from ..arrays.device import module_of, put
from ..arrays.types import Floats
from ..features.samples import Samples
from ..linalg.factors import ChosenFactor
from ..linalg.orthogonal import solve_rows
from ..linalg.spectral import SpectralFactor
from ..moments.sums import MomentSums
from .accuracy import refine_on_data
from .cholesky import accumulated, solved_by_factor
from .solved import Solved, Task


def solve(task: Task) -> Solved:
    """Solve by orthogonal transformations of the features, and correct on the data."""
    problem, moments = task.problem, accumulated(task)
    assert problem.read is not None
    assert problem.gradient is not None
    start = time.perf_counter()
    with task.stages.timed("solve"), problem.read() as parts:
        C, spectral = solve_on_data(parts, moments, task.alpha)
    p, reason = moments.dimension, ""
    if spectral.rank < p:
        reason = f"rank {spectral.rank} of {p}, least norm"
    choice = ChosenFactor(spectral, reason, time.perf_counter() - start)
    with task.stages.timed("refine"):
        weight = moments.required_weight()
        solution = refine_on_data(C, choice, task.alpha, weight, problem.gradient)
    return solved_by_factor(task, choice, solution)


def solve_on_data(
    parts: Iterable[Samples], moments: MomentSums, alpha: float = 0.0, *, d_out: int | None = None
) -> tuple[Floats, SpectralFactor]:
    """Best coefficients (d_out, p), of least norm, and a factorisation of Lambda + alpha I.

    Parameters
    ----------
    parts
        The data, in one or more parts.
    moments
        The moments of the data, which tell how its features are scaled.
    alpha
        Ridge.
    d_out
        Outputs to solve for: all of them, or 0 for the factorisation alone.
    """
    sizes, outputs = moments.feature_sizes(), moments.d_out if d_out is None else d_out
    root = np.sqrt(moments.required_weight())
    rows = (some / root for some in _rows(parts, outputs, 2 * len(sizes)))
    return solve_rows(rows, moments.n_samples, alpha, sizes, outputs)


def _rows(parts: Iterable[Samples], d_out: int, rows: int) -> Iterator[Floats]:
    """Rows sqrt(w) [h y] of all parts, at least ``rows`` at a time but for the last."""
    waiting: list[Floats] = []
    for samples in parts:
        for piece in _pieces(samples, d_out, rows):
            waiting.append(piece)
            if sum(map(len, waiting)) >= rows:
                yield module_of(*waiting).concatenate(waiting)
                waiting.clear()
    if waiting:
        yield module_of(*waiting).concatenate(waiting)


def _pieces(samples: Samples, d_out: int, rows: int) -> Iterator[Floats]:
    """Rows sqrt(w) [h y] of one part, at least ``rows`` samples at a time."""
    count = samples.n_sequences
    lengths = np.ones(count, np.int64) if samples.positions == "last" else samples.tokens.lengths
    ends = np.concatenate([[0], np.cumsum(lengths)])
    first = 0
    while first < count:
        last = int(np.searchsorted(ends, ends[first] + rows))
        last = min(max(last, first + 1), count)
        some = samples.part(first, last)
        h = some.features.of(some.tokens, some.positions)
        xp = module_of(h)
        y = xp.zeros((len(h), 0))
        if d_out and some.targets is not None:
            y = some.targets.rows().astype(np.float64)
        piece: Floats = xp.concatenate([h, put(y, like=h)], axis=1)
        if some.weights is not None:
            piece *= put(np.sqrt(some.weight_of_each())[:, None], like=h)
        yield piece
        first = last
