"""Does the data determine the layer near the solution? Nullity, conditioning, standard errors.

To first order, the data determines every direction of Theta near the solution on which H is
positive, and then every direction of W on which B'B is. With sigma^2 the mean squared residual per
degree of freedom,

    cov Theta = sigma^2 H^-1
    cov W     = sigma^2 ((B'B)^-1 (x) I + T H^-1 T'),      T = (B'B)^-1 C

H is a difference, J'J - C'(B'B)^-1 C, whose rounding error is relative to J'J: eigenvalues are
taken in units in which J'J has a unit diagonal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import eigh

from ...arrays.types import Floats
from ...linalg.host_algebra import cholesky, reciprocal_condition, solve_lower
from ..descent.half_inverse import HalfInverse, zero_eigenvalue
from ..descent.normal_matrix import NormalMatrix, normal_matrix
from ..descent.objective import Objective, Point
from ..descent.quasi_newton import LARGE_THETA
from ..examples.groups import Examples
from ..examples.units import Units

_EQUATIONS_PER_UNKNOWN = 8
"""Equations an unknown that take part in H where the layer is large."""
_NO_DERIVATIVE = 1e-11
"""Share of the largest derivative below which one belongs to a head whose W is zero."""
_COLUMNS_AT_ONCE = 1024
"""Number of columns of H^-1/2 that are multiplied at a time."""
_NULL_SHARE = 1e-6
"""Share of a null direction in an unknown's axis above which it has no standard error."""
_UNCERTAIN = 0.5
"""Standard error of a head, relative to the head, above which its numbers are not known."""


@dataclass(frozen=True, eq=False)
class Identifiability:
    """What the data says about the layer near the solution."""

    theta_nullity: int
    """Number of directions of Theta on which H is zero, to rounding."""
    theta_condition: float
    """Condition number of H: its largest over its smallest eigenvalue, infinite where singular."""
    value_nullity: int
    """Number of directions of each output's W on which B'B is zero."""
    value_condition: float
    """Condition number of B'B with columns of unit norm."""
    unknowns: int
    """Number of entries of Theta and W."""
    equations: int
    """Number of training queries times outputs."""
    theta_errors: Floats
    """Standard errors of Theta, (m, d, d); infinite where it is not determined, and everywhere
    without more equations than unknowns."""
    value_errors: Floats
    """Standard errors of W, (m, d, d_out)."""

    def in_units(self, units: Units) -> Identifiability:
        """Give the standard errors for tokens and targets as they were given."""
        return replace(
            self,
            theta_errors=units.theta_out(self.theta_errors),
            value_errors=units.values_out(self.value_errors),
        )

    def uncertain_heads(self, Theta: Floats, W: Floats) -> tuple[int, ...]:
        """Heads whose standard errors together are above half of Theta_i or W_i, but finite.

        Theta_i is for tokens of unit size, and counts as 1 where it is less: a head with logits of
        a tenth that are known to a tenth is not uncertain, since it attends to all tokens alike.

        Parameters
        ----------
        Theta, W
            The layer, (m, d, d) and (m, d, d_out).

        Returns
        -------
        tuple of int
            Numbers of the uncertain heads.
        """
        theta = _head_norms(self.theta_errors) / np.maximum(_head_norms(Theta), 1.0)
        sizes = np.maximum(_head_norms(W), np.finfo(np.float64).tiny)
        values = _head_norms(self.value_errors) / sizes
        largest = np.maximum(theta, values)
        return tuple(map(int, np.flatnonzero((largest > _UNCERTAIN) & np.isfinite(largest))))


def _head_norms(heads: Floats) -> Floats:
    """Frobenius norms (m,) of heads (m, d, ..)."""
    return np.asarray(np.linalg.norm(heads, axis=(1, 2)))


def evidence_bytes(m: int, d: int, d_out: int) -> int:
    """Bytes that :func:`identifiability` needs at most: for H, C and what is made of them."""
    n = m * d * d
    return 8 * n * (7 * n + 4 * m * d * d_out)


