"""The matrices F (n, d) that map each of many points x into a given subspace: a null space.

With U_i an orthonormal basis (n, H) of the subspace at the point x_i, these F are where

    K F = sum_i (I - U_i U_i') F x_i x_i'        an operator on matrices, n d x n d if written out

vanishes. Written out, its smallest eigenvalues take (n d)^3 flops: seconds at n = d = 64, and at
128 a matrix of 2 GB. Applied, it takes 4 n m (d + H) flops for m points. So a random G is split,

    G = (null space) + (range),    range part Y:  K Y = K G  by conjugate gradients from zero

and G - Y is a random element of the null space. With several times as many equations as unknowns,
K is well conditioned on its range, and some fifty steps bring Y to rounding. How many dimensions
the null space has shows in how many of a few more G - Y are independent, and K (G - Y) says whether
they are in it. Where nothing is left of G, there is no null space; where there is doubt, the matrix
is written out after all.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import eigh

from ..arrays.types import Floats

DENSE_UP_TO = 1100
"""Number of entries of F up to which the matrix of K is written out: some tenths of a second."""
_DENSE_AT_MOST = 4500
"""Number of entries of F up to which it is written out where the iteration is in doubt: 160 MB."""
_MORE = 3
"""Random matrices more than the null space is expected to have dimensions."""
_STEPS = 300
"""Steps of conjugate gradients: enough for a condition number of about 300."""
_CONVERGED = 1e-13
"""||K (G - Y)|| / ||K G|| at which conjugate gradients stop."""
_IN_NULL_SPACE = 1e-8
"""||K F|| of a unit F, relative to the mean eigenvalue, up to which F counts as in the null space;
the smallest of the other eigenvalues is near 0.2."""
_NOTHING = 1e-6
"""Relative size up to which what is left of a random matrix counts as nothing."""
_SEED = 1964


def points_needed(H: int, n: int, d: int) -> int:
    """Number of points that determine the null space: twice the unknowns, n d, or four times.

    A point has n - H equations. Iterations want more of them, for a better condition number.
    """
    times = 2 if n * d <= DENSE_UP_TO else 4
    return times * (n * d) // (n - H) + d


def span(M: Floats, x: Floats, H: int) -> Floats | None:
    """Basis (H, n, d) of the F with F x_i in the first H left singular vectors of M_i (n, .).

    None where it is plain that there are none. A small matrix has its eigenvectors of smallest
    eigenvalue taken, whatever these are.
    """
    n, d = M.shape[1], x.shape[1]
    if n * d <= DENSE_UP_TO:
        return dense_span(M, x, H)
    U = np.linalg.svd(M, full_matrices=False)[0][:, :, :H]
    F, left = iterated_span(np.ascontiguousarray(U), x)
    if left <= _IN_NULL_SPACE or n * d > _DENSE_AT_MOST:
        return F if len(F) == H else None
    return dense_span(M, x, H)


def dense_span(M: Floats, x: Floats, H: int) -> Floats:
    """The same from the eigenvectors of the matrix of K, (n d, n d)."""
    m, n, _ = M.shape
    d = x.shape[1]
    left = np.linalg.svd(M)[0][:, :, H:]  # orthogonal to the columns
    P = (left @ left.transpose(0, 2, 1)).reshape(m, n * n)
    X = (x[:, :, None] * x[:, None, :]).reshape(m, d * d)
    K = (P.T @ X).reshape(n, n, d, d).transpose(0, 2, 1, 3).reshape(n * d, n * d)
    _, vectors = eigh(K, subset_by_index=(0, H - 1), check_finite=False)
    return np.ascontiguousarray(vectors.T).reshape(H, n, d)


def iterated_span(U: Floats, x: Floats) -> tuple[Floats, float]:
    """Orthonormal F in the null space, from U (m, n, H) and x (m, d), and what K leaves of them.

    There are H of them, (H, n, d), at random where the null space has more dimensions; and fewer
    where it has fewer. The other number is the largest ||K F||, relative to the mean eigenvalue.
    """
    _, n, H = U.shape
    d = x.shape[1]
    G = np.random.default_rng(_SEED).standard_normal((H + _MORE, n, d))
    rest = _without_range(G, U, x)
    _, sizes, F = np.linalg.svd(rest.reshape(len(G), n * d), full_matrices=False)
    count = min(H, int((sizes > _NOTHING * np.linalg.norm(G[0])).sum()))
    F = np.ascontiguousarray(F[:count]).reshape(count, n, d)
    # The trace of K is sum_i (n - H) |x_i|^2
    mean = (n - H) / n * float(np.vdot(x, x)) / d
    left = np.linalg.norm(_applied(F, U, x), axis=(1, 2)).max(initial=0.0)
    return F, float(left) / mean


def _applied(F: Floats, U: Floats, x: Floats) -> Floats:
    """K F for F (b, n, d): (b, n, d)."""
    at = (F @ x.T).transpose(2, 1, 0)  # F_b x_i, (m, n, b)
    at = at - U @ (U.transpose(0, 2, 1) @ at)
    return np.asarray(at.transpose(2, 1, 0) @ x)


def _without_range(G: Floats, U: Floats, x: Floats) -> Floats:
    """G - Y with K Y = K G, for each G of (b, n, d): conjugate gradients, each with its steps."""
    G = G.copy()
    rest = _applied(G, U, x)
    direction = rest.copy()
    energy = _energies(rest)
    goal = _CONVERGED**2 * energy
    for _ in range(_STEPS):
        if not (energy > goal).any():
            break
        applied = _applied(direction, U, x)
        curvature = np.einsum("bnd,bnd->b", direction, applied)
        step = np.divide(energy, curvature, out=np.zeros_like(energy), where=curvature > 0)
        G -= step[:, None, None] * direction
        rest -= step[:, None, None] * applied
        before, energy = energy, _energies(rest)
        ratio = np.divide(energy, before, out=np.zeros_like(energy), where=before > 0)
        direction = rest + ratio[:, None, None] * direction
    return G


def _energies(F: Floats) -> Floats:
    """||F_b||^2 of each, (b,)."""
    return np.asarray(np.einsum("bnd,bnd->b", F, F))
