"""Dense linear algebra on the host.

Products, Cholesky factorisations and systems with them run on our own kernels where they are large
(:mod:`linattn_fast.linalg.cholesky`), the rest is SciPy's LAPACK, on one thread of BLAS
(:mod:`linattn_fast.system.machine`). :mod:`linattn_fast.linalg.device_algebra` has the same
functions for CuPy arrays.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import blas, eigh, lapack
from scipy.linalg import eigvalsh as _eigvalsh
from scipy.linalg import svd as _svd

from ..arrays import compiled
from ..arrays.types import Floats
from .cholesky import cholesky_in_place as cholesky
from .cholesky import cholesky_solve, cholesky_times, reciprocal_condition, solve_lower

__all__ = [
    "cholesky",
    "cholesky_solve",
    "cholesky_times",
    "complement_of",
    "eigenpairs",
    "eigenvalues",
    "multiply_transposed",
    "product",
    "reciprocal_condition",
    "solve_lower",
    "svd",
    "triangle_of",
]

_NARROW = 256
"""Columns up to which a matrix is factorised in narrow panels."""
_LARGE = 1 << 22
"""Multiply-adds of a product from which our own threads are worth starting."""


def product(a: Floats, b: Floats) -> Floats:
    """The product a b, in Fortran order."""
    if 0 in (*a.shape, *b.shape):
        return np.zeros((len(a), b.shape[1]), order="F")
    if compiled.MISSING is None and a.size * b.shape[1] >= _LARGE:
        # Transposed: the product of the core has rows side by side
        return compiled.multiply_transposed(np.ascontiguousarray(b.T), np.ascontiguousarray(a)).T
    # SciPy's BLAS and not numpy's, which is another copy of it with threads of its own
    (left, flip_left), (right, flip_right) = (
        (x, False) if x.flags.f_contiguous else (x.T, True) for x in (a, b)
    )
    return np.asarray(blas.dgemm(1.0, left, right, trans_a=flip_left, trans_b=flip_right))


def multiply_transposed(a: Floats, b: Floats) -> Floats:
    """The product a b', (n, m), of a (n, k) and b (m, k)."""
    if compiled.MISSING is None and a.size * len(b) >= _LARGE:
        return compiled.multiply_transposed(np.ascontiguousarray(a), np.ascontiguousarray(b))
    return np.asarray(a @ b.T)


def eigenpairs(matrix: Floats) -> tuple[Floats, Floats]:
    """Eigenvalues, ascending, and eigenvectors of a symmetric matrix, which is overwritten."""
    values, vectors = eigh(matrix.T, overwrite_a=True, check_finite=False, driver="evd")
    return values, vectors


def eigenvalues(matrix: Floats) -> Floats:
    """Eigenvalues of a symmetric matrix, ascending."""
    return np.asarray(_eigvalsh(matrix, check_finite=False), np.float64)


def _reflections(matrix: Floats) -> tuple[Floats, Floats]:
    """A QR factorisation: Householder vectors with R above them, and their triangular factors.

    LAPACK's ``dgeqrt`` is recursive, so its panels are products too; ``dgeqrf`` goes column by
    column.
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
    """The thin SVD of a matrix: U, sigma and V'."""
    U, sigma, Vt = _svd(matrix, full_matrices=False, check_finite=False)
    return U, sigma, Vt
