"""Whether two sets of heads are the same, up to the changes that leave a layer as it is.

Two kinds of change leave sum_h V_h (x) Q_h, and with it the layer, as it is:

    permutation and scale    V_h, Q_h -> c_h V_s(h), Q_s(h) / c_h
    mixing                   V_h, Q_h -> sum_g A[h,g] V_g, sum_g A^-T[h,g] Q_g    A invertible

The first is a special case of the second. Beyond both, heads may differ in the (j,k)-antisymmetric
part that does not reach the output; then only the coefficients tell that the layers agree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from ..arrays.types import Floats
from ..system.machine import same_bits
from .heads import Heads


@dataclass(frozen=True, eq=False)
class HeadMatch:
    """How heads b are aligned to heads a, and what remains. Made by :func:`match_heads`."""

    permutation: tuple[int, ...]
    """Head ``permutation[h]`` of b goes with head h of a."""
    scales: Floats
    """(H,): a's V_h is about scales[h] times that of b, and its Q_h that of b over scales[h]."""
    scaled_distance: float
    """What remains after permutation and scale, relative: the norm of the differences of
    V_h (x) Q_h over that of a's."""
    mixing: Floats
    """(H, H): a's V is about mixing V of b, and its Q about mixing^-T Q of b."""
    value_distance: float
    """Relative distance of the values: ||V of a - mixing V of b|| over ||V of a||."""
    query_distance: float
    """Relative distance of the queries: ||Q of a - mixing^-T Q of b|| over ||Q of a||."""
    mixed_distance: float
    """What remains after mixing: ||sum_h V_h (x) Q_h of a - that of b|| over that of a. 0 exactly
    when a mixing makes the heads equal."""
    distance: float
    """Relative distance of the coefficients, in the Frobenius norm: 0 for layers that agree."""

    def __str__(self) -> str:
        return (
            f"relative distance {self.scaled_distance:.2g} after permutation and scale, "
            f"{self.mixed_distance:.2g} after mixing, {self.distance:.2g} as functions"
        )


def _relative(difference: float, size: float) -> float:
    """The difference over the size; as it is where the size is zero."""
    return difference / size if size > 0 else difference


def _scales(a: Heads, b: Heads) -> Floats:
    """Scales c with c V_b near V_a and Q_b / c near Q_a; exact for heads that differ by a scale."""
    sizes = [np.linalg.norm(F.reshape(len(F), -1), axis=1) for F in (a.V, b.V, b.Q, a.Q)]
    V_a, V_b, Q_b, Q_a = sizes
    with np.errstate(divide="ignore", invalid="ignore"):
        c = np.sqrt((V_a / V_b) * (Q_b / Q_a))  # agrees with V_a / V_b where the products agree
    c = np.where(np.isfinite(c) & (c > 0), c, 1.0)
    sign = np.einsum("haj,haj->h", a.V, b.V)
    return np.asarray(np.where(sign < 0, -c, c))


def _products(a: Heads, b: Heads) -> Floats:
    """Inner products <V_h (x) Q_h of a, V_g (x) Q_g of b>, (H_a, H_b)."""
    values = a.V.reshape(len(a), -1) @ b.V.reshape(len(b), -1).T
    queries = a.Q.reshape(len(a), -1) @ b.Q.reshape(len(b), -1).T
    return np.asarray(values * queries)


def _mixing(a: Heads, b: Heads) -> Floats:
    """The mixing A with A V_b near V_a and A^-T Q_b near Q_a.

    Least squares for V gives one A, for Q another; the same where the heads do mix into each other.
    Their mean weighs both.
    """
    V = np.linalg.lstsq(b.V.reshape(len(b), -1).T, a.V.reshape(len(a), -1).T, rcond=None)[0].T
    Q = np.linalg.lstsq(b.Q.reshape(len(b), -1).T, a.Q.reshape(len(a), -1).T, rcond=None)[0]
    return np.asarray((V + np.linalg.pinv(Q)) / 2)


@same_bits
def match_heads(a: Heads, b: Heads) -> HeadMatch:
    """Align heads b to heads a, up to permutation and scale and up to mixing.

    Parameters
    ----------
    a, b
        Heads of one shape; as many of each (:meth:`Heads.normalized` merges heads that repeat).

    Returns
    -------
    HeadMatch
        The alignments, and what remains after each.

    Examples
    --------
    >>> import numpy as np, linattn_fast as la
    >>> rng = np.random.default_rng(0)
    >>> a = la.Heads(rng.standard_normal((2, 3, 3)), rng.standard_normal((2, 3, 3)))
    >>> b = la.Heads(-2 * a.V[::-1], a.Q[::-1] / -2)
    >>> match = la.match_heads(a, b)
    >>> match.permutation, match.scales.round(12), match.scaled_distance < 1e-14
    ((1, 0), array([-0.5, -0.5]), True)
    """
    for name, heads in (("a", a), ("b", b)):
        if not isinstance(heads, Heads):
            raise TypeError(f"{name}: Heads are needed, got {type(heads).__name__}")
    if (b.V.shape, b.Q.shape) != (a.V.shape, a.Q.shape):
        raise ValueError(f"b: as a is {a!r}, so must b be, got {b!r}")
    between = _products(a, b)
    # ||V (x) Q of a - that of b||^2 for every pair of heads: the assignment of least sum
    squares = np.diag(_products(a, a))[:, None] + np.diag(_products(b, b)) - 2 * between
    order = linear_sum_assignment(squares)[1]
    aligned = Heads(b.V[order], b.Q[order])
    mixing = _mixing(a, b)
    V = np.tensordot(mixing, b.V, axes=(1, 0))
    Q = np.tensordot(np.linalg.pinv(mixing).T, b.Q, axes=(1, 0))
    return HeadMatch(
        permutation=tuple(int(g) for g in order),
        scales=_scales(a, aligned),
        scaled_distance=_scaled_distance(a, aligned),
        mixing=mixing,
        value_distance=_relative(float(np.linalg.norm(a.V - V)), float(np.linalg.norm(a.V))),
        query_distance=_relative(float(np.linalg.norm(a.Q - Q)), float(np.linalg.norm(a.Q))),
        mixed_distance=_mixed_distance(a, b),
        distance=_relative(a.distance(b), float(np.linalg.norm(a.coefficients()))),
    )


def _outer(heads: Heads) -> Floats:
    """The matrix sum_h V_h (x) Q_h, (d_out d, d d)."""
    return np.asarray(heads.V.reshape(len(heads), -1).T @ heads.Q.reshape(len(heads), -1))


def _mixed_distance(a: Heads, b: Heads) -> float:
    """The distance of sum_h V_h (x) Q_h, which no mixing changes."""
    W = _outer(a)
    return _relative(float(np.linalg.norm(W - _outer(b))), float(np.linalg.norm(W)))


def _scaled_distance(a: Heads, b: Heads) -> float:
    """The distance head by head, without the cancellation of inner products."""
    pairs = [(_outer(a[h : h + 1]), _outer(b[h : h + 1])) for h in range(len(a))]
    difference = np.sqrt(sum(float(np.sum((x - y) ** 2)) for x, y in pairs))
    return _relative(float(difference), float(np.sqrt(sum(float(np.sum(x**2)) for x, _ in pairs))))
