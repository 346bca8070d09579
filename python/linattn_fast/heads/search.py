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
5. It ends when a fixed number of flops is spent, and does not begin where these are too few for a
   single attempt, or where many coefficients are known to have noise: those that fewer heads than
   :func:`heads_by_counting` can have are a set of measure zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from ..arrays.types import Floats
from ..features.features import feature_count
from .bilinear import Budget, Descent, least_flops
from .ranks import Ranks, svd_tolerance
from .reweighted import NEAR, Reduced, Reweighting, can_reweight
from .svd import perturbed, svd_count, svd_factors

FEWEST = "no fewer are possible"
"""Why a number is returned that ranks show to be the smallest."""
FLOPS = 3e9
"""Flops that a search may spend: a few seconds, whatever the size."""
_NOISE = 0.1
"""Share of them that is spent where the coefficients look like few heads and noise."""
_STANDS_OUT = 0.05
"""Relative residual that heads which stand out of noise leave at most."""
_AGREE = 0.02
"""Relative difference below which two errors are those of one minimum."""
_STARTS, _STARTS_AT_LEAST, _STARTS_AT_MOST = 3, 8, 40
"""Number of fixed points that least squares starts from, for each number of heads; for the fewest
that ranks allow, the likely answer; and for one head fewer than are known to be enough."""
_NEARLY = 1e-5
"""Relative residual from which on least squares converges so fast that it is let finish."""
QUICK = 600
"""Number of coefficients up to which reducing a rank costs less than least squares from a random
point."""
_DENSE, _CRITICAL = 0.8, 0.93
"""Free entries of the heads, relative to coefficients, from which random points seldom lead to
heads that reproduce them; and from which a reduced rank needs several attempts as well."""


