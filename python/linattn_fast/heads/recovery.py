"""From coefficients back to heads: as few as possible, or by an SVD.

Only the (j,k)-symmetrised sum of V_h[a,j] Q_h[k,l] reaches the output, so heads are not unique, and
the antisymmetric part can be chosen so that as few of them as possible are needed. Ranks often give
these heads (:mod:`linattn_fast.heads.ranks`); where they do not, a search looks for them
(:mod:`linattn_fast.heads.search`). With the coefficients split evenly, an SVD gives heads
(:mod:`linattn_fast.heads.svd`), but many.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from ..arrays.device import to_host
from ..arrays.floats import as_matrix
from ..arrays.types import Floats
from ..data.states import StateShape
from ..features.compact import pair_table
from ..features.cubic import head_coefficients
from ..features.features import feature_count, pair_count
from ..linalg.factors import EPS
from ..problem.interface import ShowProgress
from ..solvers.accuracy import norm
from ..solvers.solved import Solved
from ..system.arguments import as_size
from ..system.machine import same_bits
from ..system.progress import Bar, Progress
from .bilinear import Budget, Descent
from .heads import Heads, Recovery, known_heads, normal_form, svd_normal_form
from .ranks import TOLERANCE, Ranks, given_heads, svd_tolerance
from .search import FEWEST, FLOPS, QUICK, Search
from .span import smallest_queries
from .svd import rectangular_heads, svd_count, svd_factors, svd_heads

Method: TypeAlias = Literal["minimal", "svd"]
METHODS: tuple[Method, ...] = ("minimal", "svd")

FLOPS_IF_DOUBTFUL = 5e7
"""Flops that a search may spend on coefficients of a fit with a ridge, with errors as small as
rounding, or with fewer samples than features: they may be those of few heads, but seldom are."""
_NOISE = 100
"""Noise in the coefficients, over the tolerance, from which on no few heads are within that."""
_POLISH = 0.1
"""Flops spent on the last digits once the number is known, relative to those of the search."""
_PROMISING = 0.1
"""Relative residual of heads that ranks give from which on these are no better than others."""
_EXACT_FIT = 1e-12
"""Mean squared error over mean squared target up to which targets count as those of a layer."""
_LARGEST_TOLERANCE = 1e-4
"""Relative error from which on coefficients are not worth reproducing by few heads."""


@same_bits
def recover_heads(
    coefficients: object,
    d: int | tuple[int, int, int],
    method: Method = "minimal",
    max_heads: int | None = None,
    tol: float | None = None,
    *,
    noise: float = 0.0,
    progress: ShowProgress = False,
) -> Heads:
    """Turn coefficients back into heads.

    Parameters
    ----------
    coefficients
        (d_out, p).
    d
        Coordinates of a token; or (d_v, d_k, d_q) of a layer on states, whose memory has no
        symmetry. The fewest heads are then the rank of the coefficients, which one SVD has.
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
    noise
        "minimal": relative size of the errors in the coefficients, ||error|| / ||C||, where that is
        known, as ``fit.heads`` knows it from the errors that a fit left. Coefficients with noise of
        more than a hundred times ``tol`` have no small number of heads, so none is searched for:
        heads are those that ranks give, or the SVD's, in the time of an SVD.
    progress
        True shows a bar of the search, in per cent of the flops that it may spend; a function is
        called with the per cent and 100, and may raise to stop.

    Returns
    -------
    Heads
        In normal form (:meth:`Heads.normalized`); ``heads.recovery`` says how they were found. At
        least one; a zero layer has one zero head.

    Notes
    -----
    Where ranks give the heads, that takes fewer flops than an SVD. Elsewhere there is a search,
    unless the coefficients are known to have noise. It is deterministic and limited to a fixed
    number of flops, a few seconds of work; where a single attempt would take more, the SVD's heads
    are returned at once, or ``max_heads`` of the nearest. It runs on the host; heads of
    coefficients on a CUDA device are put there.

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
    shape = _as_shape(d) if isinstance(d, tuple | list) else None
    d = as_size(d, "d") if shape is None else shape.width
    given = as_matrix(coefficients, "coefficients", 2)
    C = to_host(given)
    p = feature_count(d) if shape is None else shape.entries * shape.query
    if C.shape[1] != p or len(C) == 0:
        what = f"d = {d}" if shape is None else f"states ({shape})"
        raise ValueError(f"coefficients: shape (d_out, {p}) is needed for {what}, got {C.shape}")
    if not isinstance(method, str) or method not in METHODS:
        raise ValueError(f"method: must be one of {', '.join(METHODS)}, got {method!r}")
    if max_heads is not None:
        max_heads = as_size(max_heads, "max_heads")
    if tol is None:
        tol = TOLERANCE if method == "minimal" else svd_tolerance(len(C), d)
    elif isinstance(tol, bool) or not isinstance(tol, int | float | np.number) or not 0 <= tol < 1:
        raise ValueError(f"tol: a number from 0 up to but not 1 is needed, got {tol!r}")
    if isinstance(noise, bool) or not isinstance(noise, int | float | np.number) or not noise >= 0:
        raise ValueError(f"noise: a number of at least 0 is needed, got {noise!r}")
    if method == "svd":
        wanted = Wanted("svd", float(tol), max_heads)
    else:
        why = f"the coefficients have noise of {noise:.1e} of their size"
        wanted = Wanted.with_noise(float(tol), float(noise), why, max_heads)
    with Bar(100, "heads", progress, unit="percents") as report:
        if shape is not None:
            return heads_of_states(C, shape, wanted, report).put(given)
        return heads_of(C, d, wanted, report).put(given)


