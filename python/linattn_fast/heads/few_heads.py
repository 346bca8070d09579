"""The best layer with a given number of heads, from the moments alone.

With C* the optimum of the convex objective and H heads with coefficients C,

    objective(C) = objective(C*) + ||C - C*||_M^2,    M = Lambda + alpha I

so the best H heads are the nearest ones in the metric M, and that distance is their price. The
problem is not convex: least squares (:mod:`linattn_fast.heads.bilinear`) starts from the heads nearest to
C* in the plain norm, from fixed random points, and from wherever the caller proposes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

import numpy as np

from ..arrays.types import Floats
from ..features.features import Features, head_coefficients
from ..linalg.factors import EPS
from ..linalg.refine import Solution
from ..moments.factors import normal_matrix
from ..moments.loss_error import loss_error
from ..moments.moments import Moments
from .bilinear import Budget, Descent, Metric, best_values, descend, product_flops
from .heads import Heads
from .ranks import residual_of_fewer
from .recovery import FLOPS_IF_INEXACT, TOLERANCE, heads_of, recover_heads
from .recovery_report import Recovery
from .search import Search
from .starts import svd_factors

_PRODUCTS, _FLOPS = 2000, 2e10
"""Products with J'MJ that one descent may take; and flops, which are fewer from d = 12 or so: the
last digits of heads that fit noise are not worth minutes."""
_EXACT = 1e-13
"""Relative distance to the convex optimum that counts as none."""
_EXPLORE, _SETTLE = 1e-3, 1e-7
"""Relative fall of the distance in ten steps below which a start, and then the best, is left."""
_EXACT_FIT = 1e-12
"""Mean squared error over mean squared target up to which targets count as those of a layer."""
_LARGEST_TOLERANCE = 1e-4
"""Coefficients with a larger error are not worth reproducing by few heads."""
_AGREE = 0.01
"""Two starts whose distances differ by less, relatively, have found one minimum."""


@dataclass(frozen=True)
class Optimum:
    """The convex optimum that few heads are to come near to."""

    coefficients: Floats
    """C*, (d_out, p)."""
    matrix: Floats
    """M = Lambda + alpha I, (p, p)."""
    loss: float
    """The objective at C*."""
    d: int

    @classmethod
    def of(cls, moments: Moments, alpha: float, solution: Solution) -> Optimum:
        """From the moments and their solution."""
        C = solution.coefficients
        loss = solution.mean_squared_error + alpha * float(np.vdot(C, C))
        return cls(C, normal_matrix(moments, alpha)(), loss, moments.d)


def require_every_feature(features: Features) -> None:
    """Raise where features were chosen: heads have coefficients for all, which must be judged."""
    if not features.everything:
        raise ValueError(
            "heads: a number of heads needs the moments of all features, but these are "
            f"{features!r}; use heads='minimal'"
        )


class FewHeads:
    """Finds heads near a convex optimum, for one number of heads after another."""

    def __init__(self, optimum: Optimum) -> None:
        self.optimum = optimum
        C = optimum.coefficients
        # Neither the units of the tokens nor those of the targets may overflow or underflow
        self.unit = float(np.abs(C).max()) or 1.0
        scale = float(np.abs(optimum.matrix).max()) or 1.0
        self.C = C / self.unit
        self.metric = Metric.of(optimum.matrix / scale, optimum.d)
        self.excess_unit = self.unit**2 * scale
        self.search = Search(self.C, optimum.d, TOLERANCE) if C.any() else None

    def nearest(self, H: int, proposals: Iterable[tuple[Floats, Floats]] = ()) -> Heads:
        """At most H heads with the smallest objective that was found."""
        if self.search is None:
            return self._report(np.zeros((1, len(self.C), self.optimum.d)), self._no_queries(), 0.0)
        H = min(H, self.search.svd_count)
        goal = _EXACT * self.metric.norm(self.C)
        ends: list[Descent] = []
        for V, Q in chain(proposals, self._starts(H)):
            ends.append(self._descend(V, Q, goal, _EXPLORE))
            ends.sort(key=lambda end: end.error)
            if ends[0].error <= goal:
                break
            if len(ends) > 1 and ends[1].error <= (1 + _AGREE) * ends[0].error:
                break
        best = self._descend(ends[0].V, ends[0].Q, goal, _SETTLE)
        return self._report(best.V, best.Q, best.error)

    def _descend(self, V: Floats, Q: Floats, goal: float, stall: float) -> Descent:
        budget = Budget(min(_PRODUCTS * product_flops(V, Q, self.metric), _FLOPS))
        return descend(V, Q, self.C, self.metric, budget, goal=goal, stall=stall)

    def _no_queries(self) -> Floats:
        return np.zeros((1, self.optimum.d, self.optimum.d))

    def _starts(self, H: int) -> Iterable[tuple[Floats, Floats]]:
        """Heads nearest in the plain norm, then fixed random points."""
        assert self.search is not None
        self.search.attempt(H)
        near = self.search.found[H]
        yield near.V, near.Q
        for seed in (0, 1):
            yield self.search.random_start(H, seed)

    def with_one_more(self, heads: Heads) -> tuple[Floats, Floats]:
        """Add the query matrix that explains most of what is left, and solve for all V."""
        V, Q = heads.V / np.sqrt(self.unit), heads.Q / np.sqrt(self.unit)
        _, _, queries = svd_factors(self.C - head_coefficients(V, Q), self.optimum.d)
        Q = np.concatenate([Q, queries[:1]])
        return best_values(Q, self.C, self.metric), Q

    def _report(self, V: Floats, Q: Floats, error: float) -> Heads:
        heads = Heads(V, Q).normalized()
        size = float(np.linalg.norm(self.C)) or 1.0
        residual = float(np.linalg.norm(heads.coefficients() - self.C)) / size
        least = 0 if self.search is None else self.search.least
        recovery = Recovery(
            "fit",
            residual,
            least,
            (),
            residual_of_fewer(self.C, self.optimum.d, len(heads) - 1) / size,
            "a number of heads was asked for",
            self.optimum.loss + self.excess_unit * error**2,
            self.optimum.loss,
            TOLERANCE if self.search is None else self.search.tolerance,
        )
        root = np.sqrt(self.unit)
        return Heads(heads.V * root, heads.Q * root, recovery)


def heads_of_fit(
    solution: Solution,
    heads: str | int,
    features: Features,
    *,
    condition: float,
    alpha: float,
    mean_squared_target: float,
    moments: Moments | None,
) -> tuple[Solution, Heads]:
    """Heads of a solution; for a number of heads, the best layer with so many in its place."""
    C, d = features.expand(solution.coefficients), features.d
    if heads == "svd":
        return solution, recover_heads(C, d, "svd")
    if heads == "minimal":
        # What rounding may have added to the coefficients is not to be reproduced
        lost = np.sqrt(condition) if solution.refinements else condition
        tol = float(min(max(TOLERANCE, 10 * EPS * lost), _LARGEST_TOLERANCE))
        exact = alpha == 0 and solution.mean_squared_error <= _EXACT_FIT * mean_squared_target
        return solution, heads_of(C, d, "minimal", None, tol, None if exact else FLOPS_IF_INEXACT)
    assert moments is not None
    few = FewHeads(Optimum.of(moments, alpha, solution)).nearest(int(heads))
    assert few.recovery is not None
    assert few.recovery.loss is not None
    D = few.coefficients()
    error = max(0.0, few.recovery.loss - alpha * float(np.vdot(D, D)))
    # The distance to the convex optimum is from moments, whatever the error there is from
    bound = solution.error_bound + loss_error(moments, D)
    return Solution(D, solution.refinements, error, bound), few
