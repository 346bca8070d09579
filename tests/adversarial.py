"""Data made to mislead floating point: nearly or exactly dependent, cancelling, underflowing."""

from __future__ import annotations

import numpy as np

KINDS = (
    "signs",
    "one-hot",
    "scaled one-hot",
    "with a bias",
    "vocabulary",
    "repeated",
    "duplicated",
    "proportional",
    "nearly dependent",
    "dependent up to rounding",
    "cancelling",
    "zero only as computed",
    "underflowing",
    "spread",
    "weightless",
)


def adversarial(rng, kind, N, d, longest=4):
    """N sequences of at most ``longest`` tokens in R^d, and weights or None."""
    Z = [rng.standard_normal((int(rng.integers(1, longest + 1)), d)) for _ in range(N)]
    weights = None
    one_hot = [np.eye(d)[rng.integers(0, d, len(z))] for z in Z]
    last = d - 1
    if kind == "signs":
        Z = [rng.integers(-1, 2, z.shape).astype(float) for z in Z]
    elif kind == "one-hot":
        Z = one_hot
    elif kind == "scaled one-hot":
        Z = [0.3 * z * rng.standard_normal(d) for z in one_hot]
    elif kind == "with a bias":
        Z = [np.c_[z[:, :last], np.full(len(z), 0.1)] for z in one_hot]
    elif kind == "vocabulary":
        table = rng.standard_normal((int(rng.integers(1, 2 * d + 1)), d))
        Z = [table[rng.integers(0, len(table), len(z))] for z in Z]
    elif kind == "repeated":
        Z = [Z[i] for i in rng.integers(0, max(1, N // 3), N)]
    elif kind == "duplicated":
        for z in Z:
            z[:, last] = z[:, 0]
    elif kind == "proportional":
        for z in Z:
            z[:, 0] = np.round(z[:, 0] * 2**20) / 2**20
            z[:, last] = -3 * 2.0**-9 * z[:, 0]
    elif kind == "nearly dependent":
        size = 10.0 ** -rng.uniform(0, 16)
        for z in Z:
            z[:, last] = z[:, 0] + size * z[:, last]
    elif kind == "dependent up to rounding":
        for z in Z:
            z[:, last] = z[:, :last] @ rng.standard_normal(last) if last else z[:, 0]
    elif kind == "cancelling":
        Z = [np.concatenate([z * 1e8, z * 1e8 * np.r_[-np.ones(1), np.ones(last)], z]) for z in Z]
    elif kind == "zero only as computed":  # (1 + e)(1 - e) - 1 is -e^2, which is rounded away
        unit = np.ones(d)
        first, second = unit.copy(), unit.copy()
        first[0], first[last] = 1 + 2.0**-30, 1 - 2.0**-30
        second[last] = -1.0
        Z = [np.stack([first, second]) * s for s in rng.standard_normal(N)]
    elif kind == "underflowing":
        factor = 10.0 ** -rng.uniform(100, 310, d) if rng.random() < 0.5 else np.ones(d)
        factor[last] = 10.0 ** -rng.uniform(100, 320)
        Z = [z * factor for z in Z]
    elif kind == "spread":
        Z = [z * 10.0 ** rng.uniform(-20, 20) * 10.0 ** np.linspace(0, 9, d) for z in Z]
    elif kind == "weightless":
        weights = np.where(rng.random(N) < 0.7, 0.0, rng.random(N))
        weights[0] = 1.0
    return Z, weights
