"""What ranks say about the heads behind coefficients: how many at least, and often which.

Only T[a,j,k,l], the sum over heads of V[a,j] Q[k,l] symmetrised in (j,k), reaches the output. Two
contractions of it have a rank of at most the number of heads H, whatever the heads are:

    M(x)[a,l] = T x x = sum_h (V_h x) (Q_h' x)'             d_out x d     rank            <= H
    B(u,c)[j,k] = T u c = sum_h sym (V_h' u) (Q_h c)'       d x d         eigenvalues of
                                                                          either sign     <= H

For unit vectors a change of the coefficients by e moves singular values and eigenvalues by at most
e, so values above the tolerance count for every approximation within the tolerance. They are
computed with rounding of their own, which is added to the tolerance, and taken off what fewer heads
leave (:func:`rounding`).

Where M(x) has rank H less than d_out, its columns span the V_h x, so V in the span of the V_h means

    (I - U U') V x = 0   for every x,    U = an orthonormal basis of the columns of M(x)

which is linear in V: enough points x leave, in general, nothing but that span. Likewise for Q and
the rows, where H is less than d. No search is needed then.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import eigh

from ..arrays.types import Floats
from ..features.features import pair_count, pair_table
from ..linalg.factors import EPS

_POINTS = 16
_SEED = 2410
_GAP = 0.1
"""Ratio of neighbouring singular values that random coefficients hardly have."""


def split_evenly(C: Floats, d: int) -> Floats:
    """T (d_out, d, d, d) of coefficients (d_out, p): what (j,k) and (k,j) share, half to each."""
    halves = np.where(np.eye(d, dtype=bool), 1.0, 0.5)
    return np.asarray(C.reshape(len(C), -1, d)[:, pair_table(d)] * halves[:, :, None])


def _units(count: int, d: int) -> Floats:
    """Fixed points on the unit sphere, (count, d)."""
    x = np.random.default_rng(_SEED).standard_normal((count, d))
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))


def contract_pairs(C: Floats, x: Floats) -> Floats:
    """M(x) for x (m, d): (m, d_out, d)."""
    d = x.shape[1]
    j, k = np.triu_indices(d)
    products = x[:, j] * x[:, k]  # the coefficient of j < k is 2 T already
    return np.asarray(np.einsum("mu,aul->mal", products, C.reshape(len(C), -1, d), optimize=True))


def contract_outputs(C: Floats, d: int) -> Floats:
    """B(u,c) at fixed points, (m, d, d)."""
    u, c = _units(_POINTS, len(C)), _units(_POINTS, d)
    T = np.einsum("ma,aul,ml->mu", u, C.reshape(len(C), pair_count(d), d), c, optimize=True)
    halves = np.where(np.eye(d, dtype=bool), 1.0, 0.5)
    return np.asarray(T[:, pair_table(d)] * halves)


def rounding(C: Floats, d: int) -> float:
    """What singular values of M(x) and eigenvalues of B(u,c) err by at most, as computed here.

    A sum of n products errs by n eps of the lengths of its factors, which are ||C|| and at most
    one; an SVD or eigendecomposition by a few times its size, taken as ten.
    """
    terms = pair_count(d) + d + len(C)
    return float((terms + 10 * (d + len(C))) * EPS * np.linalg.norm(C))


def rank_of_pairs(C: Floats, d: int, threshold: float) -> int:
    """Largest rank of M(x) over fixed points, counting singular values above the threshold."""
    sigma = np.linalg.svd(contract_pairs(C, _units(_POINTS, d)), compute_uv=False)
    return int((sigma > threshold).sum(axis=1).max())


def inertia_of_outputs(C: Floats, d: int, threshold: float) -> int:
    """Most eigenvalues of one sign, beyond the threshold, of B(u,c) over fixed points."""
    values = np.linalg.eigvalsh(contract_outputs(C, d))
    signs = [(values > threshold).sum(axis=1), (values < -threshold).sum(axis=1)]
    return int(np.max(signs))


def least_heads(C: Floats, d: int, threshold: float) -> int:
    """A number of heads that no approximation within the threshold can do without."""
    above = threshold + rounding(C, d)
    return max(rank_of_pairs(C, d, above), inertia_of_outputs(C, d, above))


def rank_before_gap(C: Floats, d: int) -> int | None:
    """Singular values of M(x) before the widest gap, if it is wide; None if there is none."""
    sigma = np.linalg.svd(contract_pairs(C, _units(_POINTS, d)), compute_uv=False)
    typical = np.median(sigma, axis=0)
    if len(typical) < 2:
        return None
    ratios = typical[1:] / np.maximum(typical[:-1], np.finfo(np.float64).tiny)
    widest = int(ratios.argmin())
    return widest + 1 if ratios[widest] < _GAP else None


def residual_of_fewer(C: Floats, d: int, H: int) -> float:
    """What H heads leave of C at least: the singular values of M(x) after the first H.

    0 when ranks do not tell, or rounding hides it.
    """
    sigma = np.linalg.svd(contract_pairs(C, _units(_POINTS, d)), compute_uv=False)
    values = np.linalg.eigvalsh(contract_outputs(C, d))
    signs = np.concatenate([np.sort(np.maximum(s, 0))[:, ::-1] for s in (values, -values)])
    rest = [np.sqrt((x[:, H:] ** 2).sum(axis=1)).max(initial=0.0) for x in (sigma, signs)]
    # Each of at most d or d_out values errs by that much
    return max(0.0, float(max(rest)) - float(np.sqrt(max(d, len(C)))) * rounding(C, d))


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
    most, needed = min(d_out * d, d * d), d_out * pair_count(d) * d
    return next((H for H in range(1, most) if free_entries(H, d, d_out) >= needed), most)


def _span(M: Floats, x: Floats, H: int) -> Floats:
    """Basis (H, n, d) of the matrices F with F x in the columns of M(x) (n, .) at every x."""
    m, n, _ = M.shape
    d = x.shape[1]
    left = np.linalg.svd(M)[0][:, :, H:]  # orthogonal to the columns
    P = (left @ left.transpose(0, 2, 1)).reshape(m, n * n)
    X = (x[:, :, None] * x[:, None, :]).reshape(m, d * d)
    K = (P.T @ X).reshape(n, n, d, d).transpose(0, 2, 1, 3).reshape(n * d, n * d)
    _, vectors = eigh(K, subset_by_index=(0, H - 1), check_finite=False)
    return np.ascontiguousarray(vectors.T).reshape(H, n, d)


def _points_needed(H: int, n: int, d: int) -> int:
    """Twice as many as there are unknowns, n d, over the equations of a point, n - H."""
    return 2 * (n * d) // (n - H) + d


def span_of_values(C: Floats, d: int, H: int) -> Floats | None:
    """V (H, d_out, d) from the columns of M(x); None where they say nothing."""
    if len(C) <= H or d < H:
        return None
    x = _units(_points_needed(H, len(C), d), d)
    return _span(contract_pairs(C, x), x, H)


def span_of_queries(C: Floats, d: int, H: int) -> Floats | None:
    """Q (H, d, d) from the rows of M(x); None where they say nothing."""
    if d <= H or len(C) < H:
        return None
    x = _units(_points_needed(H, d, d), d)
    spans = _span(contract_pairs(C, x).transpose(0, 2, 1), x, H)  # F = Q'
    return np.ascontiguousarray(spans.transpose(0, 2, 1))
