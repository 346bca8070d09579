"""Cholesky factorisations of equilibrated matrices: made if safe, solved with, and their spectrum.

    A = D (Lambda + alpha I) D = L L'      x = D L'^-1 L^-1 D b     y = D^-1 L L' D^-1 x

On the host they run on our own kernels and threads (``csrc/core/triangular.*``), so that their bits
depend on sizes alone; without the compiled extension, LAPACK does the same on one thread. A factor
L is in C order, and what is above its diagonal is undefined. LAPACK reads it as the upper triangle
L' in Fortran order, without a copy. On a device, cuSOLVER does the work
(:mod:`linattn_fast.linalg.device_algebra`).

:mod:`linattn_fast.linalg.factors` says what is safe, and what the margin is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
from scipy.linalg import blas, eigvalsh, lapack
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

from ..arrays import compiled
from ..arrays.device import is_on_device, module_of, put, to_host
from ..arrays.types import Floats, Mask
from ..system.machine import get_num_threads
from . import device_algebra
from .factors import EPS, MARGIN, MOST_CONDITION, Factorisation, NotSafe

_ENTRIES_AT_ONCE = 1 << 20
"""Entries of a matrix whose sizes are summed together."""
_DENSE_UP_TO = 64
"""Rows of an operator up to which a dense eigendecomposition is faster than an iteration."""
_INVERSE_STEPS, _FORWARD_STEPS = 8, 4
"""Products, of eight vectors each, that the smallest and the largest eigenvalue are estimated with;
spectra of cubic features are dense below, and a few eigenvalues stand out above."""

_INTERVAL = 1e-11
"""Relative width of the intervals in which eigenvalues are found; equal ones may change places."""

Operator: TypeAlias = Callable[[Floats], Floats]
"""A linear map of vectors (p,)."""

Safe = TypeVar("Safe", bound=Factorisation)
"""Any one class of factorisation: a result has that of its argument."""

# --------------------------------------------------------------------------- triangles, on the host


def cholesky_in_place(matrix: Floats) -> tuple[Floats, int]:
    """Lower factor of a symmetric matrix (p, p) in C or Fortran order, which is overwritten.

    Returns the factor in C order, whose strict upper triangle is undefined, and the number, from 1
    on, of the first pivot that is not positive, or 0.
    """
    # A symmetric matrix is its transpose
    rows = np.ascontiguousarray(matrix.T if matrix.flags.f_contiguous else matrix)
    if compiled.MISSING is None:
        return rows, compiled.core.factor_cholesky(rows, get_num_threads())
    upper, failed = lapack.dpotrf(rows.T, lower=False, clean=False, overwrite_a=True)
    wrong = np.isnan(np.diagonal(upper))  # which OpenBLAS takes for positive
    return upper.T, int(failed) or (int(np.argmax(wrong)) + 1 if wrong.any() else 0)


def _upper(factor: Floats) -> Floats:
    """The factor L' in Fortran order, for LAPACK."""
    return np.ascontiguousarray(factor).T


def cholesky_solve(factor: Floats, b: Floats) -> Floats:
    """Solve L L' x = b for b (p, k)."""
    if compiled.MISSING is not None:
        return np.asarray(lapack.dpotrs(_upper(factor), b, lower=False)[0])
    L, rows, threads = _rows_of(factor, b)
    compiled.core.solve_triangular(L, rows, False, threads)
    compiled.core.solve_triangular(L, rows, True, threads)
    return rows.T


def solve_lower(factor: Floats, b: Floats) -> Floats:
    """Solve L x = b for b (p, k)."""
    if compiled.MISSING is not None:
        return np.asarray(lapack.dtrtrs(_upper(factor), b, lower=False, trans=1)[0])
    L, rows, threads = _rows_of(factor, b)
    compiled.core.solve_triangular(L, rows, False, threads)
    return rows.T


def _rows_of(factor: Floats, b: Floats) -> tuple[Floats, Floats, int]:
    """What our kernels take: L, a copy of b' (k, p) to overwrite, and the number of threads."""
    rows = np.array(b.T, dtype=np.float64, order="C")
    return np.ascontiguousarray(factor), rows, get_num_threads()


def cholesky_times(factor: Floats, x: Floats) -> Floats:
    """Multiply L L' with x (p,)."""
    upper = _upper(factor)
    y = blas.dtrmv(upper, x)
    return np.asarray(blas.dtrmv(upper, y, trans=True))


def reciprocal_condition(factor: Floats, norm: float) -> float:
    """Estimate 1 / (||A|| ||A^-1||) in the 1-norm, from L and the norm of A = L L'."""
    return float(lapack.dpocon(_upper(factor), norm, uplo="U")[0])


def factor_bytes(p: int) -> int:
    """Number of bytes that the factorisation works in, beside the matrix.

    The rows below a panel of columns are packed twice, as left and as right factor of a product;
    LAPACK needs nothing.
    """
    if compiled.MISSING is not None:
        return 0
    columns = compiled.core.cholesky_columns(min(p, sys.maxsize))
    return 8 * 2 * max(0, p - columns) * columns