def identifiability(point: Point) -> Identifiability:
    """Look at H and B'B at a solution.

    For a large layer only eight equations an unknown take part in H, because all of them would
    take longer than the fit; that is enough for its rank. Standard errors are scaled to all.
    """
    examples = point.objective.examples
    m, d, d_out = *point.Theta.shape[:2], examples.d_out
    unknowns, equations = m * d * (d + d_out), examples.n_queries * d_out
    wanted = -(-_EQUATIONS_PER_UNKNOWN * unknowns // d_out)
    large = m * d * d > LARGE_THETA and examples.n_queries > wanted
    seen = point
    if large:
        some = Objective(_some(examples, wanted), compiled=point.objective.compiled)
        seen = some.at(point.Theta)
    normal = normal_matrix(seen)
    inverse = _inverse(normal)
    gram = point.known.gram
    # Without spare equations the residuals say nothing about the noise
    freedom = equations - inverse.rank - gram.rank * d_out
    variance = float(np.sum(point.known.residual**2)) / freedom if freedom > 0 else np.inf
    share = seen.objective.examples.n_queries / examples.n_queries
    inverse = replace(inverse, half=inverse.half * np.sqrt(share))
    return Identifiability(
        theta_nullity=inverse.null.shape[1],
        theta_condition=inverse.condition,
        value_nullity=m * d - gram.rank,
        value_condition=gram.condition,
        unknowns=unknowns,
        equations=equations,
        theta_errors=_theta_errors(inverse, variance).reshape(m, d, d),
        value_errors=_value_errors(seen, gram, normal.cross, inverse, variance),
    )


def _some(examples: Examples, queries: int) -> Examples:
    """About so many queries in all: the same share of every group, evenly spread over it."""
    share = queries / examples.n_queries
    groups = []
    for group in examples.groups:
        n = max(1, min(len(group.x), round(share * len(group.x))))
        groups.append(group.chosen(np.arange(n) * len(group.x) // n))
    return Examples(tuple(groups))


def _inverse(normal: NormalMatrix) -> HalfInverse:
    """H taken apart in units in which J'J has a unit diagonal; by Cholesky where it is large."""
    sizes = np.sqrt(np.maximum(normal.diagonal, 0))
    # A head whose W is zero to rounding has derivatives that are rounding errors, not small numbers
    known = sizes > _NO_DERIVATIVE * sizes.max(initial=0.0)
    scale = np.divide(1.0, sizes, out=np.zeros_like(sizes), where=known)
    unit = normal.H * scale[:, None]
    unit *= scale
    n = len(unit)
    if n > LARGE_THETA:
        norm = float(np.abs(unit).sum(axis=0).max())
        factor, failed = cholesky(unit.copy())
        reciprocal = 0.0 if failed else reciprocal_condition(factor, norm)
        if reciprocal > zero_eigenvalue(n):
            half = scale[:, None] * solve_lower(factor, np.eye(n)).T
            return HalfInverse(half, np.zeros((n, 0)), float(1 / reciprocal), triangular=True)
    eigenvalues, vectors = eigh(unit, overwrite_a=True, check_finite=False)
    kept = eigenvalues > zero_eigenvalue(n) * max(eigenvalues[-1], 0.0)
    condition = float(eigenvalues[-1] / eigenvalues[0]) if kept.all() else np.inf
    half = scale[:, None] * (vectors[:, kept] / np.sqrt(eigenvalues[kept]))
    return HalfInverse(half, vectors[:, ~kept], condition)


def _theta_errors(inverse: HalfInverse, variance: float) -> Floats:
    """Standard errors of Theta (m d d,), infinite for entries with a share in a null direction."""
    errors = _root_of(variance, np.sum(inverse.half**2, axis=1))
    errors[np.sum(inverse.null**2, axis=1) > _NULL_SHARE] = np.inf
    return errors


def _root_of(variance: float, factors: Floats) -> Floats:
    """Roots of variance times factors, all infinite if the variance is."""
    if variance == np.inf:
        return np.full(factors.shape, np.inf)
    return np.asarray(np.sqrt(variance * factors))


def _value_errors(
    seen: Point, gram: HalfInverse, cross: Floats, inverse: HalfInverse, variance: float
) -> Floats:
    """Standard errors of W: its own, and those through Theta, T H^-1 T' with T = (B'B)^-1 C."""
    m, d, d_out = seen.W.shape
    T = seen.known.gram.solve(cross.reshape(m * d, -1)).reshape(m * d * d_out, -1)
    through = _row_squares(T, inverse).reshape(m * d, d_out)
    errors = _root_of(variance, np.sum(gram.half**2, axis=1)[:, None] + through)
    errors[np.sum(gram.null**2, axis=1) > _NULL_SHARE] = np.inf
    return errors.reshape(m, d, d_out)


def _row_squares(T: Floats, inverse: HalfInverse) -> Floats:
    """Diagonal of T F F' T', one number a row of T, computed some columns of F at a time."""
    total = np.zeros(len(T))
    for first in range(0, inverse.rank, _COLUMNS_AT_ONCE):
        last = min(first + _COLUMNS_AT_ONCE, inverse.rank)
        rows = last if inverse.triangular else len(inverse.half)  # the rows below are zero
        total += np.sum((T[:, :rows] @ inverse.half[:rows, first:last]) ** 2, axis=1)
    return total
