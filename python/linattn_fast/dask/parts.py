"""Parts of data on the workers of a cluster: what a task of :mod:`linattn_fast.dask` works with.

Nothing here needs Dask: a part is made from batches and answers with moments or with its share of
the normal equations, both of the size of the answer and not of the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, NamedTuple

import numpy as np

from ..arrays.types import Floats, Positions
from ..backend.interface import Precision
from ..backend.normal_operator import (
    Gradient,
    KroneckerFactors,
    NormalOperator,
    NormalProduct,
    Sums,
    added,
)
from ..data.sources import unpacked
from ..data.tokens import Tokens, as_targets, as_tokens, as_weights
from ..features.features import Features, as_features
from ..features.left_out import require_none_left_out
from ..moments.moments import Moments
from ..moments.streaming import located
from ..problem.in_memory import Problem
from ..problem.summed import operator_of
from ..system.machine import num_threads, same_bits


@dataclass(frozen=True)
class Kind:
    """What is to be computed from every part, and how."""

    positions: Positions
    features: Features | None
    backend: str
    precision: Precision
    threads: int
    """Of one task."""


class Described(NamedTuple):
    """Sizes of a part, or of several."""

    d: int
    d_out: int
    n_samples: int
    total_weight: float
    largest_weight: float
    scalar_targets: bool
    """Whether all targets came without an axis of outputs."""


_DERIVED = ("batches", "operators")


class Part:
    """Checked batches, in the memory of one worker.

    Parameters
    ----------
    batches
        As :mod:`linattn_fast.data.sources` has them.
    number
        For messages.
    kind
        The same for all parts.
    """

    def __init__(self, batches: Iterable[Any], number: int, kind: Kind) -> None:
        self.kind = kind
        self.number = number
        self._given = [unpacked(item, i) for i, item in enumerate(batches)]
        _ = self.batches  # what is wrong is said now

    @cached_property
    def batches(self) -> list[tuple[Tokens, Tokens | None, Floats | None]]:
        """Tokens, targets and weights, checked."""
        found: list[tuple[Tokens, Tokens | None, Floats | None]] = []
        d = d_out = None
        for batch in self._given:
            with located(f"{batch.where} of part {self.number}"):
                tokens = as_tokens(batch.Z, batch.offsets, d=d)
                targets = None
                if batch.y is not None:
                    targets = as_targets(batch.y, tokens, self.kind.positions, d_out=d_out)
                elif d_out:
                    raise ValueError("y: targets are needed in every batch or in none, got None")
                weights = as_weights(batch.sample_weight, len(tokens))
                features = as_features(self.kind.features, tokens.d)
                require_none_left_out(tokens, weights, self.kind.positions, features)
                found.append((tokens, targets, weights))
            d, d_out = tokens.d, 0 if targets is None else targets.d
        return found

    def __sizeof__(self) -> int:  # what Dask takes for the memory of this object
        return sum(
            array.nbytes
            for tokens, targets, _ in self.batches
            for batch in (tokens, targets)
            if batch is not None
            for array in batch
        )

    def __getstate__(self) -> dict[str, object]:
        # The given batches alone: arrays that come through a socket need not be aligned, and
        # checking them again puts that right
        return {name: value for name, value in vars(self).items() if name not in _DERIVED}

    @same_bits
    def moments(self) -> Moments | None:
        """Moments of the part; None when it is empty."""
        kind, total = self.kind, None
        with num_threads(kind.threads), located(f"part {self.number}"):
            for tokens, targets, weights in self.batches:
                if total is None:
                    total = Moments(
                        tokens.d,
                        0 if targets is None else targets.d,
                        positions=kind.positions,
                        features=kind.features,
                        backend=kind.backend,
                        precision=kind.precision,
                    )
                total.add_checked(tokens, targets, weights, None)
        return total

    @cached_property
    def operators(self) -> list[NormalOperator]:
        """The normal equations of each batch."""
        kind, found = self.kind, []
        for tokens, targets, weights in self.batches:
            if targets is None:
                raise ValueError(f"y: targets are needed to fit, got None; in part {self.number}")
            chosen = as_features(kind.features, tokens.d)
            problem = Problem(
                tokens, targets, weights, kind.positions, kind.backend, kind.precision, chosen
            )
            # Packed samples are kept where they take no more memory than the tokens themselves
            packed = problem.n_samples * (chosen.n_pairs + chosen.n_queries)
            found.append(operator_of(problem, keep=packed <= tokens.n_rows * tokens.d))
        return found

    def describe(self) -> Described | None:
        """Sizes of the part; None when it is empty."""
        if not self.batches:
            return None
        return Described(
            self.batches[0][0].d,
            self.operators[0].d_out,
            sum(operator.n_samples for operator in self.operators),
            sum(operator.total_weight for operator in self.operators),
            max(1.0 if w is None else float(w.max()) for _, _, w in self.batches),
            all(targets is not None and targets.scalar for _, targets, _ in self.batches),
        )

    def kronecker_factors(self) -> KroneckerFactors | None:
        """See :meth:`NormalOperator.kronecker_factors`; None when the part is empty."""
        return self._summed(NormalOperator.kronecker_factors)

    def normal(self, C: Floats) -> NormalProduct | None:
        """See :meth:`NormalOperator.normal`; None when the part is empty."""
        return self._summed(NormalOperator.normal, C)

    def gradient(self, C: Floats) -> Gradient | None:
        """See :meth:`NormalOperator.gradient`; None when the part is empty."""
        return self._summed(NormalOperator.gradient, C)

    @same_bits
    def _summed(self, method: Callable[..., Sums], *arrays: Floats) -> Sums | None:
        """Results of a method of the normal equations of each batch, added up."""
        arrays = tuple(np.require(C, np.float64, ["C", "ALIGNED"]) for C in arrays)
        with num_threads(self.kind.threads), located(f"part {self.number}"):
            results = (getattr(operator, method.__name__)(*arrays) for operator in self.operators)
            return reduce(added, results) if self.operators else None


def merged_moments(parts: list[Moments | None]) -> Moments | None:
    """Add up moments in the order given."""
    found = [moments for moments in parts if moments is not None]
    return found[0].merged(found[1:]) if found else None


def merged_sums(parts: list[Any]) -> Any:
    """Add up results of the normal equations in the order given."""
    found = [sums for sums in parts if sums is not None]
    return reduce(added, found) if found else None


def merged_sizes(parts: list[Described | None]) -> Described | None:
    """Sizes of all parts together."""
    found = [sizes for sizes in parts if sizes is not None]
    if not found:
        return None
    for name in ("d", "d_out"):
        values = {getattr(sizes, name) for sizes in found}
        if len(values) > 1:
            raise ValueError(f"{name}: all parts must agree, got {sorted(values)}")
    return Described(
        found[0].d,
        found[0].d_out,
        sum(sizes.n_samples for sizes in found),
        sum(sizes.total_weight for sizes in found),
        max(sizes.largest_weight for sizes in found),
        all(sizes.scalar_targets for sizes in found),
    )
