"""Data with a known answer: planted layers, and parities, which efficient learners cannot learn."""

from __future__ import annotations

import numpy as np

from ...arrays.types import Floats
from .layer import Layer

KINDS = (
    "generic",
    "rank-one Theta",
    "rank-one Theta and W",
    "equal W",
    "proportional Thetas",
    "single entries",
)
"""Kinds of planted layers: what their Theta and W are like."""


def planted_layer(
    rng: np.random.Generator,
    heads: int,
    d: int,
    *,
    d_out: int | None = None,
    logits: float = 1.0,
    kind: str = "generic",
) -> Layer:
    """Draw a layer whose logits have the given standard deviation on uniform +-1 tokens.

    Parameters
    ----------
    rng
        Source of the random numbers.
    heads, d, d_out
        Numbers of heads, coordinates and outputs; d_out is d by default.
    logits
        Standard deviation of x_b' Theta_i x_a, which is the Frobenius norm of Theta_i.
    kind
        One of ``KINDS``. Among proportional Thetas the first has this standard deviation, and head
        i has i times as much.
    """
    if kind not in KINDS:
        raise ValueError(f"kind: must be one of {', '.join(KINDS)}, got {kind!r}")
    shape, d_out = (heads, d, d), d if d_out is None else d_out
    Theta, W = rng.standard_normal(shape), rng.standard_normal((heads, d, d_out)) / np.sqrt(d)
    if kind.startswith("rank-one"):
        Theta = rng.standard_normal((heads, d, 1)) * rng.standard_normal((heads, 1, d))
    if kind == "rank-one Theta and W":
        W = rng.standard_normal((heads, d, 1)) * rng.standard_normal((heads, 1, d_out)) / np.sqrt(d)
    elif kind == "equal W":
        W[:] = W[0]
    elif kind == "single entries":
        Theta = np.zeros(shape)
        entries = rng.choice(d * d, size=heads, replace=False)
        Theta.reshape(heads, -1)[np.arange(heads), entries] = 1.0
    Theta *= logits / np.linalg.norm(Theta, axis=(1, 2), keepdims=True)
    if kind == "proportional Thetas":
        Theta = Theta[0] * np.arange(1, heads + 1)[:, None, None]
    return Layer(Theta, W)


def uniform_tokens(rng: np.random.Generator, N: int, k: int, d: int) -> Floats:
    """Tokens (N, k, d) with independent coordinates, -1 or 1 with equal probability."""
    return rng.choice(np.array([-1.0, 1.0]), size=(N, k, d))


def parity(X: Floats, bits: tuple[int, ...]) -> Floats:
    """Targets (N, k, 1): each is the product of some coordinates of its token."""
    return np.asarray(np.prod(X[:, :, list(bits)], axis=2)[..., None])
