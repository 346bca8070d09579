"""Least squares of one block, whose rows are all at hand.

With H = sqrt(w / W) h (n, p) and Y = sqrt(w / W) y, the block's part of Lambda is H'H, and

    (H'H + alpha I) C' = H'Y

is solved by the first of these that is safe:

1. Cholesky.
2. Eigenvectors of a singular H'H, where they leave no doubt: eigenvalues that count are all above
   ``CLEAR`` of the largest, and H itself is zero along the others, to the level at which singular
   values of H count as zero. (A Gram alone cannot tell a singular value of 1e-8 from zero; H can.)
   One-hot data is like that. With fewer samples than features, they come from H H'.
3. Orthogonal transformations of H (:mod:`linattn_fast.linalg.orthogonal`), which need no Gram.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ...arrays.types import Floats
from ...linalg.cholesky import (
    CholeskyFactor,
    add_to_diagonal,
    rounding_level,
    safe_for_ridge,
    try_cholesky,
)
from ...linalg.factors import EPS, MARGIN, NotSafe
from ...linalg.host_algebra import product
from ...linalg.orthogonal import solve_rows
from ...linalg.spectral import SpectralFactor, eigenpairs
from ..accuracy import bound, left_after, norm, refine, rounding_of_data

Factor: TypeAlias = CholeskyFactor | SpectralFactor

CLEAR = 1e-7
"""Eigenvalues above this, relative to the largest, are known to many digits."""
_LIKE_SCALES = 2.0**16
"""Mean squares of features within this factor of each other need no equilibration."""


@dataclass(frozen=True)
class BlockSolution:
    """Coefficients of a block, and what its samples determine."""

    coefficients: Floats
    """The coefficients C, (d_out, p)."""
    squared_error: float
    """The sum of squares of Y - H C'."""
    steps: tuple[float, ...]
    """Relative sizes of the corrections that refinement took."""
    solved: Factor
    """The factorisation of H'H + alpha I."""
    error: float | None
    """Bound on the error of the coefficients by rounding, in the Frobenius norm; None where it is
    not known."""


def factorise_block(H: Floats, sizes: Floats | None = None) -> Factor:
    """Factorise H'H by the first of the three ways that is safe; see :func:`solve_block`."""
    return _solve(H, np.zeros((len(H), 0)), 0.0, sizes)[1]


def solve_block(
    H: Floats,
    Y: Floats,
    alpha: float,
    sizes: Floats | None = None,
    summands: Floats | None = None,
    longest: int = 0,
) -> BlockSolution:
    """Solve for the best coefficients of least norm, and bound their error.

    ``sizes``, (p,), are the mean squares that features of H'H are scaled by, and ``summands`` upper
    bounds on those of their summands; both are its diagonal by default. A feature is a sum over up
    to ``longest`` tokens.
    """
    wanted = Y.any(axis=0)  # outputs that are always zero have zero coefficients
    targets = Y[:, wanted]
    x, factor = _solve(H, targets, alpha, sizes)
    steps: tuple[float, ...] = ()
    if factor.name != "qr":

        def correction(x: Floats) -> Floats:
            gradient = product(H.T, targets - product(H, x)) - alpha * x
            return _apply(factor, gradient, alpha)

        x, steps = refine(x, correction)
    error = float(((targets - product(H, x)) ** 2).sum())
    coefficients = np.zeros((Y.shape[1], H.shape[1]))
    coefficients[wanted] = x.T
    return BlockSolution(
        coefficients,
        error,
        steps,
        factor,
        _rounding_error(factor, H, Y, coefficients, error, alpha, steps, summands, longest),
    )


