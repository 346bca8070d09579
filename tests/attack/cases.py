"""Adversarial data with targets, weights, positions and features: one seed, one case."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from oracles import loops
from oracles.adversarial import KINDS, adversarial
from oracles.exact import Exact

import linattn_fast as la

Generator = np.random.Generator
POSITIONS = ("last", "all", "causal")


@dataclass(frozen=True)
class Case:
    """Sequences in R^d with targets, weights and chosen features."""

    kind: str
    sequences: list[np.ndarray]
    weights: np.ndarray | None
    positions: str
    features: la.Features
    targets: list[np.ndarray] = field(default_factory=list)
    """One row a query, (queries, d_out) for each sequence."""

    @property
    def d(self) -> int:
        """Number of coordinates of a token."""
        return self.features.d

    @property
    def y(self) -> object:
        """Targets as the package takes them."""
        if self.positions == "last":
            return np.concatenate(self.targets)
        return self.targets

    @cached_property
    def exact(self) -> Exact:
        """The whole case in exact arithmetic."""
        return self.exactly(range(len(self.sequences)))

    def exactly(self, some: Iterable[int], weighted: bool = True) -> Exact:
        """Some of the sequences in exact arithmetic, with their weights or each with weight one."""
        chosen = list(some)
        return Exact.of(
            [self.sequences[i] for i in chosen],
            self.positions,
            self.weights[chosen] if weighted and self.weights is not None else None,
            self.features,
            np.concatenate([self.targets[i] for i in chosen]),
        )

    def describe(self) -> str:
        """What it is, in a line."""
        weights = "no weights" if self.weights is None else "weights"
        return (
            f"{self.kind}: d = {self.d}, {len(self.sequences)} sequences, {self.positions}, "
            f"{weights}, {self.features.count} features"
        )


def _features(rng: Generator, d: int) -> la.Features:
    if rng.random() < 0.6:
        return la.Features(d)
    pairs = np.stack(np.triu_indices(d), axis=1)
    m, t = int(rng.integers(1, len(pairs) + 1)), int(rng.integers(1, d + 1))
    chosen = rng.choice(len(pairs), m, replace=False)
    return la.Features(d, pairs[chosen], rng.choice(d, t, replace=False))


def _targets(rng: Generator, case: Case, d_out: int) -> list[np.ndarray]:
    """Outputs of a random layer, with or without noise, or nothing but noise."""
    kind = rng.integers(3)
    rows = [1 if case.positions == "last" else len(z) for z in case.sequences]
    noise = [rng.standard_normal((n, d_out)) for n in rows]
    if kind == 0:
        return noise
    C = rng.standard_normal((d_out, case.features.count))
    chosen = loops.columns(case.features)
    with np.errstate(all="ignore"):
        outputs = [loops.all_features([z], case.positions)[:, chosen] @ C.T for z in case.sequences]
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
    kind = str(rng.choice(KINDS))
    case = Case(kind, *adversarial(rng, kind, N, d), positions, features)
    return replace(case, targets=_targets(rng, case, int(rng.integers(1, 3))))
