"""Cholesky factorisation in place, of any size.

LAPACK's dpotrf, as OpenBLAS parallelises it in some of SciPy's wheels, writes past its work space
and ends the process for matrices of about 17,000 rows. So it only ever sees blocks:

    [ A11  .  ]   [ L11   .  ]       L21 = A21 L11'^-1
    [ A21 A22 ] = [ L21  L22 ] ..    A22 -= L21 L21'
"""

from __future__ import annotations

from scipy.linalg import blas, lapack

from .tokens import Floats

_WHOLE_UP_TO = 4096
_BLOCK = 2048


def cholesky_in_place(matrix: Floats) -> tuple[Floats, int]:
    """Lower factor of a symmetric matrix (p, p) in Fortran order, which is overwritten.

    Returns the factor, whose strict upper triangle is undefined, and LAPACK's number of the first
    pivot that is not positive, or 0.
    """
    p = len(matrix)
    if p <= _WHOLE_UP_TO:
        factor, failed = lapack.dpotrf(matrix, lower=True, clean=False, overwrite_a=True)
        return factor, int(failed)
    for k in range(0, p, _BLOCK):
        end = min(k + _BLOCK, p)
        corner, failed = lapack.dpotrf(matrix[k:end, k:end], lower=True, clean=False)
        if failed:
            return matrix, k + int(failed)
        matrix[k:end, k:end] = corner
        if end == p:
            break
        panel = blas.dtrsm(1.0, corner, matrix[end:, k:end], side=1, lower=1, trans_a=1)
        matrix[end:, k:end] = panel
        for j in range(end, p, _BLOCK):
            last = min(j + _BLOCK, p)
            # Transposed on both sides: the product comes in C order, the matrix is in Fortran's
            matrix[j:, j:last].T[...] -= panel[j - end : last - end] @ panel[j - end :].T
    return matrix, 0


def factor_bytes(p: int) -> int:
    """Bytes that the factorisation works in, beside the matrix."""
    return 0 if p <= _WHOLE_UP_TO else 8 * 2 * p * _BLOCK