def _rounding_error(
    factor: Factor,
    H: Floats,
    Y: Floats,
    C: Floats,
    squared_error: float,
    alpha: float,
    steps: tuple[float, ...],
    summands: Floats | None,
    longest: int,
) -> float | None:
    """Bound on ||C - C*|| by rounding, from :mod:`linattn_fast.solvers.accuracy`."""
    if factor.uncertain:
        return None
    n, p = H.shape
    size, squares = norm(C), (H**2).sum(axis=0)
    relative = bound(
        C,
        factor.scale,
        condition=factor.condition,
        rounding=rounding_of_data(n, p, longest),
        target=norm(Y),
        residual=float(np.hypot(np.sqrt(squared_error), np.sqrt(alpha) * size)),
        full_rank=factor.rank == p,
        ridge=alpha,
        squares=squares,
        summands=squares if summands is None else summands,
    )
    if relative is None:
        return None
    if factor.name != "qr" and size > 0:
        relative += left_after(steps, factor.level * factor.condition)
    return relative * size if relative < 1 else None


def _solve(H: Floats, Y: Floats, alpha: float, sizes: Floats | None) -> tuple[Floats, Factor]:
    """Solve for C' (p, d_out) before refinement; return it with its factorisation."""
    n, p = H.shape
    factor: Factor | NotSafe | None = None
    if n >= p or alpha > 0:
        gram = product(H.T, H).T
        add_to_diagonal(gram, alpha)
        ridged = None if sizes is None else np.maximum(sizes, alpha)
        factor = safe_for_ridge(try_cholesky(gram, n, ridged), alpha)
    if not isinstance(factor, CholeskyFactor):
        factor = _clear_range(H)
    if isinstance(factor, CholeskyFactor | SpectralFactor):
        return _apply(factor, product(H.T, Y), alpha), factor
    if sizes is None:
        sizes = (H**2).sum(axis=0)
    C, spectral = solve_rows(_pieces(H, Y), n, alpha, sizes, Y.shape[1])
    return C.T, spectral


def _apply(factor: Factor, b: Floats, alpha: float) -> Floats:
    """Solve (H'H + alpha I) x = b for b (p, k), in the range of H'H where its rank is short."""
    if isinstance(factor, CholeskyFactor):
        return factor.solve(b)
    inner = product(factor.vectors.T, b) / (factor.kept[:, None] + alpha)
    return product(factor.vectors, inner)  # no scale: see _clear_range


def _pieces(H: Floats, Y: Floats) -> Iterator[Floats]:
    """Rows [H Y], twice as many at a time as there are columns."""
    step = max(1, 2 * (H.shape[1] + Y.shape[1]))
    for first in range(0, len(H), step):
        rows = slice(first, first + step)
        yield np.concatenate([H[rows], Y[rows]], axis=1)


def _norm(x: Floats) -> float:
    """The Frobenius norm, without numpy's BLAS."""
    return float(np.sqrt((x**2).sum()))


def _clear_range(H: Floats) -> SpectralFactor | None:
    """Eigenvectors of H'H, or None where they leave doubt about its range.

    With fewer rows than columns they come from H H': if H H' u = w u, H'u / sqrt(w) is one of H'H.
    """
    n, p = H.shape
    squares = np.einsum("ij,ij->j", H, H)
    if not squares.max() <= _LIKE_SCALES * squares.min():
        return None
    X = H if n >= p else H.T  # tall
    values, vectors, _ = eigenpairs(product(X.T, X).T, scaled=False)
    level, largest = rounding_level(p, n), values[-1]
    rank = int((values > CLEAR * largest).sum())
    real, kept, null = values[-rank:], vectors[:, -rank:], vectors[:, :-rank]
    if (values[:-rank] > MARGIN * level * largest).any():
        return None
    allowed = MARGIN * max(n, p) * EPS * float(np.sqrt(largest))
    if null.size:  # which rounding tilts by eps over the gap; undo that, and tilt the others back
        inner = product(kept.T, product(X.T, product(X, null))) / real[:, None]
        null = null - product(kept, inner)
        if _norm(product(X, null)) > allowed:
            return None
        kept = kept - product(null, product(null.T, kept))
    if n < p:
        kept = product(H.T, kept) / np.sqrt(real)
        values = np.concatenate([np.zeros(p - n), values])
    return SpectralFactor(values, kept, np.ones(p), None, None, level, MARGIN * level)
