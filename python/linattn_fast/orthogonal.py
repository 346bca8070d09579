"""Least squares by orthogonal transformations: for problems whose Gram is singular or close to it.

A Gram matrix has the squared condition number of the features: what is below sqrt(eps) of the
largest singular value is lost in it. With the data at hand, the features themselves can be reduced
to a triangle, a batch at a time, without ever holding more than a few p x p matrices:

    [ sqrt(w) H D   sqrt(w) y ] = Q [ R  c ]      D = diag(2^k), columns of length near one
    [ sqrt(alpha W) D      0  ]     [ 0  . ]

Then R = U diag(sigma) V' tells the rank (sigma up to 10 max(N, p) eps sigma_max is zero), and
D V diag(1/sigma) U' c is a best fit, from which the one of least norm follows as in
:class:`linattn_fast.solve.SpectralFactor`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import numpy as np

from .device import module_of, put
from .features import Features
from .solve import (
    EPS,
    MARGIN,
    SpectralFactor,
    algebra_of,
    power_of_two_scale,
    spectral_factor,
)
from .tokens import Array, Floats, Positions, Tokens

Batch: TypeAlias = tuple[Tokens, Array, Floats | None]
"""Tokens, targets (samples, d_out), and weights, one a sequence."""


def _pieces(
    batch: Batch, positions: Positions, chosen: Features, rows: int
) -> Iterator[tuple[Floats, Floats]]:
    """Features and targets times sqrt(w), at least ``rows`` samples at a time."""
    tokens, y, weights = batch
    lengths = np.ones(len(tokens), np.int64) if positions == "last" else tokens.lengths
    starts = np.concatenate([[0], np.cumsum(lengths)])
    first = 0
    while first < len(tokens):
        last = int(np.searchsorted(starts, starts[first] + rows))
        last = min(max(last, first + 1), len(tokens))
        features = chosen.of(tokens.part(first, last), positions)
        targets = y[starts[first] : starts[last]].astype(np.float64)
        if weights is not None:
            root = np.sqrt(np.repeat(weights[first:last], lengths[first:last]))[:, None]
            features *= put(root, like=features)
            targets *= put(root, like=targets)
        yield features, targets
        first = last


def _blocks(
    batches: Iterable[Batch], positions: Positions, chosen: Features, rows: int
) -> Iterator[Floats]:
    """Rows sqrt(w) [h y] of all batches, at least ``rows`` at a time but for the last."""
    waiting: list[Floats] = []
    for batch in batches:
        for piece in _pieces(batch, positions, chosen, rows):
            xp = module_of(*piece)
            waiting.append(xp.concatenate([put(part, like=piece[0]) for part in piece], axis=1))
            if sum(map(len, waiting)) >= rows:
                yield xp.concatenate(waiting)
                waiting.clear()
    if waiting:
        yield module_of(*waiting).concatenate(waiting)


def solve_on_data(
    batches: Iterable[Batch],
    n_samples: int,
    total_weight: float,
    positions: Positions,
    alpha: float,
    sizes: Floats,
    chosen: Features,
    d_out: int,
) -> tuple[Floats, SpectralFactor]:
    """Best coefficients (d_out, p), of least norm, and a factorisation of Lambda + alpha I.

    Parameters
    ----------
    batches, n_samples, total_weight, positions
        The data, in one or more batches, and what it comes to.
    alpha
        Ridge.
    sizes
        Mean squares from which D is taken, (p,): the diagonal of Lambda + alpha I, or nearly
        (:mod:`linattn_fast.cancellation`).
    chosen
        Which features take part.
    d_out
        Outputs; may be 0.
    """
    root = np.sqrt(total_weight)
    rows = (block / root for block in _blocks(batches, positions, chosen, 2 * len(sizes)))
    return solve_rows(rows, n_samples, alpha, sizes, d_out)


def solve_rows(
    rows: Iterable[Floats], n_samples: int, alpha: float, sizes: Floats, d_out: int
) -> tuple[Floats, SpectralFactor]:
    """The same, from rows sqrt(w / W) [h y] of the samples, some at a time."""
    p, xp, algebra = len(sizes), module_of(sizes), algebra_of(sizes)
    scale = power_of_two_scale(sizes)
    triangle = None
    if alpha > 0:
        triangle = xp.zeros((p, p + d_out))
        triangle[:, :p] = xp.diag(np.sqrt(alpha) * scale)
    units = xp.concatenate([scale, xp.ones(d_out)])
    for block in rows:
        scaled = put(block, like=units) * units
        triangle = algebra.triangle_of(
            scaled if triangle is None else xp.concatenate([triangle, scaled])
        )
    assert triangle is not None
    kept = p if alpha > 0 else min(p, n_samples)  # the rest is zero
    U, sigma, Vt = algebra.svd(triangle[:kept, :p])
    c = triangle[:kept, p:]
    values = xp.zeros(p)
    values[p - kept :] = sigma[::-1] ** 2
    level = max(n_samples, p) * EPS  # of sigma; eigenvalues are squares
    factor = spectral_factor(
        values,
        Vt[::-1].T,
        scale,
        level=level**2,
        margin=(MARGIN * level) ** 2,
        name="qr",
    )
    if factor.rank == 0:
        return xp.zeros((d_out, p)), factor
    inner = (U.T @ c)[::-1][-factor.rank :] / sigma[::-1][-factor.rank :, None]
    return factor.shortest(inner).T, factor
