"""Cholesky factorisation in place, and systems with its factor, of any size.

Both run on our own kernels and threads (``csrc/core/triangular.*``), so that their bits depend on
sizes alone; without the compiled extension, LAPACK does the same on one thread. A factor L is in C
order, and what is above its diagonal is undefined. LAPACK reads it as the upper triangle L' in
Fortran order, without a copy.
"""

from __future__ import annotations

import sys

import numpy as np
from scipy.linalg import lapack

from ..arrays import compiled
from ..arrays.types import Floats

_MANY = 16
"""Right-hand sides from which on products pay; with fewer a solve is one reading of L."""


def cholesky_in_place(matrix: Floats) -> tuple[Floats, int]:
    """Lower factor of a symmetric matrix (p, p) in C or Fortran order, which is overwritten.

    Returns the factor in C order, whose strict upper triangle is undefined, and the number, from 1
    on, of the first pivot that is not positive, or 0.
    """
    # A symmetric matrix is its transpose
    rows = np.ascontiguousarray(matrix.T if matrix.flags.f_contiguous else matrix)
    if compiled.MISSING is None:
        return rows, compiled.factor_cholesky(rows)
    upper, failed = lapack.dpotrf(rows.T, lower=False, clean=False, overwrite_a=True)
    wrong = np.isnan(np.diagonal(upper))  # which OpenBLAS takes for positive
    return upper.T, int(failed) or (int(np.argmax(wrong)) + 1 if wrong.any() else 0)


def upper_factor(factor: Floats) -> Floats:
    """L' in Fortran order, for LAPACK."""
    return np.ascontiguousarray(factor).T


def cholesky_solve(factor: Floats, b: Floats) -> Floats:
    """x with L L' x = b (p, k)."""
    if not _compiled(b):
        return np.asarray(lapack.dpotrs(upper_factor(factor), b, lower=False)[0])
    L, rows = np.ascontiguousarray(factor), np.array(b.T, dtype=np.float64, order="C")
    compiled.solve_triangular(L, rows)
    compiled.solve_triangular(L, rows, transposed=True)
    return rows.T


def solve_lower(factor: Floats, b: Floats) -> Floats:
    """x with L x = b (p, k)."""
    if not _compiled(b):
        return np.asarray(lapack.dtrtrs(upper_factor(factor), b, lower=False, trans=1)[0])
    rows = np.array(b.T, dtype=np.float64, order="C")
    compiled.solve_triangular(np.ascontiguousarray(factor), rows)
    return rows.T


def _compiled(b: Floats) -> bool:
    return compiled.MISSING is None and b.ndim == 2 and b.shape[1] >= _MANY


def factor_bytes(p: int) -> int:
    """Bytes that the factorisation works in, beside the matrix.

    The rows below a block of columns, packed twice, as left and as right factor of a product;
    LAPACK needs nothing.
    """
    if compiled.MISSING is not None:
        return 0
    columns = compiled.core.cholesky_columns(min(p, sys.maxsize))
    return 8 * 2 * max(0, p - columns) * columns
