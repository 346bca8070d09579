"""The shortest coefficients with given outputs, and a ridge among them, whatever the units.

Let V (p, r) be orthonormal and span what the data determines of the equilibrated features H D,
D = diag(2^k): outputs depend on coefficients x through a = V' D^-1 x alone. Two questions are
answered in the caller's units, in which x is long or short:

    the shortest x with V' D^-1 x = a         x = K a,   K = D^-1 V (V' D^-2 V)^-1      (p, r)
    the ridge, min |diag(s) a - c|^2 + alpha |K a|^2,    of full rank r

Directions that the data does not have are not in K, so they never see the ridge, and alpha -> 0
tends to the solution of least norm.

Features may differ in size by more digits than a float has. K then needs care: rounding in V of a
large feature would outweigh all of a small one. So features are taken from the largest down, level
by level, and what a level leaves of V within rounding is set to zero there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import lu_factor, lu_solve, qr, solve_triangular

from ..arrays.types import Floats

_LEVEL = 2.0**10
"""Largest ratio of the scales of two features of one level."""
_ALIKE = 1e-6
"""Ratio of singular values of K above which the smaller is known to many digits."""
_NOTHING = 8 * float(np.finfo(np.float64).eps)
"""Errors of M' D^-1 K, over p, that are left as they are."""
_MOST_CORRECTIONS = 20
"""More than enough for the range of float64, at 16 digits each."""


@dataclass(frozen=True)
class Lift:
    """K = turned turn', so that each column of ``turned`` has a size of its own."""

    turned: Floats
    """K turn, (p, r): D times numbers near one."""
    turn: Floats
    """An orthogonal matrix, (r, r)."""

    def __call__(self, a: Floats) -> Floats:
        """The product K a for a (r, m)."""
        return self.turned @ (self.turn.T @ a)


def shortest_lift(vectors: Floats, scale: Floats, noise: float) -> Lift:
    """The map K of orthonormal V (p, r) and the diagonal of D (p,), all on the host.

    ``noise`` is what rounding may have added to V. Features that V does not have, such as those
    that are always zero, get no coefficient.
    """
    p, r = vectors.shape
    if r == p:
        return Lift(np.diag(scale), np.ascontiguousarray(vectors.T))
    turned, turn = np.zeros((p, r)), np.eye(r)
    present = np.sqrt((vectors**2).sum(axis=1)) > noise
    V, D = vectors[present], scale[present]
    if D.min() == D.max():
        turned[present] = D[:, None] * V
    else:
        turned[present], turn = _graded_lift(V, D, noise)
    return Lift(turned, turn)


def _graded_lift(vectors: Floats, scale: Floats, noise: float) -> tuple[Floats, Floats]:
    """The matrices K turn and turn, of features that V has.

    With M = V turn and Y = D^-1 M F, F the levels, K turn = Y (Y'Y)^-1 F. Rounding of a small
    feature's column is large for a large feature; each correction takes a factor eps from it.
    """
    order = np.argsort(scale, kind="stable")  # from the largest feature down
    D = scale[order, None]
    M, turn, F, basic = _staircase(vectors[order], D[:, 0], noise)
    Y = M * (F / D)  # columns of length near one, zeros above their level, small entries below
    T, columns = qr(Y, mode="r", pivoting=True, check_finite=False)
    T = T[: len(F)]

    def solved(b: Floats) -> Floats:
        """Solve Y'Y x = b."""
        inner = solve_triangular(T, b[columns], trans="T", check_finite=False)
        x = np.empty_like(b)
        x[columns] = solve_triangular(T, inner, check_finite=False)
        return x

    v = solved(np.diag(F))
    best, K = np.inf, Y @ v
    for _ in range(_MOST_CORRECTIONS):
        wrong = np.eye(len(F)) - M.T @ (Y @ v / D)  # of M' D^-1 K = I
        error = float(np.abs(wrong).max())
        if error < best:
            best, K = error, Y @ v
        wrong[np.abs(wrong) < len(D) * _NOTHING] = 0.0  # else its rounding spoils larger features
        if not (wrong.any() and np.isfinite(error)):
            break
        v += solved(F[:, None] * wrong)
    turned = np.empty(vectors.shape)
    turned[order] = _exact_in_basic(K, M, D, basic)
    return turned, turn


def _exact_in_basic(K: Floats, M: Floats, D: Floats, basic: list[int]) -> Floats:
    """K with the rows of the basic features solved for, so that M' D^-1 K = I to rounding.

    The matrix that is solved with is block triangular, and the zeros of the staircase keep the
    rounding of small features out of the columns of large ones.
    """
    rest = np.ones(len(K), dtype=bool)
    rest[basic] = False
    known = M[rest].T @ (K[rest] / D[rest])
    own = lu_factor(M[basic].T, check_finite=False)
    K[basic] = D[basic] * lu_solve(own, np.eye(len(known)) - known, check_finite=False)
    return K


