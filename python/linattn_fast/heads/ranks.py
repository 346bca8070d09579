"""What ranks say about the heads behind coefficients: how many at least, and often which.

Two contractions of the coefficients (:mod:`linattn_fast.heads.contractions`) have a rank of at most
the number of heads H, whatever the heads are:

    M(x) = sum_h (V_h x) (Q_h' x)'              d_out x d    rank                         <= H
    B(u,c) = sum_h sym (V_h' u) (Q_h c)'        d x d        eigenvalues of either sign   <= H

For unit vectors a change of the coefficients by e moves singular values and eigenvalues by at most
e, so values above the tolerance count for every approximation within the tolerance. They are
computed with rounding of their own, which is added to the tolerance, and subtracted from what fewer
heads leave.

Where M(x) has rank H less than d_out or d, its columns or rows give one factor of the heads
(:mod:`linattn_fast.heads.span`); with a single output and at most d/2 heads, B(c) does. The other
factor follows by least squares, and no search is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from ..arrays import compiled
from ..arrays.types import Floats
from ..features.features import pair_count
from ..linalg.factors import EPS
from ..solvers.accuracy import norm
from .bilinear import Budget, Descent, Metric, best_queries, best_values, descend
from .contractions import at_outputs, unit_points
from .span import (
    Columns,
    points_needed,
    queries_in,
    queries_needed,
    values_by_pencils,
    values_in,
    values_in_ranges,
)

TOLERANCE = 1e-9
"""Relative residual up to which coefficients count as reproduced."""
_GOAL = 1e-14
"""Relative residual at which least squares stops."""
_POINTS = 16
"""Points at which M(x) is formed."""
_FORMS, _FORMS_TIMES_D = (4, 8), 64
"""Points at which B(u,c) is formed: fewest and most, and in between their number times d."""
_MOST_POINTS, _SMALL = 128, 1 << 20
"""Points, and coefficients, up to which compiled code gives the heads; beyond, BLAS is faster."""
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
        self.size = norm(C)
        self.tolerance = max(tol, _reachable(len(C), d))
        """The tolerance asked for, but not below rounding."""
        self.threshold = self.tolerance * self.size
        self.rounding = _rounding(len(C), d) * self.size
        """Bound on the error of singular values of M(x) and eigenvalues of B(u,c): what cannot be
        told from no error at all."""
        self.rank = self._rank_above(self.threshold)
        """Largest rank of M(x) over the points."""
        self.least = max(1, self.least_heads(self.threshold))
        """A number of heads that no approximation within the tolerance can do without."""

    @cached_property
    def columns(self) -> Columns:
        """The SVDs of M(x) at points."""
        return Columns.of(self.C, _POINTS, self.d)

    @property
    def singular_values(self) -> Floats:
        """Singular values of M(x) at each point, the largest first: (m, min(d_out, d))."""
        return self.columns.sizes

    @cached_property
    def forms(self) -> Floats:
        """The matrices B(u,c) at points, (m, d, d)."""
        return self._forms(_forms_at(self.d))

    def _forms(self, count: int) -> Floats:
        return at_outputs(self.C, unit_points(count, len(self.C)), unit_points(count, self.d))

    @cached_property
    def eigenvalues(self) -> Floats:
        """Eigenvalues of B(u,c) at each point, ascending: (m, d)."""
        if self.one_output:  # whose eigenvectors give the heads
            return self._eigen[0]
        return np.asarray(np.linalg.eigvalsh(self.forms))

    @cached_property
    def _eigen(self) -> tuple[Floats, Floats]:
        """The eigenvalues with their eigenvectors, (m, d, d)."""
        return np.linalg.eigh(self.forms)

    @property
    def one_output(self) -> bool:
        """Whether there is a single output: M(x) is a row then, and says nothing."""
        return len(self.C) == 1

    def least_heads(self, threshold: float) -> int:
        """A number of heads that no approximation within the threshold can do without."""
        above = threshold + self.rounding
        largest, smallest = self.eigenvalues.max(axis=0), self.eigenvalues.min(axis=0)
        positive, negative = (largest > above).sum(), (smallest < -above).sum()
        return max(self._rank_above(above), int(positive), int(negative))

    def _rank_above(self, threshold: float) -> int:
        if self.one_output:
            return 1
        # Values are sorted at each point, so that some point has as many as are above it at any
        return int(np.count_nonzero(self.singular_values.max(axis=0) > threshold))

    def before_gap(self) -> int | None:
        """Number of singular values of M(x) before the widest gap; None if no gap is wide."""
        if min(len(self.C), self.d) < 2:
            return None
        typical = np.median(self.singular_values, axis=0)
        ratios = typical[1:] / np.maximum(typical[:-1], np.finfo(np.float64).tiny)
        widest = int(ratios.argmin())
        return widest + 1 if ratios[widest] < _GAP else None

    def residual_of_fewer(self, H: int) -> float:
        """Lower bound on what H heads leave of C, from the values after the first H.

        It is 0 where ranks do not tell, or rounding hides it.
        """
        if H == 0:
            return self.size
        after = self.eigenvalues[:, : max(0, self.d - H)], -self.eigenvalues[:, H:]
        rest = _largest_norm(np.maximum(np.concatenate(after), 0))
        if not self.one_output:
            rest = max(rest, _largest_norm(self.singular_values[:, H:]))
        lost = math.sqrt(max(self.d, len(self.C))) * self.rounding  # by d or d_out values
        return max(0.0, rest - lost)

    # ---------------------------------------------------------------------- heads by linear algebra

    @property
    def given(self) -> int:
        """The number of heads that linear algebra gives, if it gives any."""
        return self.least if self.one_output else self.rank

    def spans(self) -> Iterator[tuple[Floats, Floats]]:
        """Yield the heads that linear algebra gives."""
        V = self._values_of_one_output() if self.one_output else self._span_of_values()
        if V is not None:
            yield V, best_queries(V, self.C, self.metric)
        Q = None if self.one_output else self._span_of_queries()
        if Q is not None:
            yield best_values(Q, self.C, self.metric), Q

    def _values_of_one_output(self) -> Floats | None:
        """V (H, 1, d) from B(c); None for more than d/2 heads."""
        H, d = self.least, self.d
        if d < 2 * H:
            return None
        if d == 2 * H:
            return values_by_pencils(self.forms, self.eigenvalues)
        needed = queries_needed(H, d)
        enough = needed <= len(self.forms)
        _, vectors = self._eigen if enough else np.linalg.eigh(self._forms(needed))
        return values_in_ranges(vectors, H)

    def _span_of_values(self) -> Floats | None:
        """V (H, d_out, d) from the columns of M(x); None where they say nothing."""
        H, d_out = self.rank, len(self.C)
        return values_in(self.C, self._columns(H, d_out), H) if d_out > H else None

    def _span_of_queries(self) -> Floats | None:
        """Q (H, d, d) from the rows of M(x); None where they say nothing."""
        H, d = self.rank, self.d
        return queries_in(self.C, self._columns(H, d), H) if d > H else None

    def _columns(self, H: int, n: int) -> Columns:
        """M(x) at enough points for the span of its H columns among n."""
        needed = points_needed(H, n, self.d)
        return self.columns if needed <= _POINTS else Columns.of(self.C, needed, self.d)

    def nearest(self, V: Floats, Q: Floats, budget: Budget) -> Descent:
        """Least squares from heads (V, Q) to C, until rounding is all that is left."""
        return descend(V, Q, self.C, self.metric, budget, goal=_GOAL * self.size)


# -------------------------------------------------------------------------------- in compiled code


class GivenHeads(NamedTuple):
    """Heads that ranks give, and what ranks say about them."""

    V: Floats
    """In normal form, (H, d_out, d)."""
    Q: Floats
    """Beside V, (H, d, d)."""
    residual: float
    """Relative to C."""
    at_least: int
    fewer_leave: float
    """Relative to C."""
    tolerance: float


def given_heads(C: Floats, d: int, tol: float, max_heads: int | None) -> GivenHeads | None:
    """Heads of coefficients (d_out, p) of any size that ranks give exactly, all in one call.

    The steps are those of :class:`Ranks`, in compiled code, for which calls of numpy would take
    longer than their arithmetic. None where ranks do not show that no fewer heads are possible, or
    do not give them to rounding, or where it would not be fast.
    """
    if compiled.MISSING is not None or C.size > _SMALL:
        return None
    fixed = _fixed(len(C), d)
    tolerance = max(tol, fixed.reachable)
    fewer_than = fixed.most if max_heads is None else min(fixed.most, max_heads + 1)
    found = compiled.core.heads_by_ranks(
        C,
        fixed.points,
        fixed.outputs,
        _POINTS,
        fixed.forms,
        tolerance,
        fixed.rounding,
        fixed.negligible,
        fewer_than,
    )
    return None if found is None else GivenHeads(*found, tolerance)


class _Fixed(NamedTuple):
    """What depends on nothing but d_out and d."""

    points: Floats
    outputs: Floats
    forms: int
    reachable: float
    rounding: float
    negligible: float
    most: int


@lru_cache(maxsize=64)
def _fixed(d_out: int, d: int) -> _Fixed:
    return _Fixed(
        unit_points(_MOST_POINTS, d),
        unit_points(_MOST_POINTS, d_out),
        _forms_at(d),
        _reachable(d_out, d),
        _rounding(d_out, d),
        # Twice this is the error that leaving it out makes, six of the ten times in the rounding
        3 * (d + d_out) * EPS,
        min(d_out * d, d * d),
    )


def _forms_at(d: int) -> int:
    """Number of points at which B(u,c) is formed."""
    return min(_FORMS[1], max(_FORMS[0], _FORMS_TIMES_D // d))


def _rounding(d_out: int, d: int) -> float:
    """Bound on the error of singular values of M(x) and eigenvalues of B(u,c), relative to ||C||.

    A sum of n products errs by n eps of the lengths of its factors, which are ||C|| and at most
    one; an SVD or eigendecomposition by a few times its size, taken as ten.
    """
    terms = pair_count(d) + d + d_out
    return float((terms + 10 * (d + d_out)) * EPS)


def svd_tolerance(d_out: int, d: int) -> float:
    """Relative size of the singular values that rounding leaves in an SVD of T."""
    return max(d_out * d, d * d) * EPS


def _reachable(d_out: int, d: int) -> float:
    """Relative residual that the heads of the SVD surely reach: no smaller tolerance makes sense.

    The SVD leaves out at most min(d_out d, d^2) values up to :func:`svd_tolerance`, and
    coefficients are sums of two entries of what it splits.
    """
    return math.sqrt(2 * min(d_out * d, d * d)) * svd_tolerance(d_out, d)


def _largest_norm(rows: Floats) -> float:
    """The largest norm of the rows (m, n)."""
    return math.sqrt((rows * rows).sum(axis=1).max())
