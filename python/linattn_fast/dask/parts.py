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
from ..backend.choice import get_backend
from ..backend.interface import Precision
from ..backend.normal_operator import (
    Gradient,
    KroneckerFactors,
    NormalOperator,
    NormalProduct,
    PassResult,
    added,
)
from ..data.sources import unpacked
from ..features.features import Features
from ..features.samples import Samples
from ..moments.moments import Moments
from ..moments.streaming import checked_batch, located
from ..system.machine import num_threads, same_bits


@dataclass(frozen=True)
class PartSettings:
    """What is computed from every part, and how."""

    positions: Positions
    features: Features | None
    backend: str
    precision: Precision
    threads: int
    """Number of threads of one task."""


class PartSizes(NamedTuple):
    """Sizes of a part, or of several together."""

    d: int
    d_out: int
    n_samples: int
    total_weight: float
    largest_weight: float
    scalar_targets: bool
    """Whether all targets came without an axis of outputs."""
    features: Features
    """Which features take part: those asked for, or all that tokens or states have."""


_DERIVED = ("batches", "operators")


class Part:
    """Checked batches, in the memory of one worker.

    Parameters
    ----------
    batches
        Batches in any form that :mod:`linattn_fast.data.sources` reads.
    number
        Number of the part, for messages.
    settings
        What is computed, the same for all parts.
    """

    def __init__(self, batches: Iterable[Any], number: int, settings: PartSettings) -> None:
        self.settings = settings
        self.number = number
        self._given = [unpacked(item, i) for i, item in enumerate(batches)]
        _ = self.batches  # checked now, so that errors come early

    @cached_property
    def batches(self) -> list[Samples]:
        """The batches, checked."""
        found: list[Samples] = []
        d = d_out = None
        for batch in self._given:
            here = batch._replace(where=f"{batch.where} of part {self.number}")
            if batch.y is None and d_out:
                raise ValueError(
                    f"y: targets are needed in every batch or in none, got None; in {here.where}"
                )
            outputs = 0 if batch.y is None else d_out or None
            positions = self.settings.positions
            features = found[0].features if found else self.settings.features
            samples = checked_batch(here, positions, features, d=d, d_out=outputs)
            found.append(samples)
            d, d_out = samples.tokens.d, samples.d_out
        return found

    def __sizeof__(self) -> int:  # what Dask takes for the memory of this object
        return sum(samples.nbytes for samples in self.batches)

    def __getstate__(self) -> dict[str, object]:
        # The given batches alone: arrays that come through a socket need not be aligned, and
        # checking them again puts that right
        return {name: value for name, value in vars(self).items() if name not in _DERIVED}

    @same_bits
    def moments(self) -> Moments | None:
        """Moments of the part; None when it is empty."""
        settings, total = self.settings, None
        with num_threads(settings.threads), located(f"part {self.number}"):
            for samples in self.batches:
                if total is None:
                    total = Moments(
                        samples.tokens.d,
                        samples.d_out,
                        positions=settings.positions,
                        features=samples.features,
                        backend=settings.backend,
                        precision=settings.precision,
                    )
                total.add(total.totals_of(samples))
        return total

    @cached_property
    def operators(self) -> list[NormalOperator]:
        """The normal equations of each batch."""
        found = []
        for samples in self.batches:
            if samples.targets is None:
                raise ValueError(f"y: targets are needed to fit, got None; in part {self.number}")
            chosen = samples.features
            engine = get_backend(self.settings.backend, samples.tokens)
            # Packed samples are kept where they take no more memory than the tokens themselves
            packed = samples.n_samples * (chosen.n_pairs + chosen.n_queries)
            keep = packed <= samples.tokens.n_rows * samples.tokens.d
            found.append(engine.normal_operator(samples, keep=keep))
        return found

    def sizes(self) -> PartSizes | None:
        """Sizes of the part; None when it is empty."""
        if not self.batches:
            return None
        return PartSizes(
            self.batches[0].tokens.d,
            self.operators[0].d_out,
            sum(operator.n_samples for operator in self.operators),
            sum(operator.total_weight for operator in self.operators),
            max(samples.largest_weight for samples in self.batches),
            all(samples.scalar_targets for samples in self.batches),
            self.batches[0].features,
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
    def _summed(self, method: Callable[..., PassResult], *arrays: Floats) -> PassResult | None:
        """Sum the results that a method of the normal equations has on each batch."""
        arrays = tuple(np.require(C, np.float64, ["C", "ALIGNED"]) for C in arrays)
        with num_threads(self.settings.threads), located(f"part {self.number}"):
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


def merged_sizes(parts: list[PartSizes | None]) -> PartSizes | None:
    """Add up the sizes of all parts."""
    found = [sizes for sizes in parts if sizes is not None]
    if not found:
        return None
    for name in ("d", "d_out"):
        values = {getattr(sizes, name) for sizes in found}
        if len(values) > 1:
            raise ValueError(f"{name}: all parts must agree, got {sorted(values)}")
    features = {sizes.features for sizes in found}
    if len(features) > 1:
        kinds = " and ".join(sorted(map(repr, features)))
        raise ValueError(f"Z: all parts must agree in their features, got {kinds}")
    return PartSizes(
        found[0].d,
        found[0].d_out,
        sum(sizes.n_samples for sizes in found),
        sum(sizes.total_weight for sizes in found),
        max(sizes.largest_weight for sizes in found),
        all(sizes.scalar_targets for sizes in found),
        found[0].features,
    )
