"""Heads by an SVD of the coefficients, split evenly between (j,k) and (k,j).

    T[(a,j), (k,l)] = sum_n left_n[a,j] sigma_n right_n[k,l]        up to min(d_out d, d^2) heads

Moved at random, the largest of them are where a search starts from.

Layers on states, y = sum_h V_h M Q_h c with V_h (d_out, d_v) and Q_h (d_k, d_q), lose nothing of a
memory M without symmetry: T is then C itself, so the fewest heads are its rank, and the best
approximation by fewer is that of its singular values.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import svd

from ..arrays.types import Floats
from ..data.states import StateShape
from ..linalg.factors import EPS
from .contractions import split_evenly
from .heads import Heads, Recovery, known_heads, with_signs


def svd_factors(C: Floats, d: int) -> tuple[Floats, Floats, Floats]:
    """The SVD of T: left (n, d_out, d), sigma (n,) and right (n, d, d)."""
    W = split_evenly(C, d).reshape(len(C) * d, d * d)
    left, sigma, right = svd(W, full_matrices=False, check_finite=False)
    n = len(sigma)
    return left.T.reshape(n, len(C), d), sigma, right.reshape(n, d, d)


def svd_heads(factors: tuple[Floats, Floats, Floats], count: int) -> tuple[Floats, Floats]:
    """The first ``count`` heads, V and Q; each takes the root of a singular value."""
    left, sigma, right = factors
    root = np.sqrt(sigma[:count])[:, None, None]
    return left[:count] * root, right[:count] * root


def svd_count(sigma: Floats, tol: float) -> int:
    """Number of singular values above ``tol`` times the largest; at least one."""
    return max(1, int((sigma > tol * sigma[0]).sum()))


def perturbed(factors: tuple[Floats, Floats, Floats], H: int, seed: int) -> tuple[Floats, Floats]:
    """H heads to start from: the SVD's, moved at random; for odd seeds the noise alone."""
    rng = np.random.default_rng(seed)
    V, Q = svd_heads(factors, H)
    keep, move = (1.0, 0.1 if seed == 0 else 1.0) if seed % 2 == 0 else (0.0, 1.0)
    return _moved(V, H, keep, move, rng), _moved(Q, H, keep, move, rng)


def _moved(F: Floats, H: int, keep: float, move: float, rng: np.random.Generator) -> Floats:
    """F (n, ., .), repeated up to H matrices, with noise of the size of its entries added."""
    noise = np.abs(F).mean() * rng.standard_normal((H, *F.shape[1:]))
    return np.asarray(keep * np.resize(F, noise.shape) + move * noise)


# --------------------------------------------------------------------------- layers on states


def rectangular_heads(
    C: Floats, shape: StateShape, method: str, tol: float, max_heads: int | None
) -> Heads:
    """Heads in normal form of coefficients (d_out, q d_q) on the host, from one SVD.

    For "minimal", ``tol`` is the relative residual up to which C counts as reproduced; for "svd",
    singular values up to ``tol`` times the largest are dropped. A zero layer has one zero head.
    """
    (d_v, d_k), d_q, d_out = shape.matrix, shape.query, len(C)
    matrix = C.reshape(d_out * d_v, d_k * d_q)
    if not matrix.any():
        recovery = Recovery(method, 0.0, 0, (), 0.0, "all coefficients are zero")
        return known_heads(np.zeros((1, d_out, d_v)), np.zeros((1, d_k, d_q)), recovery)
    scale = float(np.abs(matrix).max())
    left, sigma, right = svd(matrix / scale, full_matrices=False, check_finite=False)
    # What fewer heads leave: left_by[H] is the relative residual of the best H heads
    left_by = np.sqrt(np.append(np.cumsum(sigma[::-1] ** 2)[::-1], 0.0) / (sigma**2).sum())
    rounding = max(matrix.shape) * EPS
    tolerance = max(tol, rounding)
    least = int(np.argmax(left_by <= tolerance))
    count = least
    if method == "svd":
        count = int((sigma > tolerance * sigma[0]).sum())
    reason = "the rank of the coefficients, rows (a, j) by columns (k, l): no fewer are possible"
    if max_heads is not None and max_heads < count:
        count, reason = max_heads, f"the nearest {max_heads}; {count} are needed"
    root = np.sqrt(sigma[:count] * scale)
    V, Q = with_signs(left[:, :count] * root, right[:count].T * root, d_v, d_q)
    made = np.tensordot(V, Q, axes=(0, 0)).reshape(matrix.shape)
    recovery = Recovery(
        method,
        residual=float(np.linalg.norm((made - matrix) / scale) / np.linalg.norm(matrix / scale)),
        at_least=least,
        tried=(),
        fewer_leave=float(left_by[count - 1]),
        reason=reason,
        tolerance=tolerance,
    )
    return known_heads(V, Q, recovery)
