"""Matrices of low rank with a given symmetric part: reweighted least squares.

Heads with coefficients C are a factorisation of a matrix X of rank H whose rows are (a,j) and whose
columns are (k,l), X = sum_h V_h (x) Q_h. Its part symmetric in (j,k) is T, given by C; the
antisymmetric part is free. So the fewest heads are the lowest rank under linear constraints,

    minimise rank X    subject to    (X[a,j,k,l] + X[a,k,j,l]) / 2 = T[a,j,k,l]

Each step minimises a quadratic form in X whose weights are large where the last X was small, the
harmonic mean of weights on the rows and on the columns:

    L = X X' + e^2 I,  R = X' X + e^2 I,    X <- L Z + Z R    with Z symmetric in (j,k) and
    sym (L Z + Z R) = T: a positive definite system, one unknown for each coefficient

e is the smallest (H+1)th singular value so far. Near a matrix of rank H the steps converge
quadratically, and they get there where least squares over V and Q from random points hardly ever
does: with nearly as many free entries as coefficients.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from .bilinear import CALL_FLOPS, Budget
from .features import pair_count, pair_table
from .ranks import split_evenly
from .solve import EPS
from .tokens import Floats

LARGEST_SYSTEM = 1500
"""Coefficients up to which the steps, each with a matrix of that many rows, are quick enough."""
NEAR = 1e-4
"""Part of X beyond rank H, relatively, from where least squares over V and Q takes over."""
_MOST_STEPS = 100
_WINDOW, _STALL = 10, 0.05
"""Steps over which that part must fall by more than a fraction."""
_STRETCH = 0.3
"""Standard deviation of the logarithm of what coordinates are stretched by."""
_FASTER = 20
"""A Cholesky factorisation does so many flops in the time of one of short vectors."""


@dataclass(frozen=True)
class Reduced:
    """Heads near a matrix with the given symmetric part."""

    V: Floats
    Q: Floats
    left: float
    """Norm of what they leave of that matrix, relatively."""


def can_reweight(d_out: int, d: int) -> bool:
    """Whether the system of a step is small enough."""
    return d_out * pair_count(d) * d <= LARGEST_SYSTEM


class Reweighting:
    """Reduces the rank of what has the coefficients C (d_out, p)."""

    def __init__(self, C: Floats, d: int) -> None:
        d_out, q = len(C), pair_count(d)
        self.T = split_evenly(C, d)  # (d_out, d, d, d)
        self.rows = n = d_out * q * d
        self.flops = CALL_FLOPS + 10.0 * n**2 + n**3 / (3 * _FASTER)
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
        """H heads, from a fixed point for each seed.

        The first starts from T itself. A step depends on the metric of outputs, pairs and queries,
        so the others stretch those at random.
        """
        if seed == 0:
            return self._reduce(self.T, H, budget)
        rng = np.random.default_rng(seed)
        d_out, d = self.T.shape[:2]
        A, G, B = (_stretching(n, rng) for n in (d_out, d, d))
        T = np.einsum("ajkl,ab,jm,kn,lo->bmno", self.T, A, G, G, B, optimize=True)
        found = self._reduce(T, H, budget)
        inverse = np.linalg.inv(G)
        V = np.linalg.inv(A).T @ found.V @ inverse
        return Reduced(V, inverse.T @ found.Q @ np.linalg.inv(B), found.left)

    def _reduce(self, T: Floats, H: int, budget: Budget) -> Reduced:
        d_out, d = T.shape[:2]
        X = T.reshape(d_out * d, d * d)
        right = np.bincount(self.place.ravel(), (self.unit * X).ravel())
        e, lefts = np.inf, []
        for _ in range(_MOST_STEPS):
            U, sigma, W = np.linalg.svd(X, full_matrices=False)
            e = min(e, float(sigma[H]))
            lefts.append(float(np.linalg.norm(sigma[H:]) / np.linalg.norm(sigma)))
            stalled = (
                len(lefts) > _WINDOW and lefts[-1] > (1 - _STALL) * lefts[-1 - _WINDOW]
            )
            if lefts[-1] <= NEAR or stalled or budget.spent:
                break
            try:
                budget.left -= self.flops
                X = self._step(X, e, right, T)
            except LinAlgError:  # e at rounding level
                break
        V = U[:, :H].T.reshape(H, d_out, d)
        return Reduced(V, (sigma[:H, None] * W[:H]).reshape(H, d, d), lefts[-1])

    def _step(self, X: Floats, e: float, right: Floats, T: Floats) -> Floats:
        L, R, n = X @ X.T, X.T @ X, self.rows
        L[np.diag_indices_from(L)] += e**2
        R[np.diag_indices_from(R)] += e**2
        values = [(self.units_L * L[:, :, None]).ravel(), (self.units_R * R).ravel()]
        system = np.bincount(self.entries, np.concatenate(values), n * n).reshape(n, n)
        system[np.diag_indices_from(system)] += EPS * float(np.trace(system)) / n
        factor = cho_factor(system, overwrite_a=True, check_finite=False)
        Z = cho_solve(factor, right, check_finite=False)[self.place] * self.unit
        new = (L @ Z + Z @ R).reshape(T.shape)
        # The symmetric part is known better than the solution of the system has it
        return np.asarray(T + (new - new.transpose(0, 2, 1, 3)) / 2).reshape(X.shape)


def _stretching(n: int, rng: np.random.Generator) -> Floats:
    """A random matrix (n, n) that stretches orthogonal directions by exp of normal variates."""
    U, _, W = np.linalg.svd(rng.standard_normal((n, n)))
    return np.asarray((U * np.exp(_STRETCH * rng.standard_normal(n))) @ W)
