"""From coefficients back to heads: as few as possible, or by an SVD.

Only the (j,k)-symmetrised sum of V_h[a,j] Q_h[k,l] reaches the output, so heads are not unique, and
the antisymmetric part can be chosen to need as few of them as possible. The search:

1. Ranks say how many heads are needed at least (:mod:`linattn_fast.ranks`).
2. With that many, ranks often give the heads themselves by linear algebra; a few steps of
   least squares (:mod:`linattn_fast.bilinear`) bring them to rounding.
3. Otherwise the number is raised, least squares starting from fixed points each time, to where the
   last two squared errors, extrapolated, meet zero; then bisected back to a number whose
   predecessor failed.
4. Coefficients with noise need as many heads as arbitrary ones. Where a gap in the ranks shows that
   a few heads stand out, the search is cut short and says how many, and what they leave.
5. It ends, with the SVD, when a fixed number of flops is spent.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
from scipy.linalg import svd

from .bilinear import Budget, Descent, Metric, best_queries, best_values, descend
from .features import feature_count
from .heads import Heads, Recovery, as_matrix
from .ranks import (
    least_heads,
    rank_before_gap,
    rank_of_pairs,
    residual_of_fewer,
    span_of_queries,
    span_of_values,
    split_evenly,
)
from .solve import EPS
from .tokens import Floats, as_size

Method: TypeAlias = Literal["minimal", "svd"]
METHODS: tuple[Method, ...] = ("minimal", "svd")

TOLERANCE = 1e-9
"""Relative residual up to which coefficients count as reproduced."""
FLOPS = 3e9
"""What a search may spend: a few seconds, whatever the size."""
FLOPS_IF_INEXACT = 5e7
"""The same where the fit left errors: its coefficients have noise, which only many heads have."""
_NOISE = 0.1
"""The part of it that is spent where the coefficients look like few heads and noise."""
_POLISHED = 2e-15
"""Relative residual that least squares stops at."""
_AGREE = 0.02
"""Errors that differ by less, relatively, are those of one minimum."""
_STARTS, _STARTS_AT_LEAST, _STARTS_AT_MOST = 3, 8, 40
"""Fixed points that least squares starts from, for each number of heads; for the fewest that ranks
allow, which is the likely answer, more; and for one head fewer than were found to do, most."""


def svd_factors(C: Floats, d: int) -> tuple[Floats, Floats, Floats]:
    """V (n, d_out, d), sigma (n,), Q (n, d, d) of the SVD of T over (a,j) x (k,l)."""
    W = split_evenly(C, d).reshape(len(C) * d, d * d)
    left, sigma, right = svd(W, full_matrices=False, check_finite=False)
    n = len(sigma)
    return left.T.reshape(n, len(C), d), sigma, right.reshape(n, d, d)


def svd_heads(factors: tuple[Floats, Floats, Floats], count: int) -> tuple[Floats, Floats]:
    """The first ``count``, singular values split evenly."""
    left, sigma, right = factors
    root = np.sqrt(sigma[:count])[:, None, None]
    return left[:count] * root, right[:count] * root


def _svd_count(sigma: Floats, tol: float) -> int:
    """Singular values above ``tol`` times the largest; at least one."""
    return max(1, int((sigma > tol * sigma[0]).sum()))


# ----------------------------------------------------------------------------------------- attempts


def _perturbed(factors: tuple[Floats, Floats, Floats], H: int, seed: int) -> tuple[Floats, Floats]:
    """Where to start with H heads: the SVD's, moved at random; every second time random alone."""
    rng = np.random.default_rng(seed)
    V, Q = svd_heads(factors, H)
    keep, move = (1.0, 0.1 if seed == 0 else 1.0) if seed % 2 == 0 else (0.0, 1.0)
    return _moved(V, H, keep, move, rng), _moved(Q, H, keep, move, rng)


def _moved(F: Floats, H: int, keep: float, move: float, rng: np.random.Generator) -> Floats:
    """Add noise of a size relative to the entries of F (n, ., .); repeat it up to H."""
    noise = np.abs(F).mean() * rng.standard_normal((H, *F.shape[1:]))
    return np.asarray(keep * np.resize(F, noise.shape) + move * noise)