def _as_shape(sizes: tuple[int, ...] | list[int]) -> StateShape:
    """Check (d_v, d_k, d_q)."""
    if len(sizes) != 3:
        raise ValueError(f"d: a number, or (d_v, d_k, d_q) for states, is needed, got {sizes!r}")
    d_v, d_k, d_q = (as_size(size, "d") for size in sizes)
    return StateShape((d_v, d_k), d_q)


@dataclass(frozen=True)
class Wanted:
    """Which heads of coefficients are wanted, and what may be spent on finding them."""

    method: Method
    tol: float
    """Relative; of the residual for "minimal", of singular values for "svd"."""
    max_heads: int | None = None
    flops: float | None = None
    """Flops of a search; None for :data:`linattn_fast.heads.search.FLOPS`."""
    noise: str = ""
    """Why only as many heads as arbitrary coefficients have are expected. Nothing is searched for
    then, but for a few hundred coefficients: heads are those that ranks give, or the SVD's."""

    @classmethod
    def with_noise(
        cls,
        tol: float,
        level: float,
        why: str,
        max_heads: int | None = None,
        flops: float | None = None,
    ) -> Wanted:
        """As few heads as reproduce coefficients with noise of a level, relative to their size.

        Far above the tolerance, the chance that few heads come within it is that of a point near a
        set of measure zero.
        """
        if level > _NOISE * tol:
            return cls("minimal", tol, max_heads, FLOPS_IF_DOUBTFUL, why)
        return cls("minimal", tol, max_heads, flops)

    @classmethod
    def of_fit(cls, method: str, d: int, solved: Solved, alpha: float) -> Wanted:
        """What to look for in the coefficients of a fit.

        Errors e of the targets y that are left leave, in the coefficients of p features from N
        samples, noise of about ||e|| / ||y|| sqrt(p / N), relatively; a ridge moves them by about
        ||e|| / ||y||.
        """
        solution, p = solved.solution, solved.solution.coefficients.shape[1]
        if method == "svd":
            return cls("svd", svd_tolerance(len(solution.coefficients), d))
        # What rounding may have added to the coefficients is not to be reproduced
        lost = np.sqrt(solved.condition) if solution.refinements else solved.condition
        tol = float(min(max(TOLERANCE, 10 * EPS * lost), _LARGEST_TOLERANCE))
        error, energy = solution.mean_squared_error, solved.mean_squared_target
        left = error / energy if energy > 0 else 0.0
        sure = left - solution.error_bound / energy if energy > 0 else 0.0
        level = math.sqrt(sure * min(1.0, p / solved.n_samples)) if sure > _EXACT_FIT else 0.0
        why = f"the fit left {left:.1e} of the targets' mean square"
        # Fewer samples than features are fitted exactly, whatever their targets
        told = solved.n_samples >= p or solution.coefficients.size <= QUICK
        exact = alpha == 0 and left <= _EXACT_FIT and told
        return cls.with_noise(tol, level, why, flops=None if exact else FLOPS_IF_DOUBTFUL)


