"""Data made to mislead floating point: nearly or exactly dependent, cancelling, underflowing.

Each maker gets N and d, and returns N sequences of a few tokens in R^d, (n_i, d). Where a single
coordinate misbehaves it is the last one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Generator = np.random.Generator
Sequences = list[np.ndarray]

LONGEST = 5
"""Tokens of a sequence, at most, where nothing else is said."""


def _lengths(rng: Generator, N: int, longest: int = LONGEST) -> np.ndarray:
    return rng.integers(1, longest + 1, N)


def gaussian(rng: Generator, N: int, d: int) -> Sequences:
    """Healthy data."""
    return [rng.standard_normal((n, d)) for n in _lengths(rng, N)]


# ------------------------------------------------------------------------------------ few values


def integers(rng: Generator, N: int, d: int) -> Sequences:
    """Small integers: often exactly singular."""
    most = int(rng.integers(1, 4))
    return [rng.integers(-most, most + 1, (n, d)).astype(float) for n in _lengths(rng, N)]


def signs(rng: Generator, N: int, d: int) -> Sequences:
    """Tokens of +-1: S_jj is the same for all j."""
    return [rng.choice([-1.0, 1.0], (n, d)) for n in _lengths(rng, N)]


def one_hot(rng: Generator, N: int, d: int) -> Sequences:
    """Tokens with a single one: S_jk is zero for j < k."""
    return [np.eye(d)[rng.integers(d, size=n)] for n in _lengths(rng, N)]


def scaled_one_hot(rng: Generator, N: int, d: int) -> Sequences:
    """One-hot tokens with numbers that floats cannot represent in the place of ones."""
    return [0.3 * z * rng.standard_normal(d) for z in one_hot(rng, N, d)]


def with_a_bias(rng: Generator, N: int, d: int) -> Sequences:
    """One-hot tokens with a constant coordinate."""
    return [np.c_[z[:, :-1], np.full(len(z), 0.1)] for z in one_hot(rng, N, d)]


def vocabulary(rng: Generator, N: int, d: int) -> Sequences:
    """Tokens from a small table."""
    table = rng.standard_normal((int(rng.integers(1, 2 * d + 1)), d))
    return [table[rng.integers(len(table), size=n)] for n in _lengths(rng, N)]


def narrow(rng: Generator, N: int, d: int) -> Sequences:
    """Tokens of single precision."""
    return [z.astype(np.float32).astype(float) for z in gaussian(rng, N, d)]


def sparse(rng: Generator, N: int, d: int) -> Sequences:
    """Tokens that are mostly zero, queries sometimes altogether."""
    return [z * (rng.random(z.shape) < 0.4) for z in gaussian(rng, N, d)]


# ------------------------------------------------------------------------------------ dependence


def repeated(rng: Generator, N: int, d: int) -> Sequences:
    """A few sequences over and over."""
    few = gaussian(rng, int(rng.integers(1, 5)), d)
    return [few[i] for i in rng.integers(len(few), size=N)]


def nearly_repeated(rng: Generator, N: int, d: int) -> Sequences:
    """Sequences that differ in their last bits."""
    size = 10.0 ** -rng.uniform(5, 15.5)
    return [z * (1 + size * rng.standard_normal(z.shape)) for z in repeated(rng, N, d)]


def dependent(rng: Generator, N: int, d: int) -> Sequences:
    """A coordinate that is a multiple of another one, exactly, or a constant."""
    Z = [np.round(z * 2**20) / 2**20 for z in gaussian(rng, N, d)]
    factor = rng.choice([1.0, 2.0, -0.5, -3 * 2.0**-9, np.nan])
    constant = d == 1 or np.isnan(factor)
    return [np.c_[z[:, :-1], np.ones(len(z)) if constant else factor * z[:, 0]] for z in Z]


def dependent_up_to_rounding(rng: Generator, N: int, d: int) -> Sequences:
    """A coordinate that is a combination of the others as computed, and so not exactly."""
    mixture = rng.standard_normal(d - 1)
    return [np.c_[z[:, :-1], z[:, :-1] @ mixture] if d > 1 else z for z in gaussian(rng, N, d)]


def correlated(rng: Generator, N: int, d: int) -> Sequences:
    """Coordinates that follow the first one, up to a small share."""
    mixing = np.eye(d)
    mixing[:, 1:] *= 10.0 ** -rng.uniform(0, 9)
    mixing[0, 1:] = 1.0
    return [z @ mixing for z in gaussian(rng, N, d)]


def nearly_dependent(rng: Generator, N: int, d: int) -> Sequences:
    """A coordinate that is the first one up to as little as rounding."""
    size = 10.0 ** -rng.uniform(0, 16)
    return [np.c_[z[:, :-1], z[:, 0] + size * z[:, -1]] for z in gaussian(rng, N, d)]


def tiny_part(rng: Generator, N: int, d: int) -> Sequences:
    """Tokens on a line, but for something very small."""
    size = 10.0 ** -rng.uniform(1, 8)
    line = rng.standard_normal(d)
    return [z[:, :1] * line + size * z for z in gaussian(rng, N, d)]


# ---------------------------------------------------------------------------------- cancellation


def cancelling(rng: Generator, N: int, d: int) -> Sequences:
    """Tokens in pairs whose products cancel in S, and one that is left."""
    size = 10.0 ** rng.uniform(0, 9)
    mirror = np.r_[-1.0, np.ones(d - 1)]
    pairs = [size * rng.standard_normal((2, d)) for _ in range(N)]
    return [np.concatenate([z, z * mirror, rng.standard_normal((1, d))]) for z in pairs]


def zero_only_as_computed(rng: Generator, N: int, d: int) -> Sequences:
    """(1 + e)(1 - e) - 1 is -e^2, which is rounded away."""
    pair = np.ones((2, d))
    pair[0, 0], pair[0, -1], pair[1, -1] = 1 + 2.0**-30, 1 - 2.0**-30, -1.0
    return [pair * size for size in rng.standard_normal(N)]


# ----------------------------------------------------------------------------------------- sizes


def scaled(rng: Generator, N: int, d: int) -> Sequences:
    """Coordinates in very different units."""
    units = 10.0 ** rng.uniform(-12, 12, d)
    return [z * units for z in gaussian(rng, N, d)]


def uneven(rng: Generator, N: int, d: int) -> Sequences:
    """Sequences in very different units."""
    return [z * 10.0 ** rng.uniform(-8, 8) for z in gaussian(rng, N, d)]


def underflowing(rng: Generator, N: int, d: int) -> Sequences:
    """Coordinates whose squares are below the smallest number: all of them, or the last one."""
    units = 10.0 ** -rng.uniform(100, 310, d) if rng.random() < 0.5 else np.ones(d)
    units[-1] = 10.0 ** -rng.uniform(100, 320)
    return [z * units for z in gaussian(rng, N, d)]


def extreme(rng: Generator, N: int, d: int) -> Sequences:
    """Numbers whose products leave the range of floats, or nearly."""
    center, spread = rng.uniform(-60, 45), rng.uniform(0, 110)
    exponents = (
        np.clip(rng.uniform(center - spread, center, (n, d)), -320, 45) for n in _lengths(rng, N, 3)
    )
    return [rng.standard_normal(e.shape) * 10.0**e for e in exponents]


MAKERS: dict[str, Callable[[Generator, int, int], Sequences]] = {
    maker.__name__.replace("_", " "): maker
    for maker in (
        gaussian, integers, signs, one_hot, scaled_one_hot, with_a_bias, vocabulary, narrow, sparse,
        repeated, nearly_repeated, dependent, dependent_up_to_rounding, correlated,
        nearly_dependent, tiny_part, cancelling, zero_only_as_computed, scaled, uneven,
        underflowing, extreme,
    )
}  # fmt: skip
KINDS = tuple(MAKERS)


def weights(rng: Generator, N: int) -> np.ndarray | None:
    """Weights of N sequences, at least one positive: none, healthy, of any size, or many zeros."""
    kind = rng.integers(6)
    if kind < 3:
        return None
    if kind == 3:
        return rng.random(N) + 0.5
    w = 10.0 ** rng.uniform(-12, 3, N) if kind == 4 else rng.integers(0, 3, N).astype(float)
    if rng.random() < 0.2:
        w = w * 10.0 ** rng.uniform(-250, 150)
    w[int(rng.integers(N))] = w.max() if w.max() > 0 else 1.0
    return w


def adversarial(rng: Generator, kind: str, N: int, d: int) -> tuple[Sequences, np.ndarray | None]:
    """N sequences in R^d, and weights or None."""
    return MAKERS[kind](rng, N, d), weights(rng, N)
