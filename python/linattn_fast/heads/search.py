"""The search for the fewest heads that reproduce coefficients.

1. Ranks say how many heads are needed at least (:mod:`linattn_fast.heads.ranks`).
2. With that many, ranks often give the heads themselves by linear algebra; a few steps of
   least squares (:mod:`linattn_fast.heads.bilinear`) bring them to rounding.
3. Otherwise the number is raised, least squares starting from fixed points each time, to where the
   last two squared errors, extrapolated, meet zero; then bisected back to a number whose
   predecessor failed, and that predecessor is tried from many more starts. Where the heads have
   nearly as many free entries as there are coefficients, the starts are matrices whose rank was
   reduced (:mod:`linattn_fast.heads.reweighted`).
4. Coefficients with noise need as many heads as arbitrary ones. Where a gap in the ranks shows that
   a few heads stand out, the search is cut short and says how many, and what they leave.
5. It ends when a fixed number of flops is spent.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from ..arrays.types import Floats
from ..linalg.factors import EPS
from .bilinear import Budget, Descent, Metric, descend
from .heads import Heads
from .ranks import (
    free_entries,
    heads_by_counting,
    least_heads,
    rank_before_gap,
    rank_of_pairs,
    residual_of_fewer,
)
from .recovery_report import Recovery
from .reweighted import NEAR, Reduced, Reweighting, can_reweight
from .starts import perturbed, spans, svd_count, svd_factors

FLOPS = 3e9
"""What a search may spend: a few seconds, whatever the size."""
_NOISE = 0.1
"""The part of it that is spent where the coefficients look like few heads and noise."""
_STANDS_OUT = 0.05
"""Relative residual that heads which stand out of noise leave at most."""
_POLISHED = 2e-15
"""Relative residual that least squares stops at."""
_POLISH = 0.1
"""What may be spent on that, relative to the search, when the number is known."""
_AGREE = 0.02
"""Errors that differ by less, relatively, are those of one minimum."""
_STARTS, _STARTS_AT_LEAST, _STARTS_AT_MOST = 3, 8, 40
"""Fixed points that least squares starts from, for each number of heads; for the fewest that ranks
allow, which is the likely answer, more; and for one head fewer than were found to do, most."""
_QUICK = 600
"""Coefficients up to which reducing a rank costs less than least squares from a random point."""
_DENSE, _CRITICAL = 0.8, 0.93
"""Free entries of the heads, relative to coefficients, from which random points seldom lead to
heads that do; and from which a reduced rank needs several attempts as well."""


class Search:
    """Looks for heads with coefficients C; C has a norm of about one."""

    def __init__(self, C: Floats, d: int, tol: float, flops: float | None = None) -> None:
        self.C, self.d = C, d
        self.size = float(np.linalg.norm(C))
        self.tolerance = max(tol, reachable(len(C), d))
        """What was asked for, but not below rounding."""
        self.threshold = self.tolerance * self.size
        self.flops = FLOPS if flops is None else flops
        self.budget = Budget(self.flops)
        self.least = max(1, least_heads(C, d, self.threshold))
        self.generic = heads_by_counting(d, len(C))
        self.found: dict[int, Descent] = {}
        """The best for each number that was tried."""
        self.quick = self.C.size <= _QUICK
        self.noisy_count: int | None = None
        """Heads that stand out of noise."""

    @cached_property
    def factors(self) -> tuple[Floats, Floats, Floats]:
        """The SVD, which costs more than all the rest where ranks give the heads."""
        return svd_factors(self.C, self.d)

    @property
    def svd_count(self) -> int:
        """Heads of the SVD."""
        return svd_count(self.factors[1], svd_tolerance(len(self.C), self.d))

    @cached_property
    def reweighting(self) -> Reweighting | None:
        """Finds starts of reduced rank; None where there are too many coefficients."""
        return Reweighting(self.C, self.d) if can_reweight(len(self.C), self.d) else None

    def _reduced(self, H: int, seed: int) -> Reduced | None:
        """A start of reduced rank; None where the rank cannot exceed H, or the work is too much."""
        if self.reweighting is None or min(len(self.C) * self.d, self.d**2) <= H:
            return None
        return self.reweighting.reduce(H, seed, self.budget)

    def _density(self, H: int) -> float:
        """Free entries of H heads, relative to the coefficients."""
        return free_entries(H, self.d, len(self.C)) / self.C.size

    def attempt(self, H: int) -> bool:
        """Try H heads; True when they reproduce the coefficients."""
        if H not in self.found:
            self.found[H] = self._nearest(H)
        return self.found[H].error <= self.threshold

    def _nearest(self, H: int) -> Descent:
        """The nearest H heads of several starts.

        Two that end at one error are believed, except where ranks allow that few heads.
        """
        ends: list[Descent] = []
        for V, Q in self._starts(H):
            ends.append(self._descend(V, Q))
            ends.sort(key=lambda end: end.error)
            if ends[0].error <= self.threshold or self.budget.spent:
                break
            agree = len(ends) > 1 and ends[1].error <= (1 + _AGREE) * ends[0].error
            if (self.least != H or self.quick) and (agree or len(ends) >= _STARTS):
                break
        return ends[0]

    def _descend(self, V: Floats, Q: Floats, budget: Budget | None = None) -> Descent:
        goal, metric = _POLISHED * self.size, Metric.identity(self.d)
        return descend(V, Q, self.C, metric, self.budget if budget is None else budget, goal=goal)

    def _starts(self, H: int) -> Iterator[tuple[Floats, Floats]]:
        """Yield heads to start from, the most promising first."""
        if rank_of_pairs(self.C, self.d, self.threshold) == H:
            yield from spans(self.C, self.d, H)
        if self.quick and (start := self._reduced(H, 0)) is not None:
            yield start.V, start.Q
        for seed in range(_STARTS_AT_LEAST):
            yield self.random_start(H, seed)

    def smallest(self, most: int) -> int | None:
        """Smallest number up to ``most`` that was found to do; None when there is none."""
        failed, H = self.least - 1, self.least
        while most >= H and not self.budget.spent:
            if self.attempt(H):
                return self._insist(self._bisect(failed, H))
            if failed < self.least:
                self._expect_less_of_noise()
            previous, failed = failed, H
            H = min(self._next(previous, failed), max(most, failed + 1))
            if failed < self.generic < H:
                H = self.generic
        return None

    def _expect_less_of_noise(self) -> None:
        """Cut the budget where a few heads stand out: the rest is noise, which only many have."""
        count = rank_before_gap(self.C, self.d)
        if count is None or count >= self.least:
            return
        self.attempt(count)
        if self.found[count].error <= _STANDS_OUT * self.size:  # or the gap is an accident
            self.noisy_count = count
            self.budget.left = min(self.budget.left, _NOISE * self.flops)

    def _next(self, previous: int, failed: int) -> int:
        """Where a line through the last two squared errors meets zero: convex, so not too far."""
        if previous not in self.found:
            return failed + 1
        before, now = self.found[previous].error ** 2, self.found[failed].error ** 2
        if not now < before:
            return failed + 1
        return failed + max(1, int(np.ceil((failed - previous) * now / (before - now))))

    def _bisect(self, failed: int, enough: int) -> int:
        while enough - failed > 1 and not self.budget.spent:
            middle = (failed + enough) // 2
            if self.attempt(middle):
                enough = middle
            else:
                failed = middle
        return enough

    def _insist(self, enough: int) -> int:
        """Lower a number that does, as long as one head fewer does from some of many starts."""
        while enough > self.least and self._more_starts(enough - 1):
            enough -= 1
        return enough

    def fewer_than(self, enough: int) -> int | None:
        """Fewer heads than a number that is known to do; None when they are not found."""
        found = self._insist(enough)
        return found if found < enough else None

    def _more_starts(self, H: int) -> bool:
        if self.attempt(H):
            return True
        for V, Q in self._many_starts(H):
            end = self._descend(V, Q)
            if end.error < self.found[H].error:
                self.found[H] = end
            if end.error <= self.threshold:
                return True
        return False

    def _many_starts(self, H: int) -> Iterator[tuple[Floats, Floats]]:
        """Yield heads to start from until the budget is spent."""
        reduce = self.reweighting is not None and (self.quick or self._density(H) >= _DENSE)
        seeds = range(self.quick, _STARTS_AT_MOST) if reduce else range(_STARTS, _STARTS_AT_MOST)
        if reduce and self._density(H) < _CRITICAL:
            seeds = seeds[:_STARTS_AT_LEAST]
        for seed in seeds:
            if self.budget.spent:
                return
            start = self._reduced(H, seed) if reduce else None
            if start is None:
                yield self.random_start(H, seed)
            elif start.left <= max(NEAR, self.threshold / self.size):
                yield start.V, start.Q

    def why(self, number: int) -> str:
        """Say why a number that does is the one to return."""
        if number == self.least:
            return "no fewer are possible"
        if number - 1 in self.found:
            return "fewer were tried"
        return "the budget was spent before fewer were tried"

    def why_none(self) -> str:
        """Say why no small number does."""
        if self.noisy_count is not None:
            left = self.found[self.noisy_count].error / self.size
            return (
                f"no small number was found to reproduce the coefficients, but {self.noisy_count} "
                f"heads leave {left:.1e} of them: noise, or ask for that many"
            )
        return (
            f"no small number was found in {self.flops:.0e} flops; la.head_path shows what each "
            "head is worth"
        )

    def random_start(self, H: int, seed: int) -> tuple[Floats, Floats]:
        """Heads to start from: fixed points, one for each seed."""
        return perturbed(self.factors, H, seed)

    def polished(self, H: int) -> tuple[Floats, Floats]:
        """The best H heads, brought to rounding where the budget ended before."""
        best = self.found[H]
        budget = Budget(_POLISH * self.flops)
        while best.error > _POLISHED * self.size and not budget.spent:
            before, best = best.error, self._descend(best.V, best.Q, budget)
            if best.error > 0.5 * before:
                break
        return best.V, best.Q

    def report(self, method: str, heads: tuple[Floats, Floats], reason: str) -> Heads:
        """Heads in normal form, with how they were found."""
        normal = Heads(*heads).normalized()
        residual = float(np.linalg.norm(normal.coefficients() - self.C)) / self.size
        tried = tuple(
            (H, descent.error / self.size)
            for H, descent in sorted(self.found.items())
            if len(heads[0]) != H
        )
        fewer = residual_of_fewer(self.C, self.d, len(normal) - 1) / self.size
        recovery = Recovery(
            method, residual, self.least, tried, fewer, reason, tolerance=self.tolerance
        )
        return Heads(normal.V, normal.Q, recovery)


def reachable(d_out: int, d: int) -> float:
    """Relative residual that the heads of the SVD reach for sure: no smaller tolerance has a sense.

    The SVD leaves out at most min(d_out d, d^2) values up to :func:`svd_tolerance`, and
    coefficients are sums of two entries of what it splits.
    """
    return float(np.sqrt(2 * min(d_out * d, d * d)) * svd_tolerance(d_out, d))


def svd_tolerance(d_out: int, d: int) -> float:
    """Relative size of singular values that rounding leaves."""
    return max(d_out * d, d * d) * EPS
