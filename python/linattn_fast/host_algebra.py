"""Dense factorisations on the host, by SciPy's LAPACK.

:mod:`linattn_fast.device_algebra` has the same functions for CuPy arrays.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import blas, eigh, lapack
from scipy.linalg import eigvalsh as _eigvalsh
from scipy.linalg import solve_triangular as _solve_triangular
from scipy.linalg import svd as _svd

from .cholesky import cholesky_in_place
from .tokens import Floats

_NARROW = 256
"""Columns of a matrix that is factorised in narrow panels."""


def product(a: Floats, b: Floats) -> Floats:
    """a @ b by SciPy's BLAS, in Fortran order.

    numpy's BLAS has threads of its own, which spin for a while after a product; between many small
    factorisations by SciPy's LAPACK they make those several times as slow.
    """
    if 0 in (*a.shape, *b.shape):
        return np.zeros((len(a), b.shape[1]), order="F")
    (left, flip_left), (right, flip_right) = (
        (x, False) if x.flags.f_contiguous else (x.T, True) for x in (a, b)
    )
    return np.asarray(blas.dgemm(1.0, left, right, trans_a=flip_left, trans_b=flip_right))


def cholesky(matrix: Floats) -> tuple[Floats, int]:
    """Lower factor L of a symmetric matrix in C order, overwritten; the first pivot that fails.

    The strict upper triangle of L is undefined. 0 where no pivot fails.
    """
    # The transpose of a C-ordered symmetric matrix is itself, in the order LAPACK wants.
    return cholesky_in_place(matrix.T)


def reciprocal_condition(factor: Floats, norm: float) -> float:
    """Estimate 1 / (||A|| ||A^-1||) in the 1-norm, from L and the norm of A = L L'."""
    return float(lapack.dpocon(factor, norm, uplo="L")[0])


def cholesky_solve(factor: Floats, b: Floats) -> Floats:
    """x with L L' x = b (p, k)."""
    return np.asarray(lapack.dpotrs(factor, b, lower=True)[0])


def cholesky_times(factor: Floats, x: Floats) -> Floats:
    """L L' x for x (p,)."""
    y = blas.dtrmv(factor, x, lower=True, trans=True)
    return np.asarray(blas.dtrmv(factor, y, lower=True))


def solve_lower(factor: Floats, b: Floats) -> Floats:
    """x with L x = b (p, k)."""
    return np.asarray(_solve_triangular(factor, b, lower=True, check_finite=False))


def eigenpairs(matrix: Floats) -> tuple[Floats, Floats]:
    """Eigenvalues, ascending, and eigenvectors of a symmetric matrix, overwritten."""
    values, vectors = eigh(matrix.T, overwrite_a=True, check_finite=False, driver="evd")
    return values, vectors


def eigenvalues(matrix: Floats) -> Floats:
    """Eigenvalues of a symmetric matrix, ascending."""
    return np.asarray(_eigvalsh(matrix, check_finite=False), np.float64)


def _reflections(matrix: Floats) -> tuple[Floats, Floats]:
    """Householder vectors with R above them, and their triangular factors, of a QR factorisation.

    LAPACK's recursive way: of a few hundred columns its panels are products too small for threads,
    where ``dgeqrf`` starts its threads twice a column, which takes far longer on busy machines.
    """
    panel = min(8 if matrix.shape[1] <= _NARROW else 32, *matrix.shape)
    factored, factors, _ = lapack.dgeqrt(panel, np.array(matrix, order="F"), overwrite_a=True)
    return factored, factors


def triangle_of(stacked: Floats) -> Floats:
    """R of the QR factorisation of a tall or wide matrix, square in its columns."""
    columns = stacked.shape[1]
    triangle = np.zeros((columns, columns))
    if stacked.size:
        rows = min(len(stacked), columns)
        triangle[:rows] = np.triu(_reflections(stacked)[0][:rows])
    return triangle


def complement_of(vectors: Floats) -> Floats:
    """Orthonormal basis (p, p - r) of what is orthogonal to independent columns (p, r)."""
    p, r = vectors.shape
    rest = np.zeros((p, p - r), order="F")
    rest[r:] = np.eye(p - r)
    if rest.size == 0 or r == 0:
        return rest
    return np.asarray(lapack.dgemqrt(*_reflections(vectors), rest, overwrite_c=True)[0])


def svd(matrix: Floats) -> tuple[Floats, Floats, Floats]:
    """U, sigma, V' of a matrix, without what belongs to no singular value."""
    U, sigma, Vt = _svd(matrix, full_matrices=False, check_finite=False)
    return U, sigma, Vt
