"""The best layer with a given number of heads, from moments alone: ``heads=H`` of a fit.

With C* the optimum of the convex objective and H heads with coefficients C,

    objective(C) = objective(C*) + ||C - C*||_M^2,    M = Lambda + alpha I

so the best H heads are the nearest ones in the metric M, and that distance is their price. The
problem is not convex: least squares (:mod:`linattn_fast.heads.bilinear`) starts from the heads
nearest to C* in the plain norm, from fixed random points, and from wherever the caller proposes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

import numpy as np

from ...arrays.types import Floats
from ...features.cubic import head_coefficients
from ...features.features import Features
from ...features.states import StateFeatures
from ...moments.factors import normal_matrix
from ...moments.loss_error import loss_error
from ...moments.sums import MomentSums
from ...solvers.accuracy import Solution
from ..bilinear import (
    Budget,
    Descent,
    Metric,
    best_values,
    descend,
    product_flops,
)
from ..heads import Heads, Recovery, known_heads, normal_form
from ..ranks import TOLERANCE, Ranks
from ..search import FLOPS, Search
from ..svd import svd_factors

_PRODUCTS, _FLOPS = 2000, 2e10
"""Products with J'MJ that one descent may take; and flops, which are fewer from d = 12 or so: the
last digits of heads that fit noise are not worth minutes."""
_EXACT = 1e-13
"""Relative distance to the convex optimum that counts as none."""
_EXPLORE, _SETTLE = 1e-3, 1e-7
"""Relative fall of the distance in ten steps below which a start, and then the best, is left."""
_AGREE = 0.01
"""Relative difference of the distances below which two starts have found one minimum."""
_ASKED_FOR = "a number of heads was asked for"


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
    """Coordinates of a token."""

    @classmethod
    def of(cls, moments: MomentSums, alpha: float, solution: Solution) -> Optimum:
        """The optimum that the solution of these moments is."""
        C = solution.coefficients
        loss = solution.mean_squared_error + alpha * float(np.vdot(C, C))
        return cls(C, normal_matrix(moments, alpha)(), loss, moments.d)


def require_every_feature(features: Features) -> None:
    """Raise where features were chosen: heads have coefficients for all, and all cost something."""
    if isinstance(features, StateFeatures):
        raise ValueError(
            "heads: a number of heads is for layers on tokens, and these are states; use "
            "heads='minimal'"
        )
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
        self.search = (
            Search(Ranks(self.C, optimum.d, TOLERANCE), Budget(FLOPS)) if C.any() else None
        )

    def nearest(self, H: int, proposals: Iterable[tuple[Floats, Floats]] = ()) -> Heads:
        """At most H heads, with the smallest objective that was found."""
        if self.search is None:
            return self._zero_head()
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
        return self._reported(best, self.search.ranks)

    def _descend(self, V: Floats, Q: Floats, goal: float, stall: float) -> Descent:
        """Least squares in the metric M, within the flops of one descent."""
        budget = Budget(min(_PRODUCTS * product_flops(V, Q, self.metric), _FLOPS))
        return descend(V, Q, self.C, self.metric, budget, goal=goal, stall=stall)

    def _starts(self, H: int) -> Iterable[tuple[Floats, Floats]]:
        """Yield the heads nearest in the plain norm, then fixed random points."""
        assert self.search is not None
        self.search.attempt(H)
        near = self.search.found[H]
        yield near.V, near.Q
        for seed in (0, 1):
            yield self.search.random_start(H, seed)

    def with_one_more(self, heads: Heads) -> tuple[Floats, Floats]:
        """Heads with the query matrix added that explains most of the rest, and V solved for."""
        V, Q = heads.V / np.sqrt(self.unit), heads.Q / np.sqrt(self.unit)
        _, _, queries = svd_factors(self.C - head_coefficients(V, Q), self.optimum.d)
        Q = np.concatenate([Q, queries[:1]])
        return best_values(Q, self.C, self.metric), Q

    def _reported(self, best: Descent, ranks: Ranks) -> Heads:
        """Heads in normal form and in the units of C*, with what they cost."""
        V, Q = normal_form(best.V, best.Q)
        recovery = Recovery(
            "fit",
            residual=float(np.linalg.norm(head_coefficients(V, Q) - self.C)) / ranks.size,
            at_least=ranks.least,
            tried=(),
            fewer_leave=ranks.residual_of_fewer(len(V) - 1) / ranks.size,
            reason=_ASKED_FOR,
            loss=self.optimum.loss + self.excess_unit * best.error**2,
            convex_loss=self.optimum.loss,
            tolerance=ranks.tolerance,
            gap=self.excess_unit * best.error**2,
            gap_at_most=self.excess_unit * best.error**2,
        )
        root = np.sqrt(self.unit)
        return known_heads(V * root, Q * root, recovery)

    def _zero_head(self) -> Heads:
        """The one head of an optimum that is zero."""
        loss, d = self.optimum.loss, self.optimum.d
        recovery = Recovery("fit", 0.0, 0, (), 0.0, _ASKED_FOR, loss, loss, TOLERANCE, 0.0, 0.0)
        return known_heads(np.zeros((1, len(self.C), d)), np.zeros((1, d, d)), recovery)


def best_layer(
    H: int, moments: MomentSums, alpha: float, solution: Solution
) -> tuple[Solution, Heads]:
    """The best layer with at most H heads, in place of the solution of the same moments."""
    heads = FewHeads(Optimum.of(moments, alpha, solution)).nearest(H)
    assert heads.recovery is not None
    assert heads.recovery.loss is not None
    C = head_coefficients(heads.V, heads.Q)
    error = max(0.0, heads.recovery.loss - alpha * float(np.vdot(C, C)))
    # The distance to the convex optimum is from moments, whatever the error there is from
    bound = solution.error_bound + loss_error(moments, C)
    return Solution(C, solution.refinements, error, bound), heads
