"""What ranks say about the heads behind coefficients: how many at least, and often which.

Only T[a,j,k,l], the sum over heads of V[a,j] Q[k,l] symmetrised in (j,k), reaches the output. Two
contractions of it have a rank of at most the number of heads H, whatever the heads are:

    M(x)[a,l] = T x x = sum_h (V_h x) (Q_h' x)'             d_out x d     rank            <= H
    B(u,c)[j,k] = T u c = sum_h sym (V_h' u) (Q_h c)'       d x d         eigenvalues of
                                                                          either sign     <= H

For unit vectors a change of the coefficients by e moves singular values and eigenvalues by at most
e, so values above the tolerance count for every approximation within the tolerance. They are
computed with rounding of their own, which is added to the tolerance, and subtracted from what fewer
heads leave.

Where M(x) has rank H less than d_out, its columns span the V_h x, so V in the span of the V_h means

    (I - U U') V x = 0   for every x,    U = an orthonormal basis of the columns of M(x)

which is linear in V: enough points x leave, in general, nothing but that span
(:mod:`linattn_fast.heads.span`). Likewise for Q and the rows, where H is less than d. No search is
needed then.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from ..arrays.types import Floats
from ..features.compact import pair_table
from ..linalg.factors import EPS
from .bilinear import Budget, Descent, Metric, best_queries, best_values, descend
from .span import points_needed, span

TOLERANCE = 1e-9
"""Relative residual up to which coefficients count as reproduced."""
ROUNDING = 2e-15
"""Relative residual at which least squares stops."""
_POINTS = 16
"""Points at which the contractions are formed."""
_SEED = 2410
"""Seed of these points."""
_GAP = 0.1
"""Ratio of neighbouring singular values that random coefficients hardly ever have."""


class Ranks:
    """What ranks say about coefficients C (d_out, p), of a norm of about one.

    Parameters
    ----------
    C
        The coefficients, not all zero.
    d
        Coordinates of a token.
    tol
        Relative residual up to which they count as reproduced.
    """

    def __init__(self, C: Floats, d: int, tol: float) -> None:
        self.C, self.d = C, d
        self.metric = Metric.identity(d)
        self.size = float(np.linalg.norm(C))
        self.tolerance = max(tol, _reachable(len(C), d))
        """The tolerance asked for, but not below rounding."""
        self.threshold = self.tolerance * self.size
        # A sum of n products errs by n eps of the lengths of its factors, which are ||C|| and at
        # most one; an SVD or eigendecomposition by a few times its size, taken as ten
        terms = C.shape[1] // d + d + len(C)
        self.rounding = float((terms + 10 * (d + len(C))) * EPS * self.size)
        """Bound on the error of singular values of M(x) and eigenvalues of B(u,c)."""
        self.rank = self._rank_above(self.threshold)
        """Largest rank of M(x) over the points."""
        self.least = max(1, self.least_heads(self.threshold))
        """A number of heads that no approximation within the tolerance can do without."""

    @cached_property
    def singular_values(self) -> Floats:
        """Singular values of M(x) at each point, the largest first: (m, min(d_out, d))."""
        M = contract_pairs(self.C, _units(_POINTS, self.d))
        return np.asarray(np.linalg.svd(M, compute_uv=False))

    @cached_property
    def eigenvalues(self) -> Floats:
        """Eigenvalues of B(u,c) at each point, ascending: (m, d)."""
        u, c = _units(_POINTS, len(self.C)), _units(_POINTS, self.d)
        maps = self.C.reshape(len(self.C), -1, self.d)  # (a, pair, l)
        T = np.einsum("ma,aul,ml->mu", u, maps, c, optimize=True)
        return np.asarray(np.linalg.eigvalsh(T[:, self.metric.table] * _halves(self.d)))

    def least_heads(self, threshold: float) -> int:
        """A number of heads that no approximation within the threshold can do without."""
        above = threshold + self.rounding
        signs = [(self.eigenvalues > above).sum(axis=1), (self.eigenvalues < -above).sum(axis=1)]
        return max(self._rank_above(above), int(np.max(signs)))

    def _rank_above(self, threshold: float) -> int:
        return int((self.singular_values > threshold).sum(axis=1).max())

    def before_gap(self) -> int | None:
        """Number of singular values of M(x) before the widest gap; None if no gap is wide."""
        typical = np.median(self.singular_values, axis=0)
        if len(typical) < 2:
            return None
        ratios = typical[1:] / np.maximum(typical[:-1], np.finfo(np.float64).tiny)
        widest = int(ratios.argmin())
        return widest + 1 if ratios[widest] < _GAP else None

    def residual_of_fewer(self, H: int) -> float:
        """Lower bound on what H heads leave of C, from the values after the first H.

        It is 0 where ranks do not tell, or rounding hides it.
        """
        values = self.eigenvalues
        signs = np.concatenate([np.sort(np.maximum(s, 0))[:, ::-1] for s in (values, -values)])
        rest = [
            np.sqrt((x[:, H:] ** 2).sum(axis=1)).max(initial=0.0)
            for x in (self.singular_values, signs)
        ]
        lost = float(np.sqrt(max(self.d, len(self.C)))) * self.rounding  # by d or d_out values
        return max(0.0, float(max(rest)) - lost)

    # ---------------------------------------------------------------------- heads by linear algebra

    def spans(self) -> Iterator[tuple[Floats, Floats]]:
        """Yield the heads that ranks give: as many as the rank of M(x) says."""
        V = self._span_of_values(self.rank)
        if V is not None:
            yield V, best_queries(V, self.C, self.metric)
        Q = self._span_of_queries(self.rank)
        if Q is not None:
            yield best_values(Q, self.C, self.metric), Q

    def _span_of_values(self, H: int) -> Floats | None:
        """V (H, d_out, d) from the columns of M(x); None where they say nothing."""
        if len(self.C) <= H or self.d < H:
            return None
        x = _units(points_needed(H, len(self.C), self.d), self.d)
        return span(contract_pairs(self.C, x), x, H)

    def _span_of_queries(self, H: int) -> Floats | None:
        """Q (H, d, d) from the rows of M(x); None where they say nothing."""
        if self.d <= H or len(self.C) < H:
            return None
        x = _units(points_needed(H, self.d, self.d), self.d)
        F = span(contract_pairs(self.C, x).transpose(0, 2, 1), x, H)  # F = Q'
        return None if F is None else np.ascontiguousarray(F.transpose(0, 2, 1))

    def nearest(self, V: Floats, Q: Floats, budget: Budget) -> Descent:
        """Least squares from heads (V, Q) to C, until rounding is all that is left."""
        return descend(V, Q, self.C, self.metric, budget, goal=ROUNDING * self.size)


def contract_pairs(C: Floats, x: Floats) -> Floats:
    """The matrices M(x), (m, d_out, d), for x (m, d)."""
    d = x.shape[1]
    j, k = np.triu_indices(d)
    products = x[:, j] * x[:, k]  # the coefficient of j < k is 2 T already
    return np.asarray(np.einsum("mu,aul->mal", products, C.reshape(len(C), -1, d), optimize=True))


def split_evenly(C: Floats, d: int) -> Floats:
    """T (d_out, d, d, d) of coefficients (d_out, p), half of each for (j,k) and half for (k,j)."""
    return np.asarray(C.reshape(len(C), -1, d)[:, pair_table(d)] * _halves(d)[:, :, None])


def _halves(d: int) -> Floats:
    """A matrix (d, d) with ones on the diagonal and halves elsewhere."""
    return np.where(np.eye(d, dtype=bool), 1.0, 0.5)


def svd_tolerance(d_out: int, d: int) -> float:
    """Relative size of the singular values that rounding leaves in an SVD of T."""
    return max(d_out * d, d * d) * EPS


def _reachable(d_out: int, d: int) -> float:
    """Relative residual that the heads of the SVD surely reach: no smaller tolerance makes sense.

    The SVD leaves out at most min(d_out d, d^2) values up to :func:`svd_tolerance`, and
    coefficients are sums of two entries of what it splits.
    """
    return float(np.sqrt(2 * min(d_out * d, d * d)) * svd_tolerance(d_out, d))


def _units(count: int, d: int) -> Floats:
    """Fixed points on the unit sphere, (count, d)."""
    x = np.random.default_rng(_SEED).standard_normal((count, d))
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))