class Search:
    """A search for heads that reproduce coefficients.

    Parameters
    ----------
    ranks
        The coefficients, and what ranks say about them.
    budget
        Flops that may be spent.
    by_ranks
        Where least squares ended from the heads that ranks give, if that was tried before.
    """

    def __init__(self, ranks: Ranks, budget: Budget, by_ranks: Sequence[Descent] = ()) -> None:
        self.ranks, self.budget, self.by_ranks = ranks, budget, by_ranks
        self.C, self.d, self.size = ranks.C, ranks.d, ranks.size
        self.threshold, self.least = ranks.threshold, ranks.least
        self.generic = heads_by_counting(self.d, len(self.C))
        self.found: dict[int, Descent] = {}
        """The nearest heads for each number that was tried."""
        self.quick = self.C.size <= QUICK
        self.noisy_count: int | None = None
        """Number of heads that stand out of noise."""

    @cached_property
    def factors(self) -> tuple[Floats, Floats, Floats]:
        """The SVD of the coefficients, formed where it is needed: it costs more than ranks do."""
        return svd_factors(self.C, self.d)

    @property
    def svd_count(self) -> int:
        """Number of heads that the SVD has."""
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

    @property
    def may_fit_anything(self) -> bool:
        """Whether arbitrary coefficients have fewer heads than the SVD, and few enough to find."""
        return self.quick and self.generic < min(len(self.C) * self.d, self.d**2)

    def affords(self, H: int) -> bool:
        """Whether the budget is enough for an attempt at H heads."""
        return least_flops(H, len(self.C), self.d) <= self.budget.left

    def attempt(self, H: int) -> bool:
        """Try H heads; True when they reproduce the coefficients."""
        if H not in self.found:
            self.found[H] = self._nearest(H)
        return self.found[H].error <= self.threshold

    def _nearest(self, H: int) -> Descent:
        """The nearest H heads from several starts."""
        ends = list(self.by_ranks) if self.ranks.given == H else []
        starts = self._starts(H)
        while not self._settled(H, ends) and (start := next(starts, None)) is not None:
            ends.append(self.ranks.nearest(*start, self.budget))
            ends.sort(key=lambda end: end.error)
        return ends[0]

    def _settled(self, H: int, ends: list[Descent]) -> bool:
        """Whether no further start is needed after these ends, the nearest first.

        Two that end at one error are believed, except where ranks allow that few heads.
        """
        if not ends:
            return False
        if ends[0].error <= self.threshold or self.budget.spent:
            return True
        agree = len(ends) > 1 and ends[1].error <= (1 + _AGREE) * ends[0].error
        return (self.least != H or self.quick) and (agree or len(ends) >= _STARTS)

    def _starts(self, H: int) -> Iterator[tuple[Floats, Floats]]:
        """Yield heads to start from, the most promising first."""
        if self.ranks.given == H and not self.by_ranks:
            yield from self.ranks.spans()
        if self.quick and (start := self._reduced(H, 0)) is not None:
            yield start[:2]
        for seed in range(_STARTS_AT_LEAST):
            yield self.random_start(H, seed)

    def smallest(self, most: int) -> int | None:
        """Smallest number up to ``most`` that was found to be enough; None when none was."""
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
        """Cut the budget where a few heads stand out of noise, which only many heads reproduce."""
        count = self.ranks.before_gap()
        if count is None or count >= self.least:
            return
        self.attempt(count)
        if self.found[count].error <= _STANDS_OUT * self.size:  # or the gap is an accident
            self.noisy_count = count
            self.budget.left = min(self.budget.left, _NOISE * self.budget.total)

    def _next(self, previous: int, failed: int) -> int:
        """The number at which a line through the last two squared errors meets zero.

        Where the squared errors are convex in the number, that is not too far.
        """
        if previous not in self.found:
            return failed + 1
        before, now = self.found[previous].error ** 2, self.found[failed].error ** 2
        if not now < before:
            return failed + 1
        return failed + max(1, int(np.ceil((failed - previous) * now / (before - now))))

    def _bisect(self, failed: int, enough: int) -> int:
        """A number that is enough, and whose predecessor failed, between two such numbers."""
        while enough - failed > 1 and not self.budget.spent:
            middle = (failed + enough) // 2
            if self.attempt(middle):
                enough = middle
            else:
                failed = middle
        return enough

    def _insist(self, enough: int) -> int:
        """Lower a number that is enough while one head fewer is enough from one of many starts."""
        while enough > self.least and self._more_starts(enough - 1):
            enough -= 1
        return enough

    def fewer_than(self, enough: int) -> int | None:
        """Fewer heads than a number that is known to be enough; None when none were found."""
        found = self._insist(enough)
        return found if found < enough else None

    def _more_starts(self, H: int) -> bool:
        """Try H heads from many starts; True when they reproduce the coefficients."""
        if self.attempt(H):
            return True
        for V, Q in self._many_starts(H):
            end = self.ranks.nearest(V, Q, self.budget)
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
            elif start[2] <= max(NEAR, self.threshold / self.size):
                yield start[:2]

    def finish(self, extra: Budget) -> int | None:
        """A number whose descent the end of the budget has cut short, brought to its end."""
        near = (H for H, end in self.found.items() if end.error <= _NEARLY * self.size)
        H = min(near, default=None)
        if H is None or not self.budget.spent:
            return None
        self.found[H] = self.ranks.nearest(self.found[H].V, self.found[H].Q, extra)
        return H if self.found[H].error <= self.threshold else None

    def why(self, number: int) -> str:
        """Say why a number that is enough is the one to return."""
        if number == self.least:
            return FEWEST
        if number - 1 in self.found:
            return "fewer were tried"
        return "the budget was spent before fewer were tried"

    def why_not(self, limit: int) -> str:
        """Say why the number that is allowed was not found to be enough."""
        if limit < self.least:
            return f"max_heads = {limit} are fewer than the {self.least} that are needed"
        return f"no {limit} heads, which is max_heads, were found to reproduce the coefficients"

    def why_none(self, complete: int) -> str:
        """Say why no number was found to be enough that is smaller than the SVD's."""
        if complete - 1 in self.found:
            return "fewer were tried, and none was found"
        if self.noisy_count is not None:
            left = self.found[self.noisy_count].error / self.size
            return (
                f"no small number was found to reproduce the coefficients, but {self.noisy_count} "
                f"heads leave {left:.1e} of them: noise, or ask for that many"
            )
        return (
            f"no small number was found in {self.budget.total:.0e} flops; la.head_path shows what "
            "each head is worth"
        )

    def why_not_tried(self, complete: int, doubt: str) -> str:
        """Say which numbers below the SVD's are impossible, and why the others were not tried."""
        if not doubt:
            need = least_flops(self.least, len(self.C), self.d)
            left = max(0.0, self.budget.left)
            doubt = f"one attempt takes {need:.0e} flops, and a search has {left:.0e}"
        others = f"{self.least} to {complete - 1}" if self.least < complete - 1 else f"{self.least}"
        text = (
            (f"ranks exclude fewer than {self.least} heads; " if self.least > 1 else "")
            + f"{others} were not looked for, because {doubt}; by counting, coefficients in "
            f"general position have no fewer than {self.generic}"
        )
        count = self.ranks.before_gap()
        if count is not None and count < self.least:
            stand_out = f"{count} head" + ("s" if count > 1 else "")
            text += f"; a gap in the ranks may mean {stand_out} and noise: ask for that many"
        return text

    def random_start(self, H: int, seed: int) -> tuple[Floats, Floats]:
        """H heads to start from, fixed for each seed."""
        return perturbed(self.factors, H, seed)


def free_entries(H: int, d: int, d_out: int) -> int:
    """Dimension of the coefficients that H general heads can have, where it is not all of them.

    Entries of V and Q less those of a matrix that mixes heads; with a single output also less the
    Q_h = sum_g A[h,g] v_g c' with A antisymmetric, which add nothing to the output.
    """
    mixing = H * H + (d * H * (H - 1) // 2 if d_out == 1 else 0)
    return H * (d_out * d + d * d) - mixing


def heads_by_counting(d: int, d_out: int) -> int:
    """Fewest heads with as many free entries as there are coefficients: arbitrary ones need them.

    At most what the SVD has.
    """
    most, needed = min(d_out * d, d * d), d_out * feature_count(d)
    return next((H for H in range(1, most) if free_entries(H, d, d_out) >= needed), most)
