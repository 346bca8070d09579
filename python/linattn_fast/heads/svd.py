"""Heads by an SVD of the coefficients, split evenly between (j,k) and (k,j).

    T[(a,j), (k,l)] = sum_n left_n[a,j] sigma_n right_n[k,l]        up to min(d_out d, d^2) heads

Moved at random, the largest of them are where a search starts from.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import svd

from ..arrays.types import Floats
from .contractions import split_evenly


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
