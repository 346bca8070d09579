"""Data sets that are hard on rounding: one seed, one case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

import linattn_fast as la

from .oracle import Exact

Generator = np.random.Generator
POSITIONS = ("last", "all", "causal")


@dataclass(frozen=True)
class Case:
    """Sequences in R^d with targets, weights and chosen features."""

    kind: str
    sequences: list[np.ndarray]
    targets: list[np.ndarray]
    """One row a query, (queries, d_out) for each sequence."""
    weights: np.ndarray | None
    positions: str
    features: la.Features

    @property
    def d(self) -> int:
        """Coordinates."""
        return self.features.d

    @property
    def y(self) -> object:
        """Targets as the package takes them."""
        if self.positions == "last":
            return np.concatenate(self.targets)
        return self.targets

    @cached_property
    def exact(self) -> Exact:
        """The same in exact arithmetic."""
        return Exact.of(
            self.sequences,
            self.positions,
            self.weights,
            self.features.pairs,
            self.features.queries,
            np.concatenate(self.targets),
        )

    def describe(self) -> str:
        """What it is, in a line."""
        weights = "no weights" if self.weights is None else "weights"
        return (
            f"{self.kind}: d = {self.d}, {len(self.sequences)} sequences, {self.positions}, "
            f"{weights}, {self.features.count} features"
        )


def _lengths(rng: Generator, N: int, longest: int = 5) -> np.ndarray:
    return rng.integers(1, longest + 1, N)


def gaussian(rng: Generator, N: int, d: int) -> list[np.ndarray]:
    """Healthy data."""
    return [rng.standard_normal((n, d)) for n in _lengths(rng, N)]


def integers(rng: Generator, N: int, d: int) -> list[np.ndarray]:
    """Small integers: often exactly singular."""
    most = int(rng.integers(1, 4))
    return [rng.integers(-most, most + 1, (n, d)).astype(float) for n in _lengths(rng, N)]


def signs(rng: Generator, N: int, d: int) -> list[np.ndarray]:
    """Tokens of +-1: S_jj is the same for all j."""
    return [rng.choice([-1.0, 1.0], (n, d)) for n in _lengths(rng, N)]


def one_hot(rng: Generator, N: int, d: int) -> list[np.ndarray]:
    """Words."""
    return [np.eye(d)[rng.integers(d, size=n)] for n in _lengths(rng, N)]


def correlated(rng: Generator, N: int, d: int) -> list[np.ndarray]:
    """Coordinates that follow the first one, up to a small share."""
    share = 10.0 ** -rng.uniform(0, 9)
    mixing = np.eye(d)
    mixing[:, 1:] *= share
    mixing[0, 1:] = 1.0
    return [z @ mixing for z in gaussian(rng, N, d)]


def scaled(rng: Generator, N: int, d: int) -> list[np.ndarray]:
    """Coordinates in very different units."""
    units = 10.0 ** rng.uniform(-12, 12, d)
    return [z * units for z in gaussian(rng, N, d)]


def uneven(rng: Generator, N: int, d: int) -> list[np.ndarray]:
    """Sequences in very different units."""
    return [z * 10.0 ** rng.uniform(-8, 8) for z in gaussian(rng, N, d)]


def extreme(rng: Generator, N: int, d: int) -> list[np.ndarray]:
    """Numbers whose products leave the range of floats, or nearly."""
    center, spread = rng.uniform(-60, 45), rng.uniform(0, 110)
    exponents = (
        np.clip(rng.uniform(center - spread, center, (n, d)), -320, 45) for n in _lengths(rng, N, 3)
    )
    return [rng.standard_normal(e.shape) * 10.0**e for e in exponents]


def cancelling(rng: Generator, N: int, d: int) -> list[np.ndarray]:
    """Tokens in pairs whose products cancel in S."""
    size = 10.0 ** rng.uniform(0, 9)
    sequences = []
    for _ in range(N):
        z = rng.standard_normal((2, d)) * size
        other = z.copy()
        other[:, 0] *= -1
        sequences.append(np.concatenate([z, other, rng.standard_normal((1, d))]))
    return sequences


def repeated(rng: Generator, N: int, d: int) -> list[np.ndarray]:
    """A few sequences over and over."""
    few = gaussian(rng, int(rng.integers(1, 5)), d)
    return [few[i] for i in rng.integers(len(few), size=N)]


def dependent(rng: Generator, N: int, d: int) -> list[np.ndarray]:
    """A coordinate that is another one, exactly, or a constant."""
    sequences = gaussian(rng, N, d)
    factor = rng.choice([1.0, 2.0, -0.5, 3.0])
    for z in sequences:
        z[:, -1] = factor * z[:, 0] if d > 1 and factor < 3 else 1.0
    return sequences


def nearly_repeated(rng: Generator, N: int, d: int) -> list[np.ndarray]:
    """Sequences that differ in their last bits."""
    size = 10.0 ** -rng.uniform(5, 15.5)
    return [z * (1 + size * rng.standard_normal(z.shape)) for z in repeated(rng, N, d)]


def narrow(rng: Generator, N: int, d: int) -> list[np.ndarray]:
    """Tokens of single precision."""
    return [z.astype(np.float32).astype(float) for z in gaussian(rng, N, d)]


def sparse(rng: Generator, N: int, d: int) -> list[np.ndarray]:
    """Tokens that are mostly zero, queries sometimes altogether."""
    return [z * (rng.random(z.shape) < 0.4) for z in gaussian(rng, N, d)]


def tiny_part(rng: Generator, N: int, d: int) -> list[np.ndarray]:
    """What tells the last directions apart is very small."""
    size = 10.0 ** -rng.uniform(1, 8)
    basis = rng.standard_normal(d)
    return [
        rng.standard_normal((n, 1)) * basis + size * rng.standard_normal((n, d))
        for n in _lengths(rng, N)
    ]


KINDS: tuple[Callable[[Generator, int, int], list[np.ndarray]], ...] = (
    gaussian, integers, signs, one_hot, correlated, scaled, uneven, extreme, cancelling, repeated,
    dependent, nearly_repeated, narrow, sparse, tiny_part,
)  # fmt: skip


def _weights(rng: Generator, N: int) -> np.ndarray | None:
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


def _features(rng: Generator, d: int) -> la.Features:
    if rng.random() < 0.6:
        return la.Features(d)
    pairs = np.stack(np.triu_indices(d), axis=1)
    m, t = int(rng.integers(1, len(pairs) + 1)), int(rng.integers(1, d + 1))
    chosen = rng.choice(len(pairs), m, replace=False)
    return la.Features(d, pairs[chosen], rng.choice(d, t, replace=False))


def _targets(rng: Generator, case: Case, d_out: int) -> list[np.ndarray]:
    """Of a layer, with or without noise, or nothing but noise."""
    kind = rng.integers(3)
    rows = [1 if case.positions == "last" else len(z) for z in case.sequences]
    noise = [rng.standard_normal((n, d_out)) for n in rows]
    if kind == 0:
        return noise
    C = rng.standard_normal((d_out, case.features.count))
    pairs, queries = case.features.pairs, case.features.queries
    outputs = []
    for z in case.sequences:
        where = range(len(z)) if case.positions != "last" else [len(z) - 1]
        with np.errstate(all="ignore"):
            h = []
            for t in where:
                seen = z[: t + 1] if case.positions == "causal" else z
                S = seen.T @ seen
                h.append((S[pairs[:, 0], pairs[:, 1]][:, None] * z[t][queries]).ravel())
            outputs.append(np.asarray(h) @ C.T)
    largest = max(float(np.abs(y).max()) for y in outputs)
    if not np.isfinite(largest):
        return noise
    size = largest * 10.0 ** -rng.uniform(0, 12) if kind == 1 else 0.0
    return [y + size * e for y, e in zip(outputs, noise, strict=True)]


def case_of(seed: int) -> Case:
    """The data set of a seed."""
    rng = np.random.default_rng([20241010, seed])
    d = int(rng.choice([1, 2, 2, 2, 3]))
    positions = str(rng.choice(POSITIONS))
    features = _features(rng, d)
    queries = 3 if positions != "last" else 1
    most = max(2, int(rng.uniform(0.3, 3.0) * features.count / queries))
    N = int(rng.integers(1, most + 1))
    make = KINDS[int(rng.integers(len(KINDS)))]
    case = Case(make.__name__, make(rng, N, d), [], _weights(rng, N), positions, features)
    targets = _targets(rng, case, int(rng.integers(1, 3)))
    return Case(case.kind, case.sequences, targets, case.weights, positions, features)