# ------------------------------------------------------------------------------------ equilibration


def power_of_two_scale(diagonal: Floats) -> Floats:
    """Powers of two D with D^2 times the diagonal in [1/2, 2]; 1 where the diagonal is zero."""
    xp = module_of(diagonal)
    scale: Floats = xp.exp2(-xp.rint(xp.log2(xp.where(diagonal > 0, diagonal, 1.0)) / 2))
    return scale


def equilibrate(matrix: Floats, sizes: Floats | None = None) -> Floats:
    """Scale a symmetric matrix in place to a diagonal in [1/2, 2]; return D's diagonal.

    ``sizes``, (p,), stand in for the diagonal of the matrix where D is to be taken from them.
    """
    scale = power_of_two_scale(matrix.diagonal() if sizes is None else sizes)
    matrix *= scale
    matrix *= scale[:, None]
    return scale


class Equilibrated(NamedTuple):
    """A symmetric matrix that was scaled, A = D M D."""

    matrix: Floats
    """A, (p, p), in C order."""
    scale: Floats
    """The diagonal of D, (p,)."""
    norm: float
    """Largest column sum of absolute values of A."""


def equilibrated(matrix: Floats, sizes: Floats | None = None) -> Equilibrated:
    """Scale a matrix in place, as :func:`equilibrate` does."""
    scale = equilibrate(matrix, sizes)
    return Equilibrated(matrix, scale, _norm(matrix))


def add_to_diagonal(matrix: Floats, value: float) -> None:
    """Add a number to the diagonal of a square matrix in C order, in place."""
    diagonal = matrix.reshape(-1)[:: len(matrix) + 1]
    diagonal += value


def rounding_level(p: int, steps: int = 0) -> float:
    """Bound on what rounding has added to an eigenvalue of A, relative to the largest."""
    return (p + steps) * EPS


# -------------------------------------------------------------------------------- the factorisation


@dataclass(frozen=True)
class CholeskyFactor:
    """A = L L' on the host."""

    factor: Floats
    """The factor L, (p, p) in C order; undefined above its diagonal."""
    scale: Floats
    norm: float
    """Largest column sum of absolute values of A."""
    smallest: float
    level: float
    name: str = "cholesky"

    def get(self) -> CholeskyFactor:
        """Copy the factorisation to the host."""
        return self

    @property
    def margin(self) -> float:
        """The margin, MARGIN times the rounding level."""
        return MARGIN * self.level

    @property
    def rank(self) -> int:
        """The full rank: only matrices that have it are factorised."""
        return len(self.scale)

    @property
    def uncertain(self) -> bool:
        """Whether the rank is in doubt, which it never is."""
        return False

    @property
    def condition(self) -> float:
        """Condition number of A in the 1-norm, as LAPACK estimates it."""
        return 1 / self.smallest

    def solve(self, b: Floats) -> Floats:
        """Solve for b (p, k): x = D L'^-1 L^-1 D b."""
        units = self.scale[:, None]
        return units * cholesky_solve(self.factor, units * b)

    def multiply(self, x: Floats) -> Floats:
        """Multiply D^-1 L L' D^-1 with x (p,)."""
        return cholesky_times(self.factor, x / self.scale) / self.scale


@dataclass(frozen=True)
class DeviceCholeskyFactor(CholeskyFactor):
    """A = L L' on a CUDA device; zero above the diagonal of L."""

    def get(self) -> CholeskyFactor:
        """Copy the factorisation to the host."""
        L, scale = np.ascontiguousarray(to_host(self.factor)), to_host(self.scale)
        return CholeskyFactor(L, scale, self.norm, self.smallest, self.level, self.name)

    def solve(self, b: Floats) -> Floats:
        """Solve for b (p, k): x = D L'^-1 L^-1 D b."""
        units = self.scale[:, None]
        return units * device_algebra.cholesky_solve(self.factor, units * b)

    def multiply(self, x: Floats) -> Floats:
        """Multiply D^-1 L L' D^-1 with x (p,)."""
        return device_algebra.cholesky_times(self.factor, x / self.scale) / self.scale


def try_cholesky(
    matrix: Floats, steps: int = 0, sizes: Floats | None = None
) -> CholeskyFactor | NotSafe:
    """Factorise in place, or say why that is not safe; either way the matrix is overwritten."""
    return factor_if_safe(equilibrated(matrix, sizes), steps)


def factor_if_safe(A: Equilibrated, steps: int = 0) -> CholeskyFactor | NotSafe:
    """Factorise A in place, or say why that is not safe; either way it is overwritten."""
    matrix, scale, norm = A
    p, on_device = len(matrix), is_on_device(matrix)
    factor, failed = (device_algebra.cholesky if on_device else cholesky_in_place)(matrix)
    if failed:
        pivot = f" (pivot {failed} of {p})" if failed > 0 else ""
        return NotSafe(f"the Gram is singular to rounding{pivot}")
    estimate = device_algebra.reciprocal_condition if on_device else reciprocal_condition
    reciprocal = float(estimate(factor, norm))
    level = rounding_level(p, steps)
    if not reciprocal > MARGIN * level:
        return ill_conditioned(reciprocal)
    made = DeviceCholeskyFactor if on_device else CholeskyFactor
    return made(factor, scale, norm, reciprocal, level)