def heads_of(C: Floats, d: int, wanted: Wanted, report: Progress = None) -> Heads:
    """Heads of checked coefficients on the host; see recover_heads."""
    minimal = wanted.method == "minimal"
    at_once = given_heads(C, d, wanted.tol, wanted.max_heads) if minimal else None
    if at_once is None:
        return _step_by_step(C, d, wanted, report)
    recovery = Recovery(
        "minimal",
        residual=at_once.residual,
        at_least=at_once.at_least,
        tried=(),
        fewer_leave=at_once.fewer_leave,
        reason=FEWEST,
        tolerance=at_once.tolerance,
    )
    return known_heads(at_once.V, at_once.Q, recovery)


@same_bits
@np.errstate(all="ignore")
def _step_by_step(C: Floats, d: int, wanted: Wanted, report: Progress) -> Heads:
    """Heads of coefficients, by ranks, a search or the SVD."""
    largest = float(np.abs(C).max())
    if largest == 0:
        recovery = Recovery(wanted.method, 0.0, 0, (), 0.0, "all coefficients are zero")
        return known_heads(np.zeros((1, len(C), d)), np.zeros((1, d, d)), recovery)
    # A power of four, so that nothing overflows and the square root for V and Q rounds nothing
    scale = math.ldexp(1.0, 2 * min(511, round(math.log2(largest) / 2)))
    if wanted.method == "minimal":
        budget = Budget(FLOPS if wanted.flops is None else wanted.flops, report)
        V, Q, recovery = _minimal(Ranks(C / scale, d, wanted.tol), wanted, budget)
    else:
        V, Q, recovery = _by_svd(Ranks(C / scale, d, TOLERANCE), wanted)
    root = math.sqrt(scale)
    return known_heads(V * root, Q * root, recovery)


@same_bits
@np.errstate(all="ignore")
def heads_of_states(C: Floats, shape: StateShape, wanted: Wanted, report: Progress = None) -> Heads:
    """Heads of coefficients (d_out, q d_q) of states, on the host.

    A symmetric memory (d, d) loses what S loses, so its heads are found as those of tokens with
    max(d, d_q) coordinates. Zeros in the place of those that do not exist change nothing: of heads
    of the larger layer, cut, the coefficients that exist are the same.
    """
    if not shape.symmetric:
        return rectangular_heads(C, shape, wanted.method, wanted.tol, wanted.max_heads)
    d, d_q, d_out = shape.memory[0], shape.query, len(C)
    if d == d_q:
        return heads_of(C, d, wanted, report)
    size = max(d, d_q)
    full = np.zeros((d_out, pair_count(size), size))
    j, k = np.triu_indices(d)
    full[:, pair_table(size)[j, k], :d_q] = C.reshape(d_out, len(j), d_q)
    heads = heads_of(full.reshape(d_out, -1), size, wanted, report)
    return known_heads(heads.V[:, :, :d], heads.Q[:, :d, :d_q], heads.recovery)


_Found: TypeAlias = tuple[Floats, Floats, Recovery]
"""V (H, d_out, d), Q (H, d, d), and how they were found."""


def _by_svd(ranks: Ranks, wanted: Wanted) -> _Found:
    """The heads of the SVD whose singular values are above the tolerance."""
    factors = svd_factors(ranks.C, ranks.d)
    count = svd_count(factors[1], wanted.tol)
    if wanted.max_heads is not None:
        count = min(count, wanted.max_heads)
    return _reported(ranks, "svd", svd_heads(factors, count), "asked for", by_svd=True)


