"""Data with a known answer: the paper's tasks, and in-context regression.

Each function draws sequences from a distribution that is written above it, the same ones for the
same ``seed``: an integer, a ``numpy.random.Generator`` (which moves on), or None for others every
time.

    import linattn_fast as la

    Z, y, truth = la.datasets.random_linear_attention(2048, 100, 4, seed=0)
    la.fit(Z, y, positions="causal").heads.distance(truth)      # 0 up to rounding
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .arrays.types import Array, Floats, Positions
from .data.tokens import as_positions
from .features.features import Features
from .heads.heads import Heads
from .system.arguments import as_size
from .system.machine import same_bits
from .system.seeds import Seed, as_generator

__all__ = [
    "ContextDataset",
    "LayerDataset",
    "Seed",
    "associative_memory",
    "in_context_regression",
    "random_linear_attention",
]

_BLOCK = 1024
"""Sequences drawn at a time, so that float32 tokens never exist in float64 as a whole."""


class LayerDataset(NamedTuple):
    """Tokens with the outputs of a linear attention layer, and that layer."""

    Z: Floats
    """Tokens (N, n, d)."""
    y: Floats
    """Targets (N, d_out), or (N, n, d_out) where every token has one."""
    truth: Heads
    """What made the targets, up to the noise."""


class ContextDataset(NamedTuple):
    """Tokens of in-context regression, their targets, and the features that matter."""

    Z: Array
    """Tokens (N, n + 1, d + 1)."""
    y: Floats
    """Targets (N,)."""
    features: Features
    """Pairs (x_k, y) and (y, y), queries x: p = d (d + 1)."""


def _number(value: object, name: str, most: float = np.inf) -> float:
    """Check a number from 0 to ``most``."""
    if not isinstance(value, int | float | np.number) or isinstance(value, bool):
        raise TypeError(f"{name}: a number is needed, got {type(value).__name__}")
    if not (0 <= float(value) <= most and np.isfinite(float(value))):
        what = "not negative" if most == np.inf else f"from 0 to {most:g}"
        raise ValueError(f"{name}: a finite number that is {what} is needed, got {value!r}")
    return float(value)


def _observed(truth: Heads, Z: Floats, positions: Positions, noise: float, rng: object) -> Floats:
    """Outputs of the layer, with Gaussian noise of that standard deviation on each."""
    y = np.asarray(truth(Z, positions=positions))
    if noise:
        assert isinstance(rng, np.random.Generator)
        y = y + noise * rng.standard_normal(y.shape)
    return y


@same_bits
def random_linear_attention(
    N: int,
    n: int,
    d: int,
    *,
    heads: int = 1,
    d_out: int = 1,
    positions: Positions = "causal",
    noise: float = 0.0,
    seed: Seed = None,
) -> LayerDataset:
    """Gaussian tokens with the outputs of a random layer (figure 1 of the paper).

    ::

        z_t ~ N(0, I_d)    V_h ~ N(0, 1/d) / n    Q_h ~ N(0, 1/d)    all entries independent
        y_t = sum_h V_h S_t Q_h z_t + noise N(0, I)       S_t as ``positions`` says

    The scale of V makes the outputs of one head about as large as a standard Gaussian at the end of
    a sequence, whatever n and d.

    Parameters
    ----------
    N, n, d
        Sequences, tokens in each, coordinates of a token.
    heads, d_out
        Heads and outputs of the layer: V has shape (heads, d_out, d), Q (heads, d, d).
    positions
        Which tokens have a target, as for :func:`linattn_fast.fit`.
    noise
        Standard deviation of the noise on the targets.
    seed
        Seed of the tokens, the layer and the noise.

    Returns
    -------
    LayerDataset
        Tokens (N, n, d), targets (N, d_out) or (N, n, d_out), and the layer.

    Examples
    --------
    >>> import linattn_fast as la
    >>> Z, y, truth = la.datasets.random_linear_attention(64, 20, 3, seed=0)
    >>> Z.shape, y.shape, len(truth)
    ((64, 20, 3), (64, 20, 1), 1)
    """
    N, n, d = as_size(N, "N"), as_size(n, "n"), as_size(d, "d")
    heads, d_out = as_size(heads, "heads"), as_size(d_out, "d_out")
    positions, noise, rng = as_positions(positions), _number(noise, "noise"), as_generator(seed)
    truth = Heads(
        rng.standard_normal((heads, d_out, d)) / (np.sqrt(d) * n),
        rng.standard_normal((heads, d, d)) / np.sqrt(d),
    )
    Z = rng.standard_normal((N, n, d))
    return LayerDataset(Z, _observed(truth, Z, positions, noise, rng), truth)


@same_bits
def associative_memory(
    N: int,
    d: int = 4,
    *,
    orthonormal: float = 1.0,
    noise: float = 0.0,
    seed: Seed = None,
) -> LayerDataset:
    """Tables of d keys and values with a key as the query (figure 2 of the paper).

    ::

        z_t = (k_t, v_t),  t = 1 .. d        z_(d+1) = (k_i, u),  i uniform       coordinates: 2 d
        V = (0  I)    Q = (I  0; 0  0)       y = sum_t v_t <k_t, k_i> + u <k_i, k_i> + noise N(0, I)

    In an orthonormal table the keys are a random orthonormal basis (Haar), the values another one
    and u = 0, so that y is the value v_i of the key that is asked for. In a Gaussian one the keys,
    the values and u are standard Gaussian. Orthonormal tables alone leave much of the layer
    undetermined: sum_t k_t k_t' is always the identity.

    Parameters
    ----------
    N
        Tables.
    d
        Keys, and coordinates of a key and of a value; tokens have 2 d.
    orthonormal
        Share of orthonormal tables, 0 to 1. They come first, ``round(orthonormal * N)`` of them,
        and the Gaussian ones after them.
    noise, seed
        Standard deviation of the noise on the targets; seed of the tables, the queries and the
        noise.

    Returns
    -------
    LayerDataset
        Tokens (N, d + 1, 2 d), targets (N, d), and the layer.

    Examples
    --------
    >>> import numpy as np, linattn_fast as la
    >>> Z, y, truth = la.datasets.associative_memory(5, seed=0)
    >>> keys, values, query = Z[0, :4, :4], Z[0, :4, 4:], Z[0, 4, :4]
    >>> asked = int(np.argmax(keys @ query))
    >>> np.allclose(y[0], values[asked])
    True
    """
    N, d = as_size(N, "N"), as_size(d, "d")
    share, noise = _number(orthonormal, "orthonormal", 1.0), _number(noise, "noise")
    rng = as_generator(seed)
    Z = rng.standard_normal((N, d + 1, 2 * d))
    exact = round(share * N)
    for half in (slice(None, d), slice(d, None)):
        Z[:exact, :d, half] = _orthonormal(Z[:exact, :d, half])
    Z[:exact, d, d:] = 0.0
    Z[:, d, :d] = Z[np.arange(N), rng.integers(d, size=N), :d]
    V, Q = np.zeros((1, d, 2 * d)), np.zeros((1, 2 * d, 2 * d))
    V[0, :, d:] = np.eye(d)
    Q[0, :d, :d] = np.eye(d)
    truth = Heads(V, Q)
    return LayerDataset(Z, _observed(truth, Z, "last", noise, rng), truth)


def _orthonormal(gaussian: Floats) -> Floats:
    """Orthogonal matrices (N, d, d), uniform over all: QR with the diagonal of R made positive."""
    Q, R = np.linalg.qr(gaussian)
    signs: Floats = np.where(np.diagonal(R, axis1=1, axis2=2) < 0, -1.0, 1.0)
    return np.asarray(Q * signs[:, None, :])


@same_bits
def in_context_regression(
    N: int,
    n: int,
    d: int,
    *,
    noise: float = 0.1,
    dtype: npt.DTypeLike = np.float64,
    seed: Seed = None,
) -> ContextDataset:
    """Linear regression inside every sequence, with a weight vector of its own.

    ::

        x_t ~ N(0, I/d)    w ~ N(0, I)    y_t = <w, x_t> + noise N(0, 1)      t = 1 .. n + 1
        tokens z_t = (x_t, y_t),  t <= n       query z_(n+1) = (x_(n+1), 0)   target y_(n+1)

    Parameters
    ----------
    N, n, d
        Sequences, tokens of the context, coordinates of x.
    noise
        Standard deviation of the noise in every y.
    dtype
        Type of the tokens: float64 or float32. The targets are those of the tokens, in float64.
    seed
        Seed of everything that is drawn.

    Returns
    -------
    ContextDataset
        Tokens (N, n + 1, d + 1), targets (N,), and the d (d + 1) features that can matter.

    Examples
    --------
    >>> import linattn_fast as la
    >>> Z, y, features = la.datasets.in_context_regression(50, 10, 3, seed=0)
    >>> Z.shape, y.shape, features.count
    ((50, 11, 4), (50,), 12)
    """
    N, n, d = as_size(N, "N"), as_size(n, "n"), as_size(d, "d")
    noise, rng = _number(noise, "noise"), as_generator(seed)
    kind = np.dtype(dtype)
    if kind not in (np.float64, np.float32):
        raise TypeError(f"dtype: float64 or float32 is needed, got {kind}")
    Z = np.empty((N, n + 1, d + 1), kind)
    for start in range(0, N, _BLOCK):
        part = Z[start : start + _BLOCK]
        x = rng.standard_normal((len(part), n + 1, d)) / np.sqrt(d)
        w = rng.standard_normal((len(part), d, 1))
        part[:, :, :d] = x
        part[:, :, d:] = x @ w + noise * rng.standard_normal((len(part), n + 1, 1))
    y = Z[:, -1, d].astype(np.float64)
    Z[:, -1, d] = 0
    features = Features(d + 1, pairs=[(k, d) for k in range(d + 1)], queries=range(d))
    return ContextDataset(Z, y, features)
