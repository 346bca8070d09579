"""Heads of several outputs by linear algebra: one factor is the span that columns of M(x) show.

Where M(x) = sum_h (V_h x) (Q_h' x)' (n x k, :mod:`linattn_fast.heads.contractions`) has rank H < n,
its columns span the V_h x. So with U(x) an orthonormal basis of them,

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
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..arrays.types import Floats
from ..linalg.cholesky import cholesky_in_place, cholesky_solve
from .contractions import at_squares, beside, unit_points

_TIMES = 2
"""Equations in X over unknowns, at the least."""


class Columns(NamedTuple):
    """M(x) at points, by their SVDs."""

    points: Floats
    """(m, d)."""
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
    weights = np.eye(H) - Gt @ G
    squares = (x[:, :, None] * x[:, None, :]).reshape(m, d * d)
    matrix = (squares.T @ weights.reshape(m, H * H)).reshape(d, d, H, H)  # (j, i, g, h)
    # X(x0) = I, as one more point whose weights are one
    right += np.outer(x0, np.eye(H))
    matrix += np.multiply.outer(np.outer(x0, x0), np.eye(H))
    factor, failed = cholesky_in_place(
        np.ascontiguousarray(matrix.transpose(0, 2, 1, 3)).reshape(d * H, d * H)
    )
    if failed:
        return None
    X = cholesky_solve(factor, right.reshape(d * H, H)).reshape(d, H, H)
    return np.ascontiguousarray((N + U0 @ X).transpose(2, 1, 0))
