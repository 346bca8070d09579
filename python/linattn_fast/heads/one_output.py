"""Heads of a single output by linear algebra: at most half as many as there are coordinates.

With one output V_h is a vector v_h, and B(c) = sum_h sym v_h (Q_h c)' is a d x d matrix for each
query c (:mod:`linattn_fast.heads.contractions`), with up to H eigenvalues of either sign. What is
sought is the span of the v_h; Q follows by least squares.

**Fewer than d/2 heads.** B(c) has rank 2H < d, and its range holds all v_h, whatever c is. So their
span is what the ranges at several c have in common, in general. It is orthogonal to all null
vectors of B(c): with orthonormal bases N_i of these, the last left singular vectors of
[N_1, .., N_m].

**d/2 heads.** B(c) has full rank. Orthogonal to the v_h is a subspace W of half the dimension on
which every B(c) vanishes. B(c) maps W to the span of the v_h, so N = B(c1)^-1 B(c2) maps W to W:

    N = [ A   * ]  with A' similar to D, so that  det (t - N) = p(t)^2,   p(N) = [ 0  * ]
        [ 0   D ]                                                                [ 0  0 ]

in a basis that begins with W. In general p(N) has rank H, and its rows span the v_h. The
coefficients of p come from traces: half of tr N^k are the power sums of its roots.
"""

from __future__ import annotations

import numpy as np

from ..arrays.types import Floats

_TIMES = 3
"""Equations over unknowns, at the least."""
_SINGULAR = 1e-12
"""Smallest eigenvalue over the largest of a matrix that is not divided by."""


def queries_needed(H: int, d: int) -> int:
    """Number of queries c whose ranges determine the span of the v_h, for H < d/2.

    Each rules out d - 2H of d - H dimensions.
    """
    return -(-_TIMES * (d - H) // (d - 2 * H))


def values_in_ranges(vectors: Floats, H: int) -> Floats:
    """V (H, 1, d) from the eigenvectors of B(c), (m, d, d), for H < d/2."""
    d = vectors.shape[1]
    # Eigenvalues ascend: those in the middle are zero
    null = vectors[:, :, H : d - H].transpose(1, 0, 2).reshape(d, -1)
    outside, _, _ = np.linalg.svd(null, full_matrices=False)
    return np.ascontiguousarray(outside[:, d - H :].T)[:, None]


def values_by_pencils(B: Floats, eigenvalues: Floats) -> Floats | None:
    """V (d/2, 1, d) from B(c), (m, d, d), and its eigenvalues, (m, d); None for singular B(c)."""
    m, d, _ = B.shape
    H = d // 2
    sizes = np.abs(eigenvalues)
    smallest = sizes.min(axis=1)
    base = int(smallest.argmax())  # the farthest from singular
    if smallest[base] <= _SINGULAR * sizes.max():
        return None
    N = np.linalg.solve(B[base], B[np.arange(m) != base])
    # Of mean eigenvalue zero and norm one: less cancels in p, and no power overflows
    N -= (_traces(N) / d)[:, None, None] * np.eye(d)
    p = _root_of_characteristic(_of_norm_one(N), H)
    _, _, rows = np.linalg.svd(_of_norm_one(p).reshape(-1, d), full_matrices=False)
    return np.ascontiguousarray(rows[:H])[:, None]


def _root_of_characteristic(N: Floats, H: int) -> Floats:
    """The polynomial p(N), (m, 2H, 2H), with p(t)^2 = det (t - N).

    Newton's identities: p(t) = sum_k (-1)^k e_k t^(H-k),  k e_k = sum_i (-1)^(i-1) e_(k-i) s_i,
    s_i = tr N^i / 2 the sum of the i-th powers of the roots.
    """
    powers, sums, e = [np.eye(2 * H), N], [_traces(N) / 2], [np.ones(len(N)), _traces(N) / 2]
    for k in range(2, H + 1):
        powers.append(powers[-1] @ N)
        sums.append(_traces(powers[-1]) / 2)
        e.append(sum((-1) ** (i - 1) * e[k - i] * sums[i - 1] for i in range(1, k + 1)) / k)
    terms = ((-1) ** k * e[k][:, None, None] * powers[H - k] for k in range(H + 1))
    return np.asarray(sum(terms))


def _traces(N: Floats) -> Floats:
    """The traces (m,) of matrices (m, n, n)."""
    return np.asarray(np.einsum("mii->m", N))


def _of_norm_one(N: Floats) -> Floats:
    """Matrices (m, n, n), each divided by its norm; zero stays zero."""
    sizes = np.sqrt(np.einsum("mij,mij->m", N, N))[:, None, None]
    return np.asarray(N / np.maximum(sizes, np.finfo(np.float64).tiny))
