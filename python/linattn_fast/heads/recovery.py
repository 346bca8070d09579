"""From coefficients back to heads: as few as possible, or by an SVD.

Only the (j,k)-symmetrised sum of V_h[a,j] Q_h[k,l] reaches the output, so heads are not unique, and
the antisymmetric part can be chosen so that as few of them as possible are needed. Ranks often give
these heads (:mod:`linattn_fast.heads.ranks`); where they do not, a search looks for them
(:mod:`linattn_fast.heads.search`). With the coefficients split evenly, an SVD gives heads
(:mod:`linattn_fast.heads.svd`), but many.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import numpy as np

from ..arrays.device import to_host
from ..arrays.floats import as_matrix
from ..arrays.types import Floats
from ..features.features import Features, feature_count
from ..linalg.factors import EPS
from ..moments.sums import MomentSums
from ..solvers.accuracy import Solution
from ..system.arguments import as_size
from ..system.machine import same_bits
from .bilinear import Budget, Descent, coefficients_of
from .given_number import best_layer
from .heads import Heads, Recovery, known_heads, normal_form
from .ranks import ROUNDING, TOLERANCE, Ranks, svd_tolerance
from .search import FLOPS, Search
from .svd import svd_count, svd_factors, svd_heads

Method: TypeAlias = Literal["minimal", "svd"]
METHODS: tuple[Method, ...] = ("minimal", "svd")

FLOPS_IF_INEXACT = 5e7
"""Flops that a search may spend where the fit left errors: its coefficients have noise, which only
many heads reproduce."""
_POLISH = 0.1
"""Flops spent on the last digits once the number is known, relative to those of the search."""
_EXACT_FIT = 1e-12
"""Mean squared error over mean squared target up to which targets count as those of a layer."""
_LARGEST_TOLERANCE = 1e-4
"""Relative error from which on coefficients are not worth reproducing by few heads."""


@same_bits
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
        reproduced, 1e-9 by default (what is found is usually exact to rounding); one below rounding
        counts as rounding, and ``heads.recovery.tolerance`` has it. "svd": drop heads
        whose singular value is at most ``tol`` times the largest; by default the machine precision
        times the larger side of the matrix.

    Returns
    -------
    Heads
        In normal form (:meth:`Heads.normalized`); ``heads.recovery`` says how they were found. At
        least one; a zero layer has one zero head.

    Notes
    -----
    The search is deterministic and limited to a fixed number of flops, a few seconds of work. It
    runs on the host; heads of coefficients on a CUDA device are put there.

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
    given = as_matrix(coefficients, "coefficients", 2)
    C = to_host(given)
    if C.shape[1] != feature_count(d) or len(C) == 0:
        raise ValueError(
            f"coefficients: shape (d_out, {feature_count(d)}) is needed for d = {d}, got {C.shape}"
        )
    if not isinstance(method, str) or method not in METHODS:
        raise ValueError(f"method: must be one of {', '.join(METHODS)}, got {method!r}")
    if max_heads is not None:
        max_heads = as_size(max_heads, "max_heads")
    if tol is None:
        tol = TOLERANCE if method == "minimal" else svd_tolerance(len(C), d)
    elif isinstance(tol, bool) or not isinstance(tol, int | float | np.number) or not 0 <= tol < 1:
        raise ValueError(f"tol: a number from 0 up to but not 1 is needed, got {tol!r}")
    return heads_of(C, d, method, max_heads, float(tol), FLOPS).put(given)


def heads_of_fit(
    solution: Solution,
    heads: str | int,
    features: Features,
    *,
    condition: float,
    alpha: float,
    mean_squared_target: float,
    moments: MomentSums | None,
) -> tuple[Solution, Heads]:
    """Heads of a solution; for a number of heads, the best layer with so many in its place."""
    if isinstance(heads, int):
        assert moments is not None
        return best_layer(heads, moments, alpha, solution)
    C, d = features.expand(solution.coefficients), features.d
    if heads == "svd":
        return solution, heads_of(C, d, "svd", None, svd_tolerance(len(C), d), FLOPS)
    # What rounding may have added to the coefficients is not to be reproduced
    lost = np.sqrt(condition) if solution.refinements else condition
    tol = float(min(max(TOLERANCE, 10 * EPS * lost), _LARGEST_TOLERANCE))
    exact = alpha == 0 and solution.mean_squared_error <= _EXACT_FIT * mean_squared_target
    flops = FLOPS if exact else FLOPS_IF_INEXACT
    return solution, heads_of(C, d, "minimal", None, tol, flops)


def heads_of(
    C: Floats, d: int, method: Method, max_heads: int | None, tol: float, flops: float
) -> Heads:
    """Heads of checked coefficients on the host, in at most so many flops; see recover_heads."""
    if not C.any():
        recovery = Recovery(method, 0.0, 0, (), 0.0, "all coefficients are zero")
        return known_heads(np.zeros((1, len(C), d)), np.zeros((1, d, d)), recovery)
    # A power of four, so that nothing overflows and the square root for V and Q rounds nothing
    scale = float(np.exp2(2 * np.rint(np.log2(np.abs(C).max()) / 2)))
    if method == "minimal":
        V, Q, recovery = _minimal(Ranks(C / scale, d, tol), max_heads, Budget(flops))
    else:
        V, Q, recovery = _by_svd(Ranks(C / scale, d, TOLERANCE), max_heads, tol)
    root = float(np.sqrt(scale))
    return known_heads(V * root, Q * root, recovery)


_Found: TypeAlias = tuple[Floats, Floats, Recovery]
"""V (H, d_out, d), Q (H, d, d), and how they were found."""


def _by_svd(ranks: Ranks, max_heads: int | None, tol: float) -> _Found:
    """The heads of the SVD whose singular values are above the tolerance."""
    factors = svd_factors(ranks.C, ranks.d)
    count = svd_count(factors[1], tol)
    if max_heads is not None:
        count = min(count, max_heads)
    return _reported(ranks, "svd", svd_heads(factors, count), "asked for")


def _minimal(ranks: Ranks, max_heads: int | None, budget: Budget) -> _Found:
    """The fewest heads that were found to reproduce the coefficients."""
    most = min(len(ranks.C) * ranks.d, ranks.d**2)  # the SVD has no more
    # The likely answer first: where ranks give the heads, neither search nor SVD is needed
    likely = ranks.least < most and (max_heads is None or ranks.least <= max_heads)
    ends = _by_ranks(ranks, budget) if likely and ranks.rank == ranks.least else []
    if ends and ends[0].error <= ranks.threshold:
        best = _polished(ranks, ends[0], budget)
        return _reported(ranks, "minimal", best, "no fewer are possible")
    return _searched(Search(ranks, budget, ends), max_heads, likely)


def _by_ranks(ranks: Ranks, budget: Budget) -> list[Descent]:
    """Heads to which least squares leads from those that ranks give, the nearest first."""
    ends: list[Descent] = []
    for V, Q in ranks.spans():
        ends.append(ranks.nearest(V, Q, budget))
        if ends[-1].error <= ranks.threshold or budget.spent:
            break
    return sorted(ends, key=lambda end: end.error)


def _searched(search: Search, max_heads: int | None, likely: bool) -> _Found:
    """The fewest heads that a search finds; the fewest possible come first where ``likely``."""
    ranks = search.ranks

    def enough(number: int) -> _Found:
        best = _polished(ranks, search.found[number], search.budget)
        return _reported(ranks, "minimal", best, search.why(number), search.found)

    if likely and search.attempt(ranks.least):
        return enough(ranks.least)
    complete = search.svd_count
    limit = complete if max_heads is None else min(complete, max_heads)
    by_svd = svd_heads(search.factors, complete)
    if complete <= min(ranks.least, limit):
        reason = "the SVD has no more than are needed"
        return _reported(ranks, "minimal", by_svd, reason, search.found)
    number = search.smallest(min(limit, complete - 1))
    if number is None and complete - 1 in search.found:
        number = search.fewer_than(complete)
    if number is not None:
        return enough(number)
    if limit < complete:
        search.attempt(limit)
        best = search.found[limit]
        return _reported(ranks, "minimal", (best.V, best.Q), search.why_not(limit), search.found)
    return _reported(ranks, "svd", by_svd, search.why_none(complete), search.found)


def _polished(ranks: Ranks, best: Descent, searched: Budget) -> tuple[Floats, Floats]:
    """Heads brought to rounding, where the budget of the search ended before."""
    budget = Budget(_POLISH * searched.total)
    while best.error > ROUNDING * ranks.size and not budget.spent:
        before, best = best.error, ranks.nearest(best.V, best.Q, budget)
        if best.error > 0.5 * before:
            break
    return best.V, best.Q


def _reported(
    ranks: Ranks,
    method: str,
    heads: tuple[Floats, Floats],
    reason: str,
    found: Mapping[int, Descent] | None = None,
) -> _Found:
    """Heads in normal form, with how they were found."""
    V, Q = normal_form(*heads)
    tried = sorted((H, end.error / ranks.size) for H, end in (found or {}).items())
    recovery = Recovery(
        method,
        residual=float(np.linalg.norm(coefficients_of(V, Q) - ranks.C)) / ranks.size,
        at_least=ranks.least,
        tried=tuple(each for each in tried if each[0] != len(heads[0])),
        fewer_leave=ranks.residual_of_fewer(len(V) - 1) / ranks.size,
        reason=reason,
        tolerance=ranks.tolerance,
    )
    return V, Q, recovery