def _norm(matrix: Floats) -> float:
    """Largest column sum of absolute values, without a second matrix."""
    xp, step = module_of(matrix), max(1, _ENTRIES_AT_ONCE // len(matrix))
    parts = (matrix[first : first + step] for first in range(0, len(matrix), step))
    return float(max(xp.abs(rows).sum(axis=1).max() for rows in parts))


def ill_conditioned(reciprocal: float) -> NotSafe:
    """The value of an attempt whose reciprocal condition is not above the margin."""
    return NotSafe(f"the Gram is too ill-conditioned (about {1 / max(reciprocal, 1e-300):.1g})")


def safe_for_ridge(factor: Safe | NotSafe, alpha: float) -> Safe | NotSafe:
    """The factorisation, unless a ridge alone makes it possible: then the range is needed."""
    if isinstance(factor, NotSafe) or alpha == 0 or factor.condition <= MOST_CONDITION:
        return factor
    return NotSafe(f"the Gram with its ridge is ill-conditioned (about {factor.condition:.1g})")


# ------------------------------------------------------------------------------ extreme eigenvalues


def extreme_eigenvalues(factor: Factorisation) -> tuple[float, float]:
    """Smallest and largest eigenvalue of Lambda, from its factorisation of full rank."""
    p, place = factor.rank, factor.scale

    def divide(x: Floats) -> Floats:
        return factor.solve(x.reshape(p, 1))[:, 0]

    operators: list[Operator] = [divide, factor.multiply]
    if is_on_device(place):
        operators = [_from_host(apply, place) for apply in operators]
    with np.errstate(over="ignore", invalid="ignore"):  # 1 / lambda_min may be infinite
        largest_of_inverse, largest = (largest_eigenvalue(apply, p) for apply in operators)
    return 1 / largest_of_inverse, largest


def ritz_values(factor: CholeskyFactor) -> tuple[float, float] | None:
    """Estimates of the smallest and largest eigenvalue of D^-1 L L' D^-1, from within.

    They are those of projections on block Krylov spaces of a few products
    (``csrc/core/ritz.hpp``), or of all of few features. The smallest is within 1e-3 for some
    hundred features, as a rule; the largest within some per cent where many are close to it. None
    where these are not to be had.
    """
    L, scale = factor.factor, factor.scale
    if compiled.MISSING is not None or is_on_device(L):
        return None
    if len(scale) <= _DENSE_UP_TO:
        lower = np.where(_lower_triangle(len(L)), L, 0.0) / scale[:, None]
        found = _extremes(lower @ lower.T)
    else:
        inverse, forward = compiled.core.ritz_values(
            L, scale, _INVERSE_STEPS, _FORWARD_STEPS, get_num_threads()
        )
        found = 1 / inverse if inverse > 0 else 0.0, forward
    smallest, largest = found
    if not 0 < smallest <= largest * (1 + _INTERVAL) < np.inf:
        return None
    return smallest, max(smallest, largest)


def _extremes(matrix: Floats) -> tuple[float, float]:
    """Smallest and largest eigenvalue of a small symmetric matrix; NaN where it is not finite.

    The matrix, in C order, is overwritten.
    """
    _, diagonal, beside, _, _ = lapack.dsytrd(matrix.T, overwrite_a=True)
    return compiled.core.extreme_eigenvalues(diagonal, beside)


@lru_cache(maxsize=8)
def _lower_triangle(n: int) -> Mask:
    """Where a matrix (n, n) has its lower triangle."""
    return np.tri(n, dtype=bool)


def _from_host(apply: Operator, place: Floats) -> Operator:
    """An operator of a device as one for vectors of the host."""
    return lambda x: to_host(apply(put(x, place)))


def largest_eigenvalue(apply: Operator, p: int, *, tolerance: float = 1e-10) -> float:
    """Largest eigenvalue of a symmetric positive semidefinite operator on R^p, by Lanczos.

    The iteration approaches it from below; it stops at a relative change of about ``tolerance``. It
    starts from a fixed vector, so the result is the same every time. What overflows is infinite.
    """
    if p <= _DENSE_UP_TO:
        matrix = np.stack([apply(column) for column in np.eye(p)])
        if not np.isfinite(matrix).all():
            return float("inf")
        return float(eigvalsh(matrix / 2 + matrix.T / 2)[-1])  # the sum alone might overflow
    operator = LinearOperator((p, p), matvec=apply, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(p)
    try:
        values = eigsh(
            operator, k=1, which="LA", v0=start, tol=tolerance, return_eigenvectors=False
        )
        found = float(values[0])
    except ArpackError:  # hundreds of eigenvalues within the tolerance: any of them will do
        vector = start
        for _ in range(100):
            vector = apply(vector / np.linalg.norm(vector))
        found = float(np.linalg.norm(vector))
    return found if np.isfinite(found) else float("inf")