def _minimal(ranks: Ranks, wanted: Wanted, budget: Budget) -> _Found:
    """The fewest heads that were found to reproduce the coefficients."""
    most = min(len(ranks.C) * ranks.d, ranks.d**2)  # the SVD has no more
    # The likely answer first: where ranks give the heads, neither search nor SVD is needed
    likely = ranks.least < most and (wanted.max_heads is None or ranks.least <= wanted.max_heads)
    ends = _by_ranks(ranks, budget) if likely and ranks.given == ranks.least else []
    if ends and ends[0].error <= ranks.threshold:
        best = _polished(ranks, ends[0], budget)
        return _reported(ranks, "minimal", best, FEWEST)
    return _searched(Search(ranks, budget, ends), wanted, likely)


def _by_ranks(ranks: Ranks, budget: Budget) -> list[Descent]:
    """Heads that ranks give, brought to rounding where they are near; the nearest first."""
    ends: list[Descent] = []
    for V, Q in ranks.spans():
        error = norm(head_coefficients(V, Q) - ranks.C)
        near = ranks.rounding < error <= _PROMISING * ranks.size
        ends.append(ranks.nearest(V, Q, budget) if near else Descent(V, Q, error))
        if ends[-1].error <= ranks.threshold or budget.spent:
            break
    return sorted(ends, key=lambda end: end.error)


def _searched(search: Search, wanted: Wanted, likely: bool) -> _Found:
    """The fewest heads that a search finds; the fewest possible come first where ``likely``."""
    ranks = search.ranks

    def enough(number: int) -> _Found:
        best = _polished(ranks, search.found[number], search.budget)
        return _reported(ranks, "minimal", best, search.why(number), search.found)

    tried = search.affords(ranks.least) and (not wanted.noise or search.may_fit_anything)
    if likely and tried and search.attempt(ranks.least):
        return enough(ranks.least)
    complete = search.svd_count
    limit = complete if wanted.max_heads is None else min(complete, wanted.max_heads)
    by_svd = svd_heads(search.factors, complete)
    if complete <= min(ranks.least, limit):
        reason = "the SVD has no more than are needed"
        return _reported(ranks, "minimal", by_svd, reason, search.found, by_svd=True)
    number = search.smallest(min(limit, complete - 1)) if tried else None
    if number is None and complete - 1 in search.found:
        number = search.fewer_than(complete)
    if number is None and limit == complete:
        number = search.finish(Budget(_POLISH * search.budget.total))
    if number is not None:
        return enough(number)
    if limit < complete:
        search.attempt(limit)
        best = search.found[limit]
        return _reported(ranks, "minimal", (best.V, best.Q), search.why_not(limit), search.found)
    reason = search.why_none(complete) if tried else search.why_not_tried(complete, wanted.noise)
    return _reported(ranks, "svd", by_svd, reason, search.found, by_svd=True)


def _polished(ranks: Ranks, best: Descent, searched: Budget) -> tuple[Floats, Floats]:
    """Heads brought to rounding, where the budget of the search ended before."""
    budget = Budget(_POLISH * searched.total)
    while best.error > ranks.rounding and not budget.spent:
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
    *,
    by_svd: bool = False,
) -> _Found:
    """Heads in normal form, with how they were found."""
    if ranks.one_output and not by_svd:
        heads = smallest_queries(*heads)
    V, Q = svd_normal_form(*heads) if by_svd else normal_form(*heads)
    tried = sorted((H, end.error / ranks.size) for H, end in (found or {}).items())
    recovery = Recovery(
        method,
        residual=norm(head_coefficients(V, Q) - ranks.C) / ranks.size,
        at_least=ranks.least,
        tried=tuple(each for each in tried if each[0] != len(heads[0])),
        fewer_leave=ranks.residual_of_fewer(len(V) - 1) / ranks.size,
        reason=reason,
        tolerance=ranks.tolerance,
    )
    return V, Q, recovery