def _spans(C: Floats, d: int, H: int) -> Iterator[tuple[Floats, Floats]]:
    """Yield heads that ranks give, where M(x) has rank H."""
    metric = Metric.identity(d)
    V = span_of_values(C, d, H)
    if V is not None:
        yield V, best_queries(V, C, metric)
    Q = span_of_queries(C, d, H)
    if Q is not None:
        yield best_values(Q, C, metric), Q


class Search:
    """Looks for heads with coefficients C; C has a norm of about one."""

    def __init__(self, C: Floats, d: int, tol: float, flops: float | None = None) -> None:
        self.C, self.d = C, d
        self.size = float(np.linalg.norm(C))
        self.threshold = tol * self.size
        self.flops = FLOPS if flops is None else flops
        self.budget = Budget(self.flops)
        self.least = max(1, least_heads(C, d, self.threshold))
        self.found: dict[int, Descent] = {}
        """The best for each number that was tried."""
        self.noisy_count: int | None = None
        """Heads that stand out of noise."""

    @cached_property
    def factors(self) -> tuple[Floats, Floats, Floats]:
        """The SVD, which costs more than all the rest where ranks give the heads."""
        return svd_factors(self.C, self.d)

    @property
    def svd_count(self) -> int:
        """Heads of the SVD."""
        return _svd_count(self.factors[1], _svd_tolerance(len(self.C), self.d))

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
            if self.least != H and (agree or len(ends) >= _STARTS):
                break
        return ends[0]

    def _descend(self, V: Floats, Q: Floats) -> Descent:
        goal = _POLISHED * self.size
        return descend(V, Q, self.C, Metric.identity(self.d), self.budget, goal=goal)

    def _starts(self, H: int) -> Iterator[tuple[Floats, Floats]]:
        """Yield heads to start from, the most promising first."""
        if rank_of_pairs(self.C, self.d, self.threshold) == H:
            yield from _spans(self.C, self.d, H)
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
        return None

    def _expect_less_of_noise(self) -> None:
        """Cut the budget where a few heads stand out: the rest is noise, which only many have."""
        count = rank_before_gap(self.C, self.d)
        if count is not None and count < self.least:
            self.attempt(count)
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

    def _more_starts(self, H: int) -> bool:
        if self.attempt(H):
            return True
        for seed in range(_STARTS, _STARTS_AT_MOST):
            if self.budget.spent:
                break
            end = self._descend(*self.random_start(H, seed))
            if end.error < self.found[H].error:
                self.found[H] = end
            if end.error <= self.threshold:
                return True
        return False

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
                f"no small number reproduces the coefficients, but {self.noisy_count} heads leave "
                f"{left:.1e} of them: noise, or ask for that many"
            )
        return (
            f"no small number was found in {self.flops:.0e} flops; la.head_path shows what each "
            "head is worth"
        )

    def random_start(self, H: int, seed: int) -> tuple[Floats, Floats]:
        """Heads to start from: fixed points, one for each seed."""
        return _perturbed(self.factors, H, seed)

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
        recovery = Recovery(method, residual, self.least, tried, fewer, reason)
        return Heads(normal.V, normal.Q, recovery)


def _svd_tolerance(d_out: int, d: int) -> float:
    return max(d_out * d, d * d) * EPS


# ------------------------------------------------------------------------------------------ methods


def _minimal(search: Search, max_heads: int | None) -> Heads:
    """The fewest heads that were found to have the coefficients C."""
    C, d = search.C, search.d
    most = min(len(C) * d, d * d)  # the SVD has no more
    allowed = search.least < most and (max_heads is None or search.least <= max_heads)
    # The likely answer first: where ranks give the heads, the SVD is not needed
    if allowed and search.attempt(search.least):
        best = search.found[search.least]
        return search.report("minimal", (best.V, best.Q), search.why(search.least))
    complete = search.svd_count
    limit = complete if max_heads is None else min(complete, max_heads)
    by_svd = svd_heads(search.factors, complete)
    if complete <= min(search.least, limit):
        return search.report("minimal", by_svd, "the SVD has no more than are needed")
    number = search.smallest(min(limit, complete - 1))
    if number is not None:
        best = search.found[number]
        return search.report("minimal", (best.V, best.Q), search.why(number))
    if limit < complete:
        search.attempt(limit)
        best = search.found[limit]
        reason = f"max_heads = {limit} do not reproduce the coefficients"
        return search.report("minimal", (best.V, best.Q), reason)
    if complete - 1 in search.found:
        return search.report("minimal", by_svd, "fewer were tried")
    return search.report("svd", by_svd, search.why_none())


