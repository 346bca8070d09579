"""Dense factorisations of CuPy arrays, by cuSOLVER and cuBLAS.

The functions of :mod:`linattn_fast.linalg.host_algebra`, for matrices on a device. What cuSOLVER
lacks, a QR factorisation with pivots, is left to the host (:mod:`linattn_fast.linalg.spectral`).
"""

from __future__ import annotations

import numpy as np

from ..arrays.device import cupy, cupyx
from ..arrays.types import Floats

_MOST_ROUNDS = 5
"""Rounds of the condition estimate, two solves each, as in LAPACK."""


def cholesky(matrix: Floats) -> tuple[Floats, int]:
    """Lower factor L of a symmetric matrix, zero above, and 0; or -1 where some pivot fails."""
    try:
        with cupyx().errstate(linalg="raise"):
            return cupy().linalg.cholesky(matrix), 0
    except np.linalg.LinAlgError:
        return matrix, -1


def reciprocal_condition(factor: Floats, norm: float) -> float:
    """Estimate 1 / (||A|| ||A^-1||) in the 1-norm, from L and the norm of A = L L'.

    Hager's ascent over unit vectors, and Higham's vector of alternating signs against the cases
    in which it ends too early: the method of LAPACK's ``dlacn2``, as LAPACK's ``dpocon`` uses it.
    """
    xp, p = cupy(), len(factor)
    x = xp.full((p, 1), 1 / p)
    largest, before = 0.0, -1
    for _ in range(_MOST_ROUNDS):
        y = cholesky_solve(factor, x)
        size = float(xp.abs(y).sum())
        if size <= largest:
            break
        largest = size
        slope = xp.abs(cholesky_solve(factor, xp.where(y < 0, -1.0, 1.0)))
        steepest = int(slope.argmax())
        if steepest == before:
            break
        before = steepest
        x = xp.zeros((p, 1))
        x[steepest] = 1.0
    signs = xp.where(xp.arange(p) % 2 == 0, 1.0, -1.0)[:, None]
    alternating = signs * xp.linspace(1.0, 2.0, p)[:, None]
    other = 2 * float(xp.abs(cholesky_solve(factor, alternating)).sum()) / (3 * p)
    return 1 / (norm * max(largest, other))


def multiply_transposed(a: Floats, b: Floats) -> Floats:
    """The product a b', (n, m), of a (n, k) and b (m, k)."""
    return a @ b.T


def cholesky_solve(factor: Floats, b: Floats) -> Floats:
    """Solve L L' x = b for b (p, k), which may be overwritten."""
    x: Floats = cupyx("lapack").potrs(factor, b, True)
    return x


def cholesky_times(factor: Floats, x: Floats) -> Floats:
    """Multiply L L' with x (p,)."""
    return factor @ (factor.T @ x)


def solve_lower(factor: Floats, b: Floats) -> Floats:
    """Solve L x = b for b (p, k)."""
    # cuBLAS stores columns first, so it reads L' without a copy.
    x: Floats = cupyx("scipy.linalg").solve_triangular(factor.T, b, trans="T", lower=False)
    return x


def eigenpairs(matrix: Floats) -> tuple[Floats, Floats]:
    """Eigenvalues, ascending, and eigenvectors of a symmetric matrix."""
    with cupyx().errstate(linalg="raise"):
        values, vectors = cupy().linalg.eigh(matrix)
    return values, vectors


def eigenvalues(matrix: Floats) -> Floats:
    """Eigenvalues of a symmetric matrix, ascending."""
    with cupyx().errstate(linalg="raise"):
        values: Floats = cupy().linalg.eigvalsh(matrix)
    return values


def triangle_of(stacked: Floats) -> Floats:
    """R of the QR factorisation of a tall or wide matrix, square in its columns."""
    xp, columns = cupy(), stacked.shape[1]
    found = xp.linalg.qr(stacked, mode="r")
    triangle: Floats = xp.zeros((columns, columns))
    triangle[: len(found)] = found
    return triangle


def svd(matrix: Floats) -> tuple[Floats, Floats, Floats]:
    """The thin SVD of a matrix: U, sigma and V'."""
    with cupyx().errstate(linalg="raise"):
        U, sigma, Vt = cupy().linalg.svd(matrix, full_matrices=False)
    return U, sigma, Vt
