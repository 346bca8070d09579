"""The data of a fit as a stream: every pass over it is one reading, a part at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from ..arrays.types import Floats, Positions
from ..backend.choice import get_backend
from ..backend.interface import Precision
from ..data.doubtful import warn_of_layout, warn_of_padding
from ..data.read_ahead import read_ahead
from ..data.sources import Batch, Source, StoredArrays, as_source, batch_bytes_for
from ..data.tokens import Tokens, as_targets, as_tokens, as_weights, require_positive
from ..features.compact import compact_bytes
from ..features.features import Features, as_features
from ..features.left_out import require_none_left_out
from ..moments.moments import Moments
from ..moments.streaming import accumulate, located
from ..system.machine import require_memory
from .in_memory import Problem


@dataclass(frozen=True)
class StreamedProblem:
    """Data of a fit that is read from a source; each part is checked when it comes."""

    source: Source
    d: int
    d_out: int
    positions: Positions
    backend: str
    precision: Precision
    features: Features
    forms: set[bool] = field(default_factory=set)
    """Whether targets of the parts read so far were scalar: {True}, {False}, or both."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tokens where they are one array (N, n, d); () elsewhere."""
        source = self.source
        if isinstance(source, StoredArrays) and source.offsets is None:
            return tuple(source.Z.shape)
        return ()

    @property
    def scalar_targets(self) -> bool:
        """Whether all targets, which have been read by now, came without an axis of outputs."""
        return self.forms == {True}

    @property
    def n_samples(self) -> int | None:
        """Number of queries, where that is known before the first reading."""
        if not isinstance(self.source, StoredArrays):
            return None
        if self.positions == "last":
            return self.source.total
        return int(np.prod(self.source.Z.shape[:-1], dtype=np.int64))

    def _part(self, batch: Batch) -> Problem:
        with located(batch.where):
            tokens = as_tokens(batch.Z, batch.offsets, d=self.d)
            targets = as_targets(batch.y, tokens, self.positions, d_out=self.d_out)
            weights = as_weights(batch.sample_weight, len(tokens))
            require_none_left_out(tokens, weights, self.positions, self.features)
        self.forms.add(targets.scalar)
        return Problem(
            tokens, targets, weights, self.positions, self.backend, self.precision, self.features
        )

    @contextmanager
    def parts(self) -> Iterator[Iterator[Problem]]:
        """Read the data, part by part."""
        with read_ahead(self.source.read()) as batches:
            yield map(self._part, batches)

    def moments(self, progress: bool | Callable[[int, Any], object]) -> Moments:
        """Accumulate the moments of the data."""
        empty = Moments(
            self.d,
            self.d_out,
            positions=self.positions,
            features=self.features,
            backend=self.backend,
            precision=self.precision,
        )
        moments = accumulate(self.source, empty, progress)
        self.forms.add(moments.scalar_targets)
        require_positive(moments.total_weight)
        return moments

    @property
    def bytes_to_load(self) -> int:
        """Bytes that the data takes in memory beyond what it has there, as far as is known."""
        source = self.source
        return source.nbytes + source.target_bytes if isinstance(source, StoredArrays) else 0

    def loaded(self, memory_limit: int | None = None, beside: int = 0) -> Problem:
        """Read all of the data into memory, where ``beside`` bytes are needed for other things."""
        what = "Z: the stream, which has to be in memory as a whole,"
        require_memory(self.bytes_to_load + beside, what, memory_limit)
        at_hand = isinstance(getattr(self.source, "iterable", None), list | tuple)
        everything, size = [], 0
        with self.parts() as parts:
            for part in parts:
                everything.append(part)
                size += part.nbytes
                if not at_hand:
                    require_memory(size + beside, what, memory_limit)
        require_positive(
            max(1.0 if part.weights is None else part.weights.max() for part in everything)
        )
        if len(everything) == 1:
            return everything[0]
        sequences = [z for part in everything for z in part.tokens]
        targets = [z for part in everything for z in part.targets]
        weights = [
            np.ones(len(part.tokens)) if part.weights is None else part.weights
            for part in everything
        ]
        weighted = any(part.weights is not None for part in everything)
        return Problem(
            as_tokens(sequences),
            replace(as_tokens(targets), scalar=all(part.scalar_targets for part in everything)),
            np.concatenate(weights) if weighted else None,
            self.positions,
            self.backend,
            self.precision,
            self.features,
        )


Data: TypeAlias = Problem | StreamedProblem
"""Data of a fit: in memory, or a stream of such parts."""


def as_data(
    Z: object,
    y: object,
    offsets: object,
    sample_weight: object,
    positions: Positions,
    features: Features | None,
    backend: str,
    precision: Precision,
) -> Data:
    """Check the data of a fit; a stream that comes in one piece is data in memory."""
    source = as_source(Z, y, offsets=offsets, sample_weight=sample_weight, positions=positions)
    if source is not None:
        streamed = _streamed_problem(source, positions, backend, precision, features)
        small = isinstance(source, StoredArrays) and source.nbytes <= source.batch_bytes
        return streamed.loaded() if small else streamed
    tokens = as_tokens(Z, offsets)
    chosen = as_features(features, tokens.d)
    targets = as_targets(y, tokens, positions)
    weights = as_weights(sample_weight, len(tokens))
    if weights is not None:
        require_positive(float(weights.max()))
    require_none_left_out(tokens, weights, positions, chosen)
    warn_of_padding(tokens, positions)
    warn_of_layout(tokens, targets, positions)
    engine = get_backend(backend, tokens).name
    return Problem(tokens, targets, weights, positions, engine, precision, chosen)


def _streamed_problem(
    source: Source,
    positions: Positions,
    backend: str,
    precision: Precision,
    features: Features | None,
) -> StreamedProblem:
    """Look at the first batch of a source, which tells d and d_out."""
    batches = source.read()
    first = next(batches, None)
    if first is None:
        raise ValueError("Z: the stream is empty; at least one batch is needed")
    with located(first.where):
        tokens = as_tokens(first.Z, first.offsets)
        targets = as_targets(first.y, tokens, positions)
        as_weights(first.sample_weight, len(tokens))
    warn_of_padding(tokens, positions)
    warn_of_layout(tokens, targets, positions)
    chosen = as_features(features, tokens.d)
    if isinstance(source, StoredArrays):
        size = batch_bytes_for(compact_bytes(chosen, targets.d, positions))
        source = replace(source, batch_bytes=size)
    elif not source.rereadable:
        source = Peeked(first, batches, total=source.total)
    engine = get_backend(backend, tokens).name
    return StreamedProblem(source, tokens.d, targets.d, positions, engine, precision, chosen)


@dataclass
class Peeked:
    """What can be read but once, with its first batch put back."""

    first: Batch
    rest: Iterator[Batch]
    unit: str = "batches"
    total: int | None = None
    rereadable: bool = False

    def read(self) -> Iterator[Batch]:
        """All batches."""
        return chain([self.first], self.rest)


def in_memory(
    problem: Data, memory_limit: int | None, why: str, beside: int
) -> tuple[Problem, str]:
    """The data with all samples at once, beside so many bytes, and the reason with that said."""
    if isinstance(problem, Problem):
        return problem, why
    loaded = problem.loaded(memory_limit, beside)
    return loaded, f"{why}; all samples of the stream loaded into memory"


@contextmanager
def tokens_of(problem: Data) -> Iterator[Iterator[tuple[Tokens, Floats | None]]]:
    """Read tokens and weights alone, part by part."""
    with problem.parts() as parts:
        yield ((part.tokens, part.weights) for part in parts)
