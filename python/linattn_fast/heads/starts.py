"""Heads to start from: those of the SVD, fixed random points, and what ranks give."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.linalg import svd

from ..arrays.types import Floats
from .bilinear import Metric, best_queries, best_values
from .ranks import span_of_queries, span_of_values, split_evenly


def svd_factors(C: Floats, d: int) -> tuple[Floats, Floats, Floats]:
    """V (n, d_out, d), sigma (n,), Q (n, d, d) of the SVD of T over (a,j) x (k,l)."""
    W = split_evenly(C, d).reshape(len(C) * d, d * d)
    left, sigma, right = svd(W, full_matrices=False, check_finite=False)
    n = len(sigma)
    return left.T.reshape(n, len(C), d), sigma, right.reshape(n, d, d)


def svd_heads(factors: tuple[Floats, Floats, Floats], count: int) -> tuple[Floats, Floats]:
    """The first ``count``, singular values split evenly."""
    left, sigma, right = factors
    root = np.sqrt(sigma[:count])[:, None, None]
    return left[:count] * root, right[:count] * root


def svd_count(sigma: Floats, tol: float) -> int:
    """Singular values above ``tol`` times the largest; at least one."""
    return max(1, int((sigma > tol * sigma[0]).sum()))


def perturbed(factors: tuple[Floats, Floats, Floats], H: int, seed: int) -> tuple[Floats, Floats]:
    """Where to start with H heads: the SVD's, moved at random; every second time random alone."""
    rng = np.random.default_rng(seed)
    V, Q = svd_heads(factors, H)
    keep, move = (1.0, 0.1 if seed == 0 else 1.0) if seed % 2 == 0 else (0.0, 1.0)
    return _moved(V, H, keep, move, rng), _moved(Q, H, keep, move, rng)


def _moved(F: Floats, H: int, keep: float, move: float, rng: np.random.Generator) -> Floats:
    """Add noise of a size relative to the entries of F (n, ., .); repeat it up to H."""
    noise = np.abs(F).mean() * rng.standard_normal((H, *F.shape[1:]))
    return np.asarray(keep * np.resize(F, noise.shape) + move * noise)


def spans(C: Floats, d: int, H: int) -> Iterator[tuple[Floats, Floats]]:
    """Yield heads that ranks give, where M(x) has rank H."""
    metric = Metric.identity(d)
    V = span_of_values(C, d, H)
    if V is not None:
        yield V, best_queries(V, C, metric)
    Q = span_of_queries(C, d, H)
    if Q is not None:
        yield best_values(Q, C, metric), Q
