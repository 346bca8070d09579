"""The data of a fit as a stream: every pass over it is one reading, a batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from typing import Any

import numpy as np

from ..arrays.types import Floats, Positions
from ..backend.choice import get_backend
from ..backend.interface import Backend, Precision
from ..backend.normal_operator import Gradient, added
from ..data.read_ahead import read_ahead
from ..data.sources import Batch, Peeked, Source, batch_bytes_for
from ..data.states import States, joined_states
from ..data.stream_states import StreamStates, joined_streams
from ..data.tokens import Tokens, as_tokens, require_positive
from ..exact.modular_features import ModularData, is_rounded
from ..features.compact import compact_bytes
from ..features.features import Features, as_features
from ..features.samples import Samples, warn_of_layout, warn_of_padding
from ..features.states import StateFeatures
from ..moments.moments import Moments
from ..moments.streaming import accumulate, checked_batch
from ..system.machine import require_memory
from .in_memory import InMemory
from .interface import Needs, Passes, ShowProgress
from .passes import SummedOperator


@dataclass(frozen=True)
class Streamed:
    """Data that is read from a source; each part is checked when it comes; see :class:`Problem`."""

    source: Source
    d: int
    d_out: int
    positions: Positions
    engine: Backend
    precision: Precision
    features: Features
    forms: set[bool] = field(default_factory=set)
    """Whether targets of the parts read so far were scalar: {True}, {False}, or both."""

    @property
    def samples(self) -> None:
        """See :attr:`Problem.samples`: they are not in memory."""
        return

    @property
    def scalar_targets(self) -> bool:
        """See :attr:`Problem.scalar_targets`."""
        return self.forms == {True}

    @property
    def n_samples(self) -> int | None:
        """See :attr:`Problem.n_samples`: stored arrays tell it."""
        return self.source.n_samples(self.positions)

    @property
    def n_columns(self) -> int | None:
        """See :attr:`Problem.n_columns`."""
        known = self.n_samples
        return known if known is None or self.positions != "all" else self.source.total

    @property
    def bytes_to_gather(self) -> int:
        """See :attr:`Problem.bytes_to_gather`."""
        return self.source.nbytes

    @property
    def note(self) -> str:
        """See :attr:`Problem.note`."""
        if self.source.rereadable:
            return ""
        return "a stream that is read once, so nothing is refined on the data"

    def refusal(self, solver: str, needs: Needs) -> str | None:
        """See :meth:`Problem.refusal`: one reading is enough for moments and to gather samples."""
        if needs == "samples on the host" and self.engine.on_device:
            return f"solver: {solver!r} works on the host; bring the arrays home, or take 'auto'"
        if needs == "samples on the host" and isinstance(self.features, StateFeatures):
            return f"solver: {solver!r} is for tokens, and these are states; take 'auto'"
        if self.source.rereadable or needs not in ("passes", "parts"):
            return None
        return (
            f"solver: {solver!r} reads the data again, and an iterator can be read only once; give "
            "a list of batches or stored arrays, or take 'cholesky' or 'eigh'"
        )

    def _part(self, batch: Batch) -> Samples:
        part = checked_batch(batch, self.positions, self.features, d=self.d, d_out=self.d_out)
        self.forms.add(part.scalar_targets)
        return part

    @contextmanager
    def _parts(self) -> Iterator[Iterator[Samples]]:
        """Open the source for one reading, part by part."""
        with read_ahead(self.source.read()) as batches:
            yield map(self._part, batches)

    @property
    def read(self) -> Callable[[], AbstractContextManager[Iterator[Samples]]] | None:
        """See :attr:`Problem.read`."""
        return self._parts if self.source.rereadable else None

    @cached_property
    def modular(self) -> ModularData | None:
        """See :attr:`Problem.modular`."""
        if self.read is None:
            return None
        if isinstance(self.features, StateFeatures):
            return self._modular_states(self.read)
        return ModularData(self.read, self.positions, self.features)

    def _modular_states(
        self, read: Callable[[], AbstractContextManager[Iterator[Samples]]]
    ) -> ModularData | None:
        """Exact features of states; None where they are streams, whose memory is rounded."""
        with read() as parts:
            if any(is_rounded(part.tokens) for part in parts):
                return None
        return ModularData(read, "last", self.features)

    def moments(self, progress: ShowProgress = False) -> Moments:
        """See :meth:`Problem.moments`."""
        empty = Moments(
            self.d,
            self.d_out,
            positions=self.positions,
            features=self.features,
            backend=self.engine.name,
            precision=self.precision,
        )
        moments = accumulate(self.source, empty, progress)
        self.forms.add(moments.scalar_targets)
        require_positive(moments.total_weight)
        return moments

    def _total(self, name: str, *arguments: Floats) -> Any:
        """Sum, in order, the results that a method of the normal equations has on each part."""

        def of_part(part: Samples) -> Any:
            return getattr(self.engine.normal_operator(part, keep=False), name)(*arguments)

        with self._parts() as parts:
            return reduce(added, map(of_part, parts))

    @property
    def gradient(self) -> Callable[[Floats], Gradient] | None:
        """See :attr:`Problem.gradient`."""
        return partial(self._total, "gradient") if self.source.rereadable else None

    def passes(self, *, keep: bool) -> Passes:
        """See :meth:`Problem.passes`: a first reading counts the samples and their weight."""
        n_samples, weight, largest = 0, 0.0, 0.0
        with self._parts() as parts:
            for part in parts:
                n_samples += part.n_samples
                weight += part.total_weight
                largest = max(largest, part.largest_weight)
        require_positive(weight)
        operator = SummedOperator(self.features, self.d_out, n_samples, weight, self._total)
        return Passes(operator, weight / largest, "the stream read in every pass")

    def gathered(self, memory_limit: int | None = None, beside: int = 0) -> InMemory:
        """See :meth:`Problem.gathered`: one reading of all parts."""
        what = "Z: the stream, which has to be in memory as a whole,"
        require_memory(self.bytes_to_gather + beside, what, memory_limit)
        at_hand = isinstance(getattr(self.source, "iterable", None), list | tuple)
        parts: list[Samples] = []
        with self._parts() as given:
            for part in given:
                parts.append(part)
                if not at_hand:
                    size = sum(part.nbytes for part in parts)
                    require_memory(size + beside, what, memory_limit)
        require_positive(max(part.largest_weight for part in parts))
        return InMemory(_joined(parts), self.engine, self.precision)


def _joined(parts: list[Samples]) -> Samples:
    """All samples of some parts with targets, as one batch."""
    if len(parts) == 1:
        return parts[0]
    targets = as_tokens([y for part in parts if part.targets is not None for y in part.targets])
    weights = None
    if any(part.weights is not None for part in parts):
        ones = (np.ones(p.n_sequences) if p.weights is None else p.weights for p in parts)
        weights = np.concatenate(list(ones))
    return replace(
        parts[0],
        tokens=_joined_tokens([part.tokens for part in parts]),
        targets=replace(targets, scalar=all(part.scalar_targets for part in parts)),
        weights=weights,
    )


def _joined_tokens(parts: list[Tokens]) -> Tokens:
    streams = [part for part in parts if isinstance(part, StreamStates)]
    if len(streams) == len(parts):
        return joined_streams(streams)
    states = [part for part in parts if isinstance(part, States)]
    if streams:
        raise TypeError("Z: batches must be all States or all Streams to be gathered, got both")
    return joined_states(states) if states else as_tokens([z for part in parts for z in part])


def streamed(
    source: Source,
    positions: Positions,
    features: Features | None,
    backend: str,
    precision: Precision,
    d_out: int | None = None,
) -> Streamed | InMemory:
    """Make a problem of a source, whose first batch tells d and d_out; in memory if small.

    ``d_out`` is 0 where there are no targets.
    """
    batches = source.read()
    first = next(batches, None)
    if first is None:
        raise ValueError("Z: the stream is empty; at least one batch is needed")
    of_states = features if isinstance(features, StateFeatures) else None
    some = checked_batch(first, positions, of_states, d=None, d_out=d_out)
    if features is None or features.map is None:  # of mapped tokens, zeros say nothing
        warn_of_padding(some.tokens, positions)
        if some.targets is not None:
            warn_of_layout(some.tokens, some.targets, positions)
    chosen = some.features if features is None else as_features(features, some.tokens.d)
    small = 0 < source.nbytes <= batch_bytes_for(0)
    if source.rereadable:
        source = source.resized(compact_bytes(chosen, some.d_out, positions))
    else:
        source = Peeked(first, batches, total=source.total)
    engine = get_backend(backend, some.tokens)
    problem = Streamed(source, some.tokens.d, some.d_out, positions, engine, precision, chosen)
    return problem.gathered() if small else problem