def _staircase(
    vectors: Floats, D: Floats, noise: float
) -> tuple[Floats, Floats, Floats, list[int]]:
    """Turn V from the right, so that each column is zero above its level.

    Rows are sorted from the largest feature down. Returns V turn (p, r), turn (r, r), the level of
    each column, as an entry of D, (r,), and r rows that determine all columns.
    """
    p, r = vectors.shape
    stairs, turn = vectors.copy(), np.eye(r)
    levels, basic, done, first = np.ones(r), list[int](), 0, 0
    while done < r:
        last = int(np.searchsorted(D, D[first] * _LEVEL, "right"))
        U, sizes, Wt = np.linalg.svd(stairs[first:last, done:])
        # Whatever the last level leaves has to be determined there
        rank = r - done if last == p else int((sizes > noise).sum())
        stairs[:, done:] = stairs[:, done:] @ Wt.T
        turn[:, done:] = turn[:, done:] @ Wt.T
        stairs[first:last, done + rank :] = 0.0
        if rank:
            pivots = qr(U[:, :rank].T, mode="r", pivoting=True, check_finite=False)[1]
            basic += [first + int(i) for i in pivots[:rank]]
        levels[done : done + rank] = D[first]
        done, first = done + rank, last
    return stairs, turn, levels, basic


@dataclass(frozen=True)
class RidgeTriangle:
    """The ridge among what is determined: [diag(s) turn; sqrt(alpha) K turn] diag(2^k) = Q T.

    Rows go from the largest down and columns are pivoted, so QR errs in each row relative to that
    row: neither a ridge far above the data nor one far below it loses the other.
    """

    lift: Lift
    triangle: Floats
    """The triangle T, (r, r)."""
    columns: npt.NDArray[np.intp]
    """The order of T's columns."""
    exponents: npt.NDArray[np.int64]
    """The exponents k, (r,)."""
    condition: float
    """Bound on the condition number of diag(s^2) + alpha K'K, its columns brought to one length."""

    def solve(self, b: Floats) -> Floats:
        """Solve for b (p, m): x = K (diag(s^2) + alpha K'K)^-1 K'b."""
        scaled = (np.ldexp(self.lift.turned, self.exponents).T @ b)[self.columns]
        inner = solve_triangular(self.triangle, scaled, trans="T", check_finite=False)
        return self.lifted(solve_triangular(self.triangle, inner, check_finite=False))

    def lifted(self, inner: Floats) -> Floats:
        """The coefficients x of T's own coordinates (r, m)."""
        a = np.empty_like(inner)
        a[self.columns] = inner
        # The columns of K first: they may be as large as a is small
        return np.asarray(np.ldexp(self.lift.turned, self.exponents) @ a)


def ridge_among(s: Floats, lift: Lift, alpha: float, c: Floats) -> tuple[Floats, RidgeTriangle]:
    """Minimise |diag(s) a - c|^2 + alpha |K a|^2 for c (r, m); return x = K a and the triangle."""
    mantissa, exponent = np.frexp(np.sqrt(alpha))
    data, K = s[:, None] * lift.turn, mantissa * lift.turned
    # sqrt(alpha) K might overflow on its own, so its exponent joins that of the columns
    with np.errstate(divide="ignore"):
        sizes = np.maximum(
            np.log2(np.abs(data).max(axis=0)), np.log2(np.abs(K).max(axis=0)) + exponent
        )
    exponents = -np.rint(sizes).astype(np.int64)
    stacked = np.concatenate([np.ldexp(data, exponents), np.ldexp(K, exponent + exponents)])
    order = np.argsort(-np.abs(stacked).max(axis=1), kind="stable")
    targets = np.concatenate([c, np.zeros((len(K), c.shape[1]))])[order]
    Q, T, columns = qr(stacked[order], mode="economic", pivoting=True, check_finite=False)
    found = RidgeTriangle(lift, T, columns, exponents, _condition(s, lift, alpha))
    return found.lifted(solve_triangular(T, Q.T @ targets, check_finite=False)), found


def _condition(s: Floats, lift: Lift, alpha: float) -> float:
    """The condition number of diag(s^2), or with the ridge if that is better."""
    data = float((s.max() / s.min()) ** 2)
    sizes = np.linalg.svd(lift.turned / np.abs(lift.turned).max(), compute_uv=False)
    if not sizes[-1] > _ALIKE * sizes[0]:  # no digits of the smallest are certain
        return data
    with np.errstate(over="ignore"):
        least, most = (alpha * (np.abs(lift.turned).max() * size) ** 2 for size in sizes[[-1, 0]])
    if not np.isfinite(most):
        return data
    return min(data, float((s.max() ** 2 + most) / (s.min() ** 2 + least)))
