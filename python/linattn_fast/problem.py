"""What a fit is asked for: its settings and its data, checked."""

from __future__ import annotations

import numbers
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from .backend import Precision
from .device import cupy
from .features import Features
from .few_heads import require_every_feature
from .memory import as_memory_limit, estimate_memory, require_memory
from .modular_features import ModularData
from .moments import Moments
from .pcg import Pcg
from .progress import Bar
from .recovery import METHODS
from .solve import SOLVERS, Solver
from .tokens import Floats, Positions, Tokens, as_size, total_weight


def as_heads(heads: object) -> str | int | None:
    """Check which heads are asked for."""
    if heads is None or (isinstance(heads, str) and heads in METHODS):
        return heads
    if isinstance(heads, bool | np.bool_) or not isinstance(heads, numbers.Integral):
        raise ValueError(
            f"heads: must be {', '.join(map(repr, METHODS))}, a number of heads or None, "
            f"got {heads!r}"
        )
    return as_size(heads, "heads")


@dataclass(frozen=True)
class Settings:
    """Checked settings of a fit."""

    alpha: float
    heads: str | int | None
    solver: Solver
    certify: bool
    memory_limit: int | None
    tol: float | None = None
    """Of conjugate gradients, see :class:`~linattn_fast.pcg.Pcg`."""

    @classmethod
    def of(
        cls,
        alpha: float,
        heads: str | int | None,
        solver: Solver | Pcg,
        certify: bool,
        memory_limit: int | None,
    ) -> Settings:
        """Settings as users give them."""
        if isinstance(solver, Pcg):
            return cls(alpha, heads, "pcg", certify, memory_limit, solver.tol)
        return cls(alpha, heads, solver, certify, memory_limit)

    def __post_init__(self) -> None:
        alpha = self.alpha
        if isinstance(alpha, bool) or not isinstance(alpha, numbers.Real):
            raise TypeError(f"alpha: a real number is needed, got {type(alpha).__name__}")
        if not 0 <= alpha <= sys.float_info.max:  # also false for NaN
            raise ValueError(f"alpha: must be finite and not negative, got {alpha!r}")
        object.__setattr__(self, "heads", as_heads(self.heads))
        if not isinstance(self.solver, str) or self.solver not in SOLVERS:
            raise ValueError(
                f"solver: must be one of {', '.join(SOLVERS)} or Pcg(tol=...), got {self.solver!r}"
            )
        as_memory_limit(self.memory_limit)

    def require_possible(
        self, features: Features, d_out: int, positions: Positions, n_samples: int | None
    ) -> None:
        """Raise what speaks against the work, such as the memory of the solver that runs first."""
        if isinstance(self.heads, int):
            require_every_feature(features)
        d = features.d
        estimate = estimate_memory(
            d, d_out, positions=positions, n_samples=n_samples, features=features
        )
        name = "cholesky" if self.solver == "auto" else self.solver
        needed = estimate.get(name, 0)  # unknown before a stream of unknown length is read
        what = f"fit: d = {d} ({features.count} features), solver {name!r},"
        if isinstance(self.heads, int):  # the dense second moment is their metric
            needed = max(needed, estimate["cholesky"])
            what = f"{what} heads = {self.heads},"
        require_memory(needed, what, as_memory_limit(self.memory_limit))


class Stages(dict[str, float]):
    """Seconds per stage."""

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the time of a block to a stage."""
        start = time.perf_counter()
        yield
        self[name] = self.get(name, 0.0) + time.perf_counter() - start


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
