"""From coefficients back to heads: as few as possible, or by an SVD.

Only the (j,k)-symmetrised sum of V_h[a,j] Q_h[k,l] reaches the output, so heads are not unique, and
the antisymmetric part can be chosen to need as few of them as possible: a search
(:mod:`linattn_fast.heads.search`). Split evenly, it is an SVD away from heads, but from many.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from ..arrays.device import to_host
from ..arrays.floats import as_matrix
from ..arrays.types import Floats
from ..features.features import feature_count
from ..system.arguments import as_size
from ..system.machine import same_bits
from .heads import Heads
from .recovery_report import Recovery
from .search import Search, svd_tolerance
from .starts import svd_count, svd_heads

Method: TypeAlias = Literal["minimal", "svd"]
METHODS: tuple[Method, ...] = ("minimal", "svd")

TOLERANCE = 1e-9
"""Relative residual up to which coefficients count as reproduced."""
FLOPS_IF_INEXACT = 5e7
"""What the search may spend where the fit left errors: its coefficients have noise, which only many
heads have."""


def _minimal(search: Search, max_heads: int | None) -> Heads:
    """The fewest heads that were found to have the coefficients C."""
    C, d = search.C, search.d
    most = min(len(C) * d, d * d)  # the SVD has no more
    allowed = search.least < most and (max_heads is None or search.least <= max_heads)
    # The likely answer first: where ranks give the heads, the SVD is not needed
    if allowed and search.attempt(search.least):
        return search.report("minimal", search.polished(search.least), search.why(search.least))
    complete = search.svd_count
    limit = complete if max_heads is None else min(complete, max_heads)
    by_svd = svd_heads(search.factors, complete)
    if complete <= min(search.least, limit):
        return search.report("minimal", by_svd, "the SVD has no more than are needed")
    number = search.smallest(min(limit, complete - 1))
    if number is None and complete - 1 in search.found:
        number = search.fewer_than(complete)
    if number is not None:
        return search.report("minimal", search.polished(number), search.why(number))
    if limit < complete:
        search.attempt(limit)
        best = search.found[limit]
        reason = (
            f"max_heads = {limit} are fewer than the {search.least} that are needed"
            if limit < search.least
            else f"no {limit} heads, which is max_heads, were found to reproduce the coefficients"
        )
        return search.report("minimal", (best.V, best.Q), reason)
    if complete - 1 in search.found:
        return search.report("svd", by_svd, "fewer were tried, and none was found")
    return search.report("svd", by_svd, search.why_none())


def _by_svd(search: Search, max_heads: int | None, tol: float) -> Heads:
    """The SVD's heads above the tolerance."""
    count = svd_count(search.factors[1], tol)
    if max_heads is not None:
        count = min(count, max_heads)
    return search.report("svd", svd_heads(search.factors, count), "asked for")


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
    return heads_of(C, d, method, max_heads, float(tol)).put(given)


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
