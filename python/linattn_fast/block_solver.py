"""Least squares of one block, whose rows are all at hand.

With H = sqrt(w / W) h (n, p) and Y = sqrt(w / W) y, the block's part of Lambda is H'H, and

    (H'H + alpha I) C' = H'Y

1. Cholesky, where that is safe.
2. Of a singular H'H, its eigenvectors, where they leave no doubt: eigenvalues that count are all
   above ``CLEAR`` of the largest, and H itself is zero along the others, to the level at which
   singular values of H count as zero. (A Gram alone cannot tell a singular value of 1e-8 from
   zero; H can.) One-hot data is like that.
3. Orthogonal transformations of H (:mod:`linattn_fast.orthogonal`), which need no Gram.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from .orthogonal import solve_rows
from .refine import refine
from .solve import (
    EPS,
    MARGIN,
    CholeskyFactor,
    SpectralFactor,
    add_to_diagonal,
    eigenpairs,
    rounding_level,
    try_cholesky,
)
from .tokens import Floats

Factor: TypeAlias = CholeskyFactor | SpectralFactor

CLEAR = 1e-7
"""Eigenvalues above this, relative to the largest, are known to many digits."""
_LIKE_SCALES = 2.0**16
"""Mean squares of features within this factor of each other need no equilibration."""


@dataclass(frozen=True)
class BlockSolution:
    """Coefficients of a block, and what its samples determine."""

    coefficients: Floats
    """(d_out, p)."""
    squared_error: float
    """Sum of squares of Y - H C'."""
    steps: tuple[float, ...]
    """Relative sizes of the corrections that refinement took."""
    solved: Factor
    """H'H + alpha I."""


def factorise_block(H: Floats) -> Factor:
    """H'H, by the first of the three ways that is safe."""
    return _solve(H, np.zeros((len(H), 0)), 0.0)[1]


def solve_block(H: Floats, Y: Floats, alpha: float) -> BlockSolution:
    """Best coefficients, of least norm."""
    wanted = Y.any(axis=0)  # outputs that are always zero have zero coefficients
    x, factor = _solve(H, Y[:, wanted], alpha)
    steps: tuple[float, ...] = ()
    if factor.name != "qr":

        def correction(x: Floats) -> Floats:
            return factor.solve(H.T @ (Y[:, wanted] - H @ x) - alpha * x)

        x, steps = refine(x, correction)
    error = float(((Y[:, wanted] - H @ x) ** 2).sum())
    coefficients = np.zeros((Y.shape[1], H.shape[1]))
    coefficients[wanted] = x.T
    return BlockSolution(coefficients, error, steps, factor)


def _solve(H: Floats, Y: Floats, alpha: float) -> tuple[Floats, Factor]:
    """C' (p, d_out) before refinement, and the factorisation it comes from."""
    n, p = H.shape
    if n >= p or alpha > 0:
        gram = H.T @ H
        add_to_diagonal(gram, alpha)
        factor: Factor | str | None = try_cholesky(gram.copy(), n)
        if isinstance(factor, str):
            factor = _clear_range(H, gram, n) if alpha == 0 else None
        if factor is not None:
            return factor.solve(H.T @ Y), factor
    diagonal = (H**2).sum(axis=0) + alpha
    C, spectral = solve_rows(_pieces(H, Y), n, alpha, diagonal, Y.shape[1])
    return C.T, spectral


def _pieces(H: Floats, Y: Floats) -> Iterator[Floats]:
    """Rows [H Y], twice as many at a time as there are columns."""
    step = max(1, 2 * (H.shape[1] + Y.shape[1]))
    for first in range(0, len(H), step):
        rows = slice(first, first + step)
        yield np.concatenate([H[rows], Y[rows]], axis=1)


def _clear_range(H: Floats, gram: Floats, n: int) -> SpectralFactor | None:
    """Eigenvectors of H'H, overwritten, or None where they leave doubt what its range is."""
    p = len(gram)
    diagonal = gram.diagonal()
    if not diagonal.max() <= _LIKE_SCALES * diagonal.min():
        return None
    values, vectors, scale = eigenpairs(gram, scaled=False)
    level = rounding_level(p, n)
    rank = int((values > CLEAR * values[-1]).sum())
    if not values[p - rank - 1] <= MARGIN * level * values[-1]:
        return None
    kept, null = vectors[:, p - rank :], vectors[:, : p - rank]
    allowed = MARGIN * max(n, p) * EPS * float(np.sqrt(values[-1]))
    left = H @ null
    if np.linalg.norm(left) > allowed:  # rounding tilts null vectors by eps over the gap; undo that
        null = null - kept @ ((kept.T @ (H.T @ left)) / values[p - rank :, None])
        left = H @ null
        if np.linalg.norm(left) > allowed:
            return None
    return SpectralFactor(values, kept, scale, None, None, level, MARGIN * level)
