"""Does the data determine the layer near the solution? Nullity, conditioning, standard errors.

To first order, data near the solution determines every direction of Theta on which H is positive,
and then W where B'B is. With sigma^2 the mean squared residual per degree of freedom,

    cov Theta = sigma^2 H^-1
    cov W     = sigma^2 ((B'B)^-1 (x) I + T H^-1 T'),      T = (B'B)^-1 C

H is a difference, J'J - C'(B'B)^-1 C, whose rounding error is relative to J'J: eigenvalues are
taken in units in which J'J has a unit diagonal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import eigh, lapack

from ..cholesky import cholesky_in_place
from ..tokens import Floats
from .examples import Examples, Group
from .normal_matrix import NormalMatrix, normal_matrix
from .quasi_newton import UNKNOWNS
from .reduced import Objective, Point
from .values import HalfInverse, zero_eigenvalue

_EQUATIONS_PER_UNKNOWN = 8
_ROUNDING = 1e-11
_NULL_SHARE = 1e-6
"""Share of a null direction in an unknown's axis above which it has no standard error."""


@dataclass(frozen=True, eq=False)
class Identifiability:
    """What the data says about the layer near the solution."""

    theta_nullity: int
    """Directions of Theta that H is zero on, to rounding."""
    theta_condition: float
    """Largest over smallest eigenvalue of H; infinite where it is singular."""
    value_nullity: int
    """Directions of each output's W that B'B is zero on."""
    value_condition: float
    """Condition of B'B with columns of unit norm."""
    unknowns: int
    """Entries of Theta and W."""
    equations: int
    """Training queries times outputs."""
    theta_errors: Floats
    """Standard errors of Theta, (m, d, d); infinite where it is not determined."""
    value_errors: Floats
    """Standard errors of W, (m, d, d_out)."""

    def in_units(self, token_size: float, target_size: float) -> Identifiability:
        """The same with standard errors for tokens and targets of other sizes."""
        return replace(
            self,
            theta_errors=self.theta_errors / token_size**2,
            value_errors=self.value_errors * (target_size / token_size),
        )


def identifiability(point: Point) -> Identifiability:
    """Look at H and B'B at a solution.

    Of a large layer only eight equations an unknown take part in H, which would take longer than
    the fit; that is enough for its rank. Standard errors are scaled to all of them.
    """
    examples = point.objective.examples
    m, d, d_out = *point.Theta.shape[:2], examples.d_out
    unknowns, equations = m * d * (d + d_out), examples.n_queries * d_out
    wanted = -(-_EQUATIONS_PER_UNKNOWN * unknowns // d_out)
    large = m * d * d > UNKNOWNS and examples.n_queries > wanted
    seen = point
    if large:
        some = Objective(_some(examples, wanted), compiled=point.objective.compiled)
        seen = some.at(point.Theta)
    normal = normal_matrix(seen)
    inverse = _inverse(normal)
    gram = point.known.gram
    freedom = max(1, equations - inverse.half.shape[1] - gram.rank * d_out)
    variance = float(np.sum(point.known.residual**2)) / freedom
    half = inverse.half * np.sqrt(seen.objective.examples.n_queries / examples.n_queries)
    return Identifiability(
        theta_nullity=inverse.null.shape[1],
        theta_condition=inverse.condition,
        value_nullity=m * d - gram.rank,
        value_condition=gram.condition,
        unknowns=unknowns,
        equations=equations,
        theta_errors=_theta_errors(half, inverse.null, variance).reshape(m, d, d),
        value_errors=_value_errors(seen, gram, normal.cross, half, variance),
    )


def _some(examples: Examples, queries: int) -> Examples:
    """The same share of every group, of about so many queries in all."""
    share = queries / examples.n_queries
    groups = []
    for group in examples.groups:
        n = max(1, min(len(group.x), round(share * len(group.x))))
        assert group.y is not None
        groups.append(Group(group.x[:n], group.rows[:n], group.y[:n]))
    return Examples(tuple(groups))


def _inverse(normal: NormalMatrix) -> HalfInverse:
    """H taken apart, in units in which J'J has a unit diagonal: by Cholesky where it is large."""
    sizes = np.sqrt(np.maximum(normal.diagonal, 0))
    # A head whose W is zero to rounding has derivatives that are rounding errors, not small numbers
    known = sizes > _ROUNDING * sizes.max(initial=0.0)
    scale = np.divide(1.0, sizes, out=np.zeros_like(sizes), where=known)
    unit = normal.H * scale[:, None]
    unit *= scale
    n = len(unit)
    if n > UNKNOWNS:
        norm = float(np.abs(unit).sum(axis=0).max())
        factor, failed = cholesky_in_place(np.array(unit, order="F"))
        reciprocal = 0.0 if failed else lapack.dpocon(factor, norm, uplo="L")[0]
        if reciprocal > zero_eigenvalue(n):
            inverse, _ = lapack.dtrtri(np.tril(factor), lower=1, overwrite_c=1)
            return HalfInverse(scale[:, None] * inverse.T, np.zeros((n, 0)), float(1 / reciprocal))
    eigenvalues, vectors = eigh(unit, overwrite_a=True, check_finite=False)
    kept = eigenvalues > zero_eigenvalue(n) * max(eigenvalues[-1], 0.0)
    condition = float(eigenvalues[-1] / eigenvalues[0]) if kept.all() else np.inf
    half = scale[:, None] * (vectors[:, kept] / np.sqrt(eigenvalues[kept]))
    return HalfInverse(half, vectors[:, ~kept], condition)


def _theta_errors(half: Floats, null: Floats, variance: float) -> Floats:
    errors = np.sqrt(variance * np.sum(half**2, axis=1))
    errors[np.sum(null**2, axis=1) > _NULL_SHARE] = np.inf
    return np.asarray(errors)


def _value_errors(
    seen: Point, gram: HalfInverse, cross: Floats, half: Floats, variance: float
) -> Floats:
    """Of W itself, and through the errors of Theta: T H^-1 T' with T = (B'B)^-1 C."""
    m, d, d_out = seen.W.shape
    T = seen.known.gram.solve(cross.reshape(m * d, -1)).reshape(m * d * d_out, -1)
    through = np.sum((T @ half) ** 2, axis=1).reshape(m * d, d_out)
    errors = np.sqrt(variance * (np.sum(gram.half**2, axis=1)[:, None] + through))
    errors[np.sum(gram.null**2, axis=1) > _NULL_SHARE] = np.inf
    return np.asarray(errors.reshape(m, d, d_out))
