"""What a fit is asked for: its settings and its data, checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ..arrays.device import cupy
from ..arrays.types import Floats, Positions
from ..backend.interface import Precision
from ..data.tokens import Tokens, total_weight
from ..exact.modular_features import ModularData
from ..features.features import Features
from ..moments.moments import Moments
from ..system.progress import Bar


@dataclass(frozen=True)
class Problem:
    """Checked data of a fit, in memory."""

    tokens: Tokens
    targets: Tokens
    weights: Floats | None
    positions: Positions
    backend: str
    precision: Precision
    features: Features

    def __post_init__(self) -> None:
        total_weight(self.tokens, self.weights, self.positions)  # raises where it overflows

    @property
    def d_out(self) -> int:
        """Outputs."""
        return self.targets.d

    @property
    def n_samples(self) -> int:
        """Number of queries."""
        return self.tokens.n_samples(self.positions)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tokens where they are one array (N, n, d); () elsewhere."""
        tokens = self.tokens
        dense = not isinstance(tokens.storage, tuple) and tokens.offsets is None
        return tuple(tokens.arrays[0].shape) if dense else ()

    @property
    def scalar_targets(self) -> bool:
        """Whether the targets came without an axis of outputs."""
        return self.targets.scalar

    @contextmanager
    def parts(self) -> Iterator[Iterator[Problem]]:
        """Read the data, part by part: this is the only one."""
        yield iter([self])

    @property
    def sampled(self) -> tuple[Tokens, Floats | None, Positions, Features]:
        """What the features of the samples are made from: all but the targets."""
        return self.tokens, self.weights, self.positions, self.features

    @cached_property
    def modular(self) -> ModularData:
        """The samples modulo primes: one object, which keeps what was found."""
        return ModularData.of(*self.sampled)

    @property
    def nbytes(self) -> int:
        """Bytes of tokens and targets."""
        return sum(
            batch.n_rows * batch.d * batch.sequence(0).itemsize
            for batch in (self.tokens, self.targets)
        )

    def moments(self, progress: bool | Callable[[int, Any], object]) -> Moments:
        """Accumulate the moments of the data."""
        moments = Moments(
            self.tokens.d,
            self.targets.d,
            positions=self.positions,
            features=self.features,
            backend=self.backend,
            precision=self.precision,
        )
        with Bar(self.n_samples, "moments", progress) as report:
            moments.add_checked(self.tokens, self.targets, self.weights, report)
        return moments


def on_current_device(problem: Problem) -> Problem:
    """The same data on the current CUDA device, where it is not on one already."""
    here = cupy().empty(0)
    if problem.tokens.device is not None:
        return problem
    return replace(problem, tokens=problem.tokens.put(here), targets=problem.targets.put(here))
