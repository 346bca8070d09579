"""One factor of the heads by linear algebra: the span that ranks of contractions show.

The contractions M(x) and B(c) are those of :mod:`linattn_fast.heads.contractions`. The other factor
follows by least squares.

**Several outputs.** Where M(x) = sum_h (V_h x) (Q_h' x)', n x k, has rank H < n, its columns span
the V_h x. So with U(x) an orthonormal basis of them,

    (I - U(x) U(x)') F x = 0     for every x and every F in the span of the V_h

Enough points leave, in general, nothing but that span. It has n d unknowns, but all except H d are
known from a single point x0. Heads may be mixed, so let A(x) = [V_1 x, .., V_H x] be U0 at x0:

    M(x0) = U0 S0 W0'     2 M(x0,y) = A(y) W0 S0 + U0 (..)
    A(y) = N(y) + U0 X(y),     N(y) = (I - U0 U0') 2 M(x0,y) W0 / S0,    X (H x H) linear in y

and X solves a least-squares problem, (I - U(x) U(x)') (N(x) + U0 X(x)) = 0 at the points, with
X(x0) = I. Its normal equations are H d x H d, for each of H columns:

    sum_x (I - G' G) X(x) x'  =  sum_x G' U(x)' N(x) x'        G = U(x)' U0

Transposed matrices M(x)' give the span of the Q_h', where H < d. Neither the matrix of H d x H d
nor its factorisation is more than an SVD of the coefficients takes: H <= min(d, d_out).

**One output, fewer than d/2 heads.** V_h is a vector v_h, and B(c) = sum_h sym v_h (Q_h c)' is a d
x d matrix for each query c, with up to H eigenvalues of either sign. B(c) has rank 2H < d, and its
range holds all v_h, whatever c is. So their span is what the ranges at several c have in common, in
general. It is orthogonal to all null vectors of B(c): with orthonormal bases N_i of these, the last
left singular vectors of [N_1, .., N_m].

**One output, d/2 heads.** B(c) has full rank. Orthogonal to the v_h is a subspace W of half the
dimension on which every B(c) vanishes. B(c) maps W to the span of the v_h, so N = B(c1)^-1 B(c2)
maps W to W:

    N = [ A   * ]  with A' similar to D, so that  det (t - N) = p(t)^2,   p(N) = [ 0  * ]
        [ 0   D ]                                                                [ 0  0 ]

in a basis that begins with W. In general p(N) has rank H, and its rows span the v_h. The
coefficients of p come from traces: half of tr N^k are the power sums of its roots.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..arrays.types import Floats
from ..linalg.cholesky import cholesky_in_place, cholesky_solve
from .contractions import at_squares, beside, unit_matrix, unit_points

_TIMES, _TIMES_ONE = 2, 3
"""Equations over unknowns, at the least: with several outputs, and with one."""
_SINGULAR = 1e-12
"""Smallest eigenvalue over the largest of a matrix that is not divided by."""


class Columns(NamedTuple):
    """M(x) at points, by their SVDs."""

    points: Floats
    """The points x, (m, d)."""
    left: Floats
    """Columns of M(x), (m, n, r)."""
    sizes: Floats
    """Singular values, the largest first, (m, r)."""
    right: Floats
    """Rows of M(x), (m, r, k)."""

    @classmethod
    def of(cls, C: Floats, count: int, d: int) -> Columns:
        """Those of coefficients at fixed points."""
        x = unit_points(count, d)
        return cls(x, *np.linalg.svd(at_squares(C, x), full_matrices=False))


def points_needed(H: int, n: int, d: int) -> int:
    """Number of points that determine X: each has min(H, n - H) equations for a column of it."""
    return -(-_TIMES * H * d // min(H, n - H))


def values_in(C: Floats, M: Columns, H: int) -> Floats | None:
    """V (H, d_out, d) from the columns of M(x); None where they do not determine it."""
    base = int(M.sizes[:, H - 1].argmax())  # where the smallest of H directions is largest
    near = beside(C, M.points[base]) @ (M.right[base, :H].T / M.sizes[base, :H])  # (d, d_out, H)
    return _span(M.points, M.left[:, :, :H], near, base)


def queries_in(C: Floats, M: Columns, H: int) -> Floats | None:
    """Q (H, d, d) from the rows of M(x); None where they do not determine it."""
    base = int(M.sizes[:, H - 1].argmax())
    scaled = M.left[base, :, :H] / M.sizes[base, :H]  # (d_out, H)
    near = beside(C, M.points[base]).transpose(0, 2, 1) @ scaled  # (d, d, H)
    F = _span(M.points, M.right[:, :H].transpose(0, 2, 1), near, base)  # F = Q'
    return None if F is None else np.ascontiguousarray(F.transpose(0, 2, 1))


def _span(x: Floats, U: Floats, near: Floats, base: int) -> Floats | None:
    """F (H, n, d) with F x in U(x), for U (m, n, H) and near 2 M(x0, e_j) W0 / S0, (d, n, H)."""
    m, n, H = U.shape
    d = x.shape[1]
    U0, x0 = U[base], x[base]
    N = near - U0 @ (U0.T @ near)  # N(e_j), (d, n, H)
    Ut = U.transpose(0, 2, 1)
    G = Ut @ U0  # (m, H, H)
    Gt = G.transpose(0, 2, 1)
    at_points = Ut @ (x @ N.reshape(d, n * H)).reshape(m, n, H)
    right = x.T @ (Gt @ at_points).reshape(m, H * H)  # (j, gh)
    identity = unit_matrix(H)
    weights = identity - Gt @ G
    squares = (x[:, :, None] * x[:, None, :]).reshape(m, d * d)
    matrix = (squares.T @ weights.reshape(m, H * H)).reshape(d, d, H, H)  # (j, i, g, h)
    # X(x0) = I, as one more point whose weights are one
    right += x0[:, None] * identity.reshape(-1)
    matrix += (x0[:, None] * x0)[:, :, None, None] * identity
    factor, failed = cholesky_in_place(
        np.ascontiguousarray(matrix.transpose(0, 2, 1, 3)).reshape(d * H, d * H)
    )
    if failed:
        return None
    X = cholesky_solve(factor, right.reshape(d * H, H)).reshape(d, H, H)
    return np.ascontiguousarray((N + U0 @ X).transpose(2, 1, 0))


# ------------------------------------------------------------------------------------- one output


def queries_needed(H: int, d: int) -> int:
    """Number of queries c whose ranges determine the span of the v_h, for H < d/2.

    Each rules out d - 2H of d - H dimensions.
    """
    return -(-_TIMES_ONE * (d - H) // (d - 2 * H))


def values_in_ranges(vectors: Floats, H: int) -> Floats:
    """V (H, 1, d) from the eigenvectors of B(c), (m, d, d), for H < d/2."""
    d = vectors.shape[1]
    # Eigenvalues ascend: those in the middle are zero
    null = vectors[:, :, H : d - H].transpose(1, 0, 2).reshape(d, -1)
    outside, _, _ = np.linalg.svd(null, full_matrices=False)
    return np.ascontiguousarray(outside[:, d - H :].T)[:, None]


def smallest_queries(V: Floats, Q: Floats) -> tuple[Floats, Floats]:
    """Heads (H, 1, d), (H, d, d) of one output with the smallest Q of all that give it.

    Q_h + sum_g A[h,g] v_g c' give the same output for every antisymmetric A and every c. For
    orthonormal v_h, the smallest Q are those whose products v_g' Q_h are symmetric in g and h.
    """
    v, mixing = np.linalg.qr(V[:, 0].T)  # (d, H), (H, H)
    Q = np.tensordot(mixing, Q, axes=1)
    products = v.T @ Q  # (h, g, l)
    Q = Q - v @ (0.5 * (products - products.transpose(1, 0, 2)))
    return np.ascontiguousarray(v.T)[:, None], Q


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