def _by_svd(search: Search, max_heads: int | None, tol: float) -> Heads:
    """The SVD's heads above the tolerance."""
    count = _svd_count(search.factors[1], tol)
    if max_heads is not None:
        count = min(count, max_heads)
    return search.report("svd", svd_heads(search.factors, count), "asked for")


def recover_heads(
    coefficients: object,
    d: int,
    method: Method = "minimal",
    max_heads: int | None = None,
    tol: float | None = None,
) -> Heads:
    """Turn coefficients back into heads.

    Parameters
    ----------
    coefficients
        (d_out, p).
    d
        Coordinates of a token.
    method
        "minimal": as few heads as were found to reproduce the coefficients, and those of the SVD
        where no small number was found. "svd": split each coefficient of j < k evenly between
        (j, k) and (k, j), and take the SVD of the (d_out d) x (d d) matrix of rows (a, j) and
        columns (k, l); up to d^2 heads.
    max_heads
        At most so many. Where they do not reproduce the coefficients, "minimal" returns the nearest
        that were found, and "svd" the largest.
    tol
        "minimal": relative residual ||C(heads) - C|| / ||C|| up to which coefficients count as
        reproduced, 1e-9 by default (what is found is usually exact to rounding). "svd": drop heads
        whose singular value is at most ``tol`` times the largest; by default the machine precision
        times the larger side of the matrix.

    Returns
    -------
    Heads
        In normal form (:meth:`Heads.normalized`); ``heads.recovery`` says how they were found. At
        least one; a zero layer has one zero head.

    Notes
    -----
    The search is deterministic and limited to a fixed number of flops, a few seconds of work.

    Examples
    --------
    >>> import numpy as np, linattn_fast as la
    >>> rng = np.random.default_rng(0)
    >>> truth = la.Heads(rng.standard_normal((2, 5, 5)), rng.standard_normal((2, 5, 5)))
    >>> heads = la.recover_heads(truth.coefficients(), 5)
    >>> len(heads), len(la.recover_heads(truth.coefficients(), 5, "svd"))
    (2, 25)
    >>> heads.recovery.residual < 1e-12, heads.recovery.at_least
    (True, 2)
    """
    d = as_size(d, "d")
    C = as_matrix(coefficients, "coefficients", 2)
    if C.shape[1] != feature_count(d) or len(C) == 0:
        raise ValueError(
            f"coefficients: shape (d_out, {feature_count(d)}) is needed for d = {d}, got {C.shape}"
        )
    if not isinstance(method, str) or method not in METHODS:
        raise ValueError(f"method: must be one of {', '.join(METHODS)}, got {method!r}")
    if max_heads is not None:
        max_heads = as_size(max_heads, "max_heads")
    if tol is None:
        tol = TOLERANCE if method == "minimal" else _svd_tolerance(len(C), d)
    elif isinstance(tol, bool) or not isinstance(tol, int | float | np.number) or not 0 <= tol < 1:
        raise ValueError(f"tol: a number from 0 up to but not 1 is needed, got {tol!r}")
    return heads_of(C, d, method, max_heads, float(tol))


def heads_of(
    C: Floats,
    d: int,
    method: Method,
    max_heads: int | None,
    tol: float,
    flops: float | None = None,
) -> Heads:
    """Heads of checked coefficients; see :func:`recover_heads`."""
    if not C.any():
        zero = np.zeros((1, len(C), d)), np.zeros((1, d, d))
        return Heads(*zero, Recovery(method, 0.0, 0, (), 0.0, "all coefficients are zero"))
    # A power of four, so that nothing overflows and the square root for V and Q rounds nothing
    scale = float(np.exp2(2 * np.rint(np.log2(np.abs(C).max()) / 2)))
    if method == "minimal":
        heads = _minimal(Search(C / scale, d, tol, flops), max_heads)
    else:
        heads = _by_svd(Search(C / scale, d, TOLERANCE), max_heads, tol)
    root = float(np.sqrt(scale))
    return Heads(heads.V * root, heads.Q * root, heads.recovery)
