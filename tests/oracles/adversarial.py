"""Data made to mislead floating point: nearly or exactly dependent, cancelling, underflowing.

Each maker gets random sequences (a list of arrays (n_i, d)), and returns others of the same kind of
form; the last coordinate is the one that misbehaves.
"""

from __future__ import annotations

import numpy as np


def signs(rng, Z):
    return [rng.integers(-1, 2, z.shape).astype(float) for z in Z]


def one_hot(rng, Z):
    return [np.eye(z.shape[1])[rng.integers(0, z.shape[1], len(z))] for z in Z]


def scaled_one_hot(rng, Z):
    return [0.3 * z * rng.standard_normal(z.shape[1]) for z in one_hot(rng, Z)]


def with_a_bias(rng, Z):
    return [np.c_[z[:, :-1], np.full(len(z), 0.1)] for z in one_hot(rng, Z)]


def vocabulary(rng, Z):
    d = Z[0].shape[1]
    table = rng.standard_normal((int(rng.integers(1, 2 * d + 1)), d))
    return [table[rng.integers(0, len(table), len(z))] for z in Z]


def repeated(rng, Z):
    return [Z[i] for i in rng.integers(0, max(1, len(Z) // 3), len(Z))]


def duplicated(rng, Z):
    return [np.c_[z[:, :-1], z[:, 0]] for z in Z]


def proportional(rng, Z):
    Z = [np.round(z * 2**20) / 2**20 for z in Z]
    return [np.c_[z[:, :-1], -3 * 2.0**-9 * z[:, 0]] for z in Z]


def nearly_dependent(rng, Z):
    size = 10.0 ** -rng.uniform(0, 16)
    return [np.c_[z[:, :-1], z[:, 0] + size * z[:, -1]] for z in Z]


def dependent_up_to_rounding(rng, Z):
    mixture = rng.standard_normal(Z[0].shape[1] - 1)
    return [np.c_[z[:, :-1], z[:, :-1] @ mixture] if len(mixture) else z for z in Z]


def cancelling(rng, Z):
    mirror = np.r_[-1.0, np.ones(Z[0].shape[1] - 1)]
    return [np.concatenate([z * 1e8, z * 1e8 * mirror, z]) for z in Z]


def zero_only_as_computed(rng, Z):
    """(1 + e)(1 - e) - 1 is -e^2, which is rounded away."""
    pair = np.ones((2, Z[0].shape[1]))
    pair[0, 0], pair[0, -1], pair[1, -1] = 1 + 2.0**-30, 1 - 2.0**-30, -1.0
    return [pair * size for size in rng.standard_normal(len(Z))]


def underflowing(rng, Z):
    units = 10.0 ** -rng.uniform(100, 310, Z[0].shape[1]) if rng.random() < 0.5 else 1.0
    units = np.ones(Z[0].shape[1]) * units
    units[-1] = 10.0 ** -rng.uniform(100, 320)
    return [z * units for z in Z]


def spread(rng, Z):
    units = 10.0 ** np.linspace(0, 9, Z[0].shape[1])
    return [z * 10.0 ** rng.uniform(-20, 20) * units for z in Z]


def weightless(rng, Z):
    return Z


MAKERS = {
    maker.__name__.replace("_", " "): maker
    for maker in (
        signs,
        one_hot,
        scaled_one_hot,
        with_a_bias,
        vocabulary,
        repeated,
        duplicated,
        proportional,
        nearly_dependent,
        dependent_up_to_rounding,
        cancelling,
        zero_only_as_computed,
        underflowing,
        spread,
        weightless,
    )
}
KINDS = tuple(MAKERS)


def adversarial(rng, kind, N, d, longest=4):
    """N sequences of about ``longest`` tokens in R^d, and weights or None."""
    Z = [rng.standard_normal((int(rng.integers(1, longest + 1)), d)) for _ in range(N)]
    weights = None
    if kind == "weightless":
        weights = np.where(rng.random(N) < 0.7, 0.0, rng.random(N))
        weights[0] = 1.0
    return MAKERS[kind](rng, Z), weights
