"""Contractions of the coefficients at fixed points: small matrices whose ranks tell about heads.

With T[a,j,k,l] the sum over heads of V[a,j] Q[k,l], symmetrised in (j,k), which is all of them that
reaches the output:

    M(x)[a,l] = T x x = sum_h (V_h x) (Q_h' x)'                               d_out x d
    2 M(x,y)  = M(x + y) - M(x) - M(y)
              = sum_h (V_h x) (Q_h' y)' + (V_h y) (Q_h' x)'                   d_out x d
    B(u,c)[j,k] = T u c = sum_h sym (V_h' u) (Q_h c)'                         d x d, symmetric

A coefficient of j < k is 2 T[a,j,k,l] already.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ..arrays.types import Floats
from ..features.compact import pair_entries, pair_table

_SEED = 2410
"""Seed of the points."""


@lru_cache(maxsize=64)
def unit_points(count: int, d: int) -> Floats:
    """Fixed points on the unit sphere, (count, d); the first of many are those of few."""
    x = np.random.default_rng(_SEED).standard_normal((count, d))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    x.setflags(write=False)  # the same ones for every caller
    return x


def at_squares(C: Floats, x: Floats) -> Floats:
    """The matrices M(x), (m, d_out, d), for x (m, d)."""
    m, d = x.shape
    upper = pair_entries(d)[0]
    products = (x[:, :, None] * x[:, None, :]).reshape(m, d * d).take(upper, axis=1)
    return np.asarray((products @ C.reshape(len(C), -1, d)).transpose(1, 0, 2))


def beside(C: Floats, x: Floats) -> Floats:
    """The matrices 2 M(x, e_j) for x (d,) and every unit vector e_j, (d, d_out, d)."""
    d = len(x)
    table = pair_table(d)
    weights = np.zeros((d, C.shape[1] // d))  # (j, pair)
    weights[np.arange(d)[:, None], table] = 2 * x * halves(d)  # twice x on the diagonal
    return np.asarray((weights @ C.reshape(len(C), -1, d)).transpose(1, 0, 2))


def at_outputs(C: Floats, u: Floats, c: Floats) -> Floats:
    """The matrices B(u,c), (m, d, d), for u (m, d_out) and c (m, d)."""
    m, d = c.shape
    maps = (u @ C).reshape(m, -1, d)  # (m, pair, l)
    values = maps @ c[:, :, None]
    return np.asarray(values[:, :, 0].take(pair_table(d), axis=1) * halves(d))


@lru_cache(maxsize=64)
def unit_matrix(n: int) -> Floats:
    """The identity matrix (n, n)."""
    matrix = np.eye(n)
    matrix.setflags(write=False)  # the same one for every caller
    return matrix


@lru_cache(maxsize=64)
def halves(d: int) -> Floats:
    """A matrix (d, d) with ones on the diagonal and halves elsewhere."""
    matrix = np.where(np.eye(d, dtype=bool), 1.0, 0.5)
    matrix.setflags(write=False)
    return matrix


def split_evenly(C: Floats, d: int) -> Floats:
    """T (d_out, d, d, d) of coefficients (d_out, p), half of each for (j,k) and half for (k,j)."""
    return np.asarray(C.reshape(len(C), -1, d).take(pair_table(d), axis=1) * halves(d)[:, :, None])
