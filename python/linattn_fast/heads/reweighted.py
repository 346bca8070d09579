"""Matrices of low rank with a given symmetric part: reweighted least squares.

Heads with coefficients C are a factorisation of a matrix X of rank H whose rows are (a,j) and whose
columns are (k,l), X = sum_h V_h (x) Q_h. Its part symmetric in (j,k) is T, given by C; the
antisymmetric part is free. So the fewest heads are the lowest rank under linear constraints,

    minimise rank X    subject to    (X[a,j,k,l] + X[a,k,j,l]) / 2 = T[a,j,k,l]

Each step minimises a quadratic form in X whose weights are large where the last X was small, the
harmonic mean of weights on the rows and on the columns:

    L = X X' + e^2 I,  R = X' X + e^2 I,    X <- L Z + Z R    with Z symmetric in (j,k) and
    sym (L Z + Z R) = T: a positive definite system, one unknown for each coefficient

e is the smallest (H+1)th singular value so far. The steps get near a matrix of rank H where least
squares over V and Q from random points hardly ever does: with nearly as many free entries as
coefficients. Near it the same system, with L = sum_h V_h V_h' and R = sum_h Q_h Q_h' for V_h and
Q_h as vectors, has the Gauss-Newton step of least norm for the factors themselves:

    sym (L Z + Z R) = T - sym X,    V_h += Z Q_h,  Q_h += Z' V_h
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.linalg import LinAlgError

from ..arrays.types import Floats
from ..features.compact import pair_table
from ..features.features import pair_count
from ..linalg.cholesky import cholesky_in_place, cholesky_solve
from ..linalg.factors import EPS
from .bilinear import BLAS_RATIO, CALL_FLOPS, Budget
from .contractions import split_evenly

LARGEST_SYSTEM = 1500
"""Number of coefficients, rows of the matrix of a step, up to which steps are quick enough."""
NEAR = 1e-4
"""Relative norm of X beyond rank H from which least squares over V and Q takes over."""
_MOST_STEPS = 100
"""Steps towards a lower rank, and then of Gauss and Newton."""
_WINDOW, _STALL = 10, 0.05
"""Number of steps over which that norm must fall by more than a fraction, and the fraction."""
_DAMPING, _LEAST_DAMPING = 1e-6, 1e-15
"""Damping of a Gauss-Newton step, relative to the diagonal of its system: first, and least."""
_STRETCH = 0.3
"""Standard deviation of the logarithm of the factors that coordinates are stretched by."""


Reduced: TypeAlias = tuple[Floats, Floats, float]
"""V (H, d_out, d) and Q (H, d, d) of heads near a matrix with the given symmetric part, and the
norm of what they leave of that matrix, relative to it."""


def can_reweight(d_out: int, d: int) -> bool:
    """Whether the system of a step is small enough."""
    return d_out * pair_count(d) * d <= LARGEST_SYSTEM


class Reweighting:
    """Reduces the rank of a matrix X that has the coefficients C (d_out, p)."""

    def __init__(self, C: Floats, d: int) -> None:
        d_out, q = len(C), pair_count(d)
        self.T = split_evenly(C, d)  # (d_out, d, d, d)
        self.rows = n = d_out * q * d
        self.flops = CALL_FLOPS + 20.0 * n**2 + n**3 / (3 * BLAS_RATIO)
        # Orthonormal coordinates (a, pair, l) of tensors that are symmetric in (j,k)
        place = (np.arange(d_out)[:, None, None, None] * q + pair_table(d)[:, :, None]) * d
        self.place = (place + np.arange(d)).reshape(d_out * d, d * d)
        off = np.where(np.eye(d, dtype=bool), 1.0, np.sqrt(0.5))[:, :, None]
        self.unit = np.broadcast_to(off, (d_out, d, d, d)).reshape(d_out * d, d * d)
        # Where L[x,y], for every column, and R[x,y], for every row, go in the system
        x, y = self.place, self.unit
        from_L = x[:, None, :] * n + x[None, :, :], y[:, None, :] * y[None, :, :]
        from_R = x[:, :, None] * n + x[:, None, :], y[:, :, None] * y[:, None, :]
        self.entries = np.concatenate([from_L[0].ravel(), from_R[0].ravel()])
        self.units_L, self.units_R = from_L[1], from_R[1]

    def reduce(self, H: int, seed: int, budget: Budget) -> Reduced:
        """H heads of reduced rank, from a fixed point for each seed.

        The first starts from T itself. A step depends on the metric of outputs, pairs and queries,
        so the others stretch those at random.
        """
        if seed == 0:
            return self._reduce(self.T, H, budget)
        rng = np.random.default_rng(seed)
        d_out, d = self.T.shape[:2]
        A, G, B = (_stretching(n, rng) for n in (d_out, d, d))
        T = np.einsum("ajkl,ab,jm,kn,lo->bmno", self.T, A, G, G, B, optimize=True)
        V, Q, left = self._reduce(T, H, budget)
        inverse = np.linalg.inv(G)
        return np.linalg.inv(A).T @ V @ inverse, inverse.T @ Q @ np.linalg.inv(B), left

    def _reduce(self, T: Floats, H: int, budget: Budget) -> Reduced:
        """Reweighted steps from T (d_out, d, d, d), then those of Gauss and Newton where near."""
        d_out, d = T.shape[:2]
        X = T.reshape(d_out * d, d * d)
        right = self._coordinates(T)
        e, lefts = np.inf, []
        for _ in range(_MOST_STEPS):
            U, sigma, W = np.linalg.svd(X, full_matrices=False)
            e = min(e, float(sigma[H]))
            lefts.append(float(np.linalg.norm(sigma[H:]) / np.linalg.norm(sigma)))
            stalled = len(lefts) > _WINDOW and lefts[-1] > (1 - _STALL) * lefts[-1 - _WINDOW]
            if lefts[-1] <= NEAR or stalled or budget.spent:
                break
            try:
                budget.left -= self.flops
                X = self._step(X, e, right, T)
            except LinAlgError:  # e at rounding level
                break
        root = np.sqrt(sigma[:H, None])
        V, Q = root * U[:, :H].T, root * W[:H]  # (H, d_out d), (H, d d)
        if lefts[-1] <= NEAR:
            V, Q = self._settle(V, Q, T, budget)
        return V.reshape(H, d_out, d), Q.reshape(H, d, d), lefts[-1]

    def _settle(self, V: Floats, Q: Floats, T: Floats, budget: Budget) -> tuple[Floats, Floats]:
        """Gauss-Newton steps from heads near T; the distance falls with each."""
        rest = T - _symmetric(V.T @ Q, T.shape)
        error, mu = float(np.linalg.norm(rest)), _DAMPING
        goal = 10 * EPS * float(np.linalg.norm(T))
        for _ in range(_MOST_STEPS):
            if error <= goal or mu > 1 or budget.spent:
                break
            budget.left -= self.flops
            try:
                Z = self._solve(V.T @ V, Q.T @ Q, mu, self._coordinates(rest))
            except LinAlgError:
                mu *= 10
                continue
            new_V, new_Q = V + Q @ Z.T, Q + V @ Z
            new = T - _symmetric(new_V.T @ new_Q, T.shape)
            new_error = float(np.linalg.norm(new))
            if new_error < error:
                mu = max(_LEAST_DAMPING, mu / 10)
                V, Q, rest, error = new_V, new_Q, new, new_error
            else:
                mu *= 10
        return V, Q

    def _coordinates(self, T: Floats) -> Floats:
        """Orthonormal coordinates (d_out q d,) of a symmetric T."""
        values = self.unit * T.reshape(self.place.shape)
        return _sums(self.place.ravel(), values.ravel(), self.rows)

    def _solve(self, L: Floats, R: Floats, mu: float, right: Floats) -> Floats:
        """Z (d_out d, d d), symmetric in (j,k), with sym (L Z + Z R) + mu Z = right."""
        n = self.rows
        values = [(self.units_L * L[:, :, None]).ravel(), (self.units_R * R).ravel()]
        system = _sums(self.entries, np.concatenate(values), n * n).reshape(n, n)
        system[np.diag_indices_from(system)] += mu * float(np.trace(system)) / n
        factor, failed = cholesky_in_place(system)
        if failed:
            raise LinAlgError(f"pivot {failed} of {n} is not positive")
        return np.asarray(cholesky_solve(factor, right[:, None])[:, 0][self.place] * self.unit)

    def _step(self, X: Floats, e: float, right: Floats, T: Floats) -> Floats:
        """The next X, of least norm in the weights of this one."""
        L, R = X @ X.T, X.T @ X
        L[np.diag_indices_from(L)] += e**2
        R[np.diag_indices_from(R)] += e**2
        Z = self._solve(L, R, EPS, right)
        new = L @ Z + Z @ R
        # The symmetric part is known better than the solution of the system has it
        return np.asarray(T.reshape(X.shape) + new - _symmetric(new, T.shape).reshape(X.shape))


def _sums(places: npt.NDArray[np.intp], values: Floats, count: int) -> Floats:
    """Sum the values of each place, (count,)."""
    return np.asarray(np.bincount(places, values, count), dtype=np.float64)


def _symmetric(X: Floats, shape: tuple[int, ...]) -> Floats:
    """The part of X that is symmetric in (j,k), (d_out, d, d, d)."""
    W = X.reshape(shape)
    return np.asarray((W + W.transpose(0, 2, 1, 3)) / 2)


def _stretching(n: int, rng: np.random.Generator) -> Floats:
    """A random matrix (n, n) that stretches orthogonal directions by exp of normal variates."""
    U, _, W = np.linalg.svd(rng.standard_normal((n, n)))
    return np.asarray((U * np.exp(_STRETCH * rng.standard_normal(n))) @ W)
