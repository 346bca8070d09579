"""Positive definite systems on the threads of the compiled core.

The threads of a BLAS wait for each other, and for the next call, by keeping their processors busy.
Where these have other work, a factorisation of a few hundred rows takes many times as long as its
flops, and a descent makes hundreds of them. So matrices of that size are factorised here, in
blocks of columns, with the core's own matrix product; large ones are left to LAPACK.

    L_j = (A_j - L_<j L_j,<j') L_jj^-T        block column j, L_jj L_jj' its diagonal block
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from ..backend import cpu
from ..tokens import Floats

_BLOCK = 48
_LARGE = 600
"""Rows from which on LAPACK's rate matters more."""


def squared(rows: Floats, *, compiled: bool) -> Floats:
    """R'R of rows R (r, n)."""
    if not compiled or rows.shape[1] >= _LARGE:
        return np.asarray(rows.T @ rows)
    columns = np.ascontiguousarray(rows.T)
    return cpu.multiply_transposed(columns, columns)


def solve_definite(matrix: Floats, right: Floats, *, compiled: bool) -> Floats | None:
    """Solution for one right-hand side; None where the matrix is not positive definite.

    The matrix (n, n) is overwritten.
    """
    try:
        if not compiled or len(matrix) >= _LARGE:
            factor = cho_factor(matrix, lower=True, overwrite_a=True, check_finite=False)
            return np.asarray(cho_solve(factor, right, check_finite=False))
        return _solve_in_blocks(matrix, right)
    except np.linalg.LinAlgError:  # SciPy's is the same
        return None


def _solve_in_blocks(A: Floats, right: Floats) -> Floats:
    """Cholesky of A in place, block column by block column, and both substitutions."""
    n, multiply = len(A), cpu.multiply_transposed
    blocks = [slice(first, min(first + _BLOCK, n)) for first in range(0, n, _BLOCK)]
    inverses = []
    x = right.copy()
    for block in blocks:
        first, last = block.start, block.stop
        column = A[first:, block]
        if first:
            done = np.ascontiguousarray(A[first:, :first])
            column -= multiply(done, done[: last - first])
        inverse = np.linalg.inv(np.linalg.cholesky(column[: last - first]))
        inverses.append(inverse)
        x[block] = inverse @ (x[block] - A[block, :first] @ x[:first])
        if last < n:
            below = np.ascontiguousarray(column[last - first :])
            A[last:, block] = multiply(below, inverse)
    for block, inverse in zip(reversed(blocks), reversed(inverses), strict=True):
        x[block] = inverse.T @ (x[block] - A[block.stop :, block].T @ x[block.stop :])
    return x
