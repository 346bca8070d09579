"""A positive semidefinite matrix, taken apart so that it can be divided by.

With D the inverse square roots of its diagonal, Cholesky of D G D gives the inverse of G where that
is well conditioned. Otherwise an eigendecomposition leaves out the directions that cannot be told
from zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...arrays.types import Floats
from ...linalg.factors import EPS


@dataclass(frozen=True, eq=False)
class HalfInverse:
    """A symmetric positive semidefinite matrix, taken apart so that it can be divided by."""

    half: Floats
    """F (p, rank), for which F F' is a generalised inverse: the inverse where there is one."""
    null: Floats
    """Orthonormal basis of the null space, (p, p - rank)."""
    condition: float
    """Condition number with a unit diagonal; infinite where the matrix is singular to rounding."""
    triangular: bool = False
    """Whether F is zero below its diagonal."""

    @property
    def rank(self) -> int:
        """Number of directions that can be told from zero."""
        return int(self.half.shape[1])

    def solve(self, right: Floats) -> Floats:
        """The generalised inverse times the right-hand side."""
        return np.asarray(self.half @ (self.half.T @ right))


def zero_eigenvalue(p: int) -> float:
    """Eigenvalue of a p x p Gram matrix, relative to the largest, that cannot be told from zero."""
    return 100 * p * EPS


def half_inverse(gram: Floats) -> HalfInverse:
    """Take a Gram matrix (p, p) apart, in units in which its diagonal is one."""
    p = len(gram)
    norms = np.sqrt(np.diag(gram))
    scale = np.divide(1.0, norms, out=np.zeros(p), where=norms > 0)
    unit = gram * np.outer(scale, scale)
    try:
        inverse = np.linalg.inv(np.linalg.cholesky(unit))  # of the lower factor
    except np.linalg.LinAlgError:
        inverse = None
    if inverse is not None:
        condition = _norm(unit) * _norm(inverse.T @ inverse)
        if condition * zero_eigenvalue(p) < 1:
            return HalfInverse(scale[:, None] * inverse.T, np.zeros((p, 0)), condition)
    eigenvalues, vectors = np.linalg.eigh(unit)
    kept = eigenvalues > max(zero_eigenvalue(p) * eigenvalues[-1], 0.0)
    half = scale[:, None] * (vectors[:, kept] / np.sqrt(eigenvalues[kept]))
    # unit v = 0 means that gram is zero on scale v; a column of zeros is a null direction by itself
    directions = np.where(scale > 0, scale, 1.0)[:, None] * vectors[:, ~kept]
    null = np.linalg.qr(directions)[0] if directions.size else directions
    return HalfInverse(half, null, np.inf if directions.size else float(1 / eigenvalues[0]))


def _norm(matrix: Floats) -> float:
    """The 1-norm: the largest column sum of magnitudes."""
    return float(np.abs(matrix).sum(axis=0).max())
