"""The data of a fit as a stream: every pass over it is one reading, a batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from typing import Any

from ..arrays.types import Floats, Positions, Values
from ..backend.choice import get_backend
from ..backend.interface import Backend, Precision
from ..backend.normal_operator import Gradient, added
from ..data.read_ahead import read_ahead
from ..data.sources import Batch, Peeked, Source, batch_bytes_for
from ..data.tokens import require_positive
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
from .survey import Survey, joined, survey


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
    surveys: list[Survey] = field(default_factory=list)
    """What a first reading has found; empty before it."""

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
        """See :attr:`Problem.n_samples`: stored arrays tell it, others once they were read."""
        if self.surveys:
            return self.surveys[0].n_samples
        return self.source.n_samples(self.positions)

    @property
    def n_columns(self) -> int | None:
        """See :attr:`Problem.n_columns`."""
        if self.surveys:
            return self.surveys[0].n_columns
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
        with self._parts() as parts:
            return self._added(parts, name, *arguments)

    def _added(self, parts: Iterable[Samples], name: str, *arguments: Floats) -> Any:
        """Sum the results over parts that are at hand, or come one after the other."""

        def of_part(part: Samples) -> Any:
            return getattr(self.engine.normal_operator(part, keep=False), name)(*arguments)

        return reduce(added, map(of_part, parts))

    def beginning(self, count: int) -> Samples | None:
        """See :meth:`Problem.beginning`."""
        if self.read is None:
            return None
        some: list[Samples] = []
        with self.read() as parts:
            for part in parts:
                missing = count - sum(each.n_samples for each in some)
                # A few sequences more where these differ in their number of samples
                size = -(-missing * part.n_sequences // part.n_samples)
                some.append(part.part(0, min(size, part.n_sequences)))
                if missing <= part.n_samples:
                    break
        return joined([replace(part, targets=None) for part in some])

    @property
    def gradient(self) -> Callable[[Floats], Gradient] | None:
        """See :attr:`Problem.gradient`."""
        return partial(self._total, "gradient") if self.source.rereadable else None

    def survey(self, room: int) -> Survey | None:
        """See :meth:`Problem.survey`: one reading, made once."""
        if self.read is None:
            return None
        if not self.surveys:
            self.surveys.append(survey(self.read, room))
        return self.surveys[0]

    def passes(self, *, keep: bool, room: int = 0) -> Passes:
        """See :meth:`Problem.passes`: a first reading counts the samples and their weight."""
        found = self.survey(room)
        assert found is not None
        require_positive(found.weight)
        # Taken over: they are to live no longer than these passes
        held, rounded, found.rounded = found.held, found.rounded, None
        operator = SummedOperator(
            self.features,
            self.d_out,
            found.n_samples,
            found.weight,
            self._total,
            self._added,
            rounded or [],
        )
        how = "the stream read in every pass"
        if rounded:
            how = "the stream held in float32, and read again for residuals"
        noise = found.weight / found.largest_weight
        release = bool if rounded is None else rounded.clear
        return Passes(operator, noise, how, kept=bool(rounded), held=held, release=release)

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
        return InMemory(joined(parts), self.engine, self.precision)


def streamed(
    source: Source,
    positions: Positions,
    features: Features | None,
    backend: str,
    precision: Precision,
    values: Values = "mixed",
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
    some = checked_batch(first, positions, of_states, d=None, d_out=d_out, values=values)
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
