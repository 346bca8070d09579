"""Sources of mapped tokens: each part is mapped when it is read, so never all of them are held."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ...arrays.types import Floats, Positions
from ..sources import BATCH_BYTES, Batch, Peeked, Source
from ..states import States
from ..streams import Streams
from ..tokens import Tokens, as_targets, as_tokens, as_weights
from .token_map import Map, TokenMap


@dataclass(frozen=True)
class MappedTokens:
    """Tokens in memory, mapped a part of the sequences at a time; see :class:`Source`."""

    tokens: Tokens
    """The tokens as they were given."""
    targets: Tokens | None
    weights: Floats | None
    map: TokenMap
    batch_bytes: int = 0
    """Bytes of mapped tokens in a part, at least."""
    unit: str = "sequences"
    rereadable: bool = True

    @property
    def total(self) -> int:
        """Number of sequences."""
        return len(self.tokens)

    @property
    def nbytes(self) -> int:
        """Bytes of all tokens, once they are mapped."""
        return self.map.bytes_of(self.tokens)

    def n_samples(self, positions: Positions) -> int:
        """See :meth:`Source.n_samples`."""
        return self.tokens.n_samples(positions)

    def resized(self, moments_bytes: int, growth: int = 1) -> MappedTokens:
        """See :meth:`Source.resized`: adding a part costs no more than making it."""
        return replace(self, batch_bytes=min(moments_bytes, BATCH_BYTES))

    def read(self) -> Iterator[Batch]:
        """Yield all parts, in order, each mapped now."""
        for first, last in self.map.pieces(self.tokens, self.batch_bytes):
            yield Batch(
                self.map.of(self.tokens.part(first, last), first),
                None if self.targets is None else self.targets.part(first, last),
                None,
                None if self.weights is None else self.weights[first:last],
                last,
                f"sequences {first}:{last}, counted from {first}",
            )


@dataclass(frozen=True)
class MappedStream:
    """A source of batches, each mapped when it is read; see :class:`Source`."""

    source: Source
    map: TokenMap
    positions: Positions

    @property
    def unit(self) -> str:
        """See :attr:`Source.unit`."""
        return self.source.unit

    @property
    def total(self) -> int | None:
        """See :attr:`Source.total`."""
        return self.source.total

    @property
    def rereadable(self) -> bool:
        """See :attr:`Source.rereadable`."""
        return self.source.rereadable

    @property
    def nbytes(self) -> int:
        """See :attr:`Source.nbytes`: about as many times more as there are coordinates."""
        return self.source.nbytes * self.map.width // self.map.d

    def n_samples(self, positions: Positions) -> int | None:
        """See :meth:`Source.n_samples`."""
        return self.source.n_samples(positions)

    def resized(self, moments_bytes: int, growth: int = 1) -> MappedStream:
        """See :meth:`Source.resized`: batches are small before they are mapped."""
        return self

    def read(self) -> Iterator[Batch]:
        """Yield all batches, in order, each mapped now."""
        for batch in self.source.read():
            tokens = as_tokens(batch.Z, batch.offsets, d=self.map.d)
            y = batch.y
            if y is not None:
                y = as_targets(y, tokens, self.positions)
            weights = tokens.given_weights(batch.sample_weight)
            yield batch._replace(Z=self.map.of(tokens), y=y, offsets=None, sample_weight=weights)


@dataclass(frozen=True)
class StreamParts:
    """Streams with maps, a part of the sequences at a time; see :class:`Source`."""

    streams: Streams
    targets: Tokens | None
    """Targets, a row for each query that exists."""
    weights: Floats | None
    """Weights of these queries."""
    ends: npt.NDArray[np.int64]
    """Numbers of queries that exist up to the end of each sequence, (N,)."""
    positions: Positions
    unit: str = "sequences"
    rereadable: bool = True

    @classmethod
    def of(
        cls,
        streams: Streams,
        y: object,
        sample_weight: object,
        positions: Positions,
        d_out: int | None,
    ) -> StreamParts:
        """Check targets and weights; ``d_out`` is 0 where there are no targets."""
        states = streams.unmapped().states(positions)
        targets = None if d_out == 0 else as_targets(y, states, "last", d_out=d_out)
        weights = as_weights(states.given_weights(sample_weight), len(states))
        assert states.queries is not None
        return cls(streams, targets, weights, np.cumsum(states.queries.lengths), positions)

    @property
    def total(self) -> int:
        """Number of sequences."""
        return len(self.streams)

    @property
    def nbytes(self) -> int:
        """Bytes of everything that is mapped."""
        return self.streams.mapped_bytes

    def n_samples(self, positions: Positions) -> int:
        """See :meth:`Source.n_samples`."""
        return int(self.ends[-1])

    def resized(self, moments_bytes: int, growth: int = 1) -> StreamParts:
        """See :meth:`Source.resized`: parts are small as they are."""
        return self

    def read(self) -> Iterator[Batch]:
        """Yield all parts that have a query, in order, each mapped now."""
        for first, last in self.streams.pieces():
            rows = slice(int(self.ends[first - 1]) if first else 0, int(self.ends[last - 1]))
            if rows.start == rows.stop:
                continue
            yield Batch(
                self.streams.part(first, last).states(self.positions).without_form(),
                None if self.targets is None else self.targets.part(rows.start, rows.stop),
                None,
                None if self.weights is None else self.weights[rows],
                last,
                f"sequences {first}:{last}, counted from {first}",
            )


def mapped_batch(
    Z: object,
    y: object,
    offsets: object,
    sample_weight: object,
    positions: Positions,
    value: Map,
    d_out: int | None = None,
) -> MappedTokens:
    """Check tokens in memory with their targets and weights; the map is tried on the first.

    ``d_out`` is 0 where there are no targets.
    """
    if isinstance(Z, States | Streams):
        raise TypeError(f"map: maps are for tokens, got {Z!r}")
    tokens = as_tokens(Z, offsets)
    token_map = TokenMap.tried(value, tokens)
    if d_out == 0 and y is not None:
        raise ValueError("y: there are no outputs, d_out = 0, so no targets are taken")
    targets = None if d_out == 0 else as_targets(y, tokens, positions, d_out=d_out)
    weights = as_weights(tokens.given_weights(sample_weight), len(tokens))
    return MappedTokens(tokens, targets, weights, token_map)


def mapped_stream(source: Source, value: Map, positions: Positions) -> MappedStream:
    """Map the batches of a source; the map is tried on the first of them."""
    batches = source.read()
    first = next(batches, None)
    if first is None:
        raise ValueError("Z: the stream is empty; at least one batch is needed")
    token_map = TokenMap.tried(value, as_tokens(first.Z, first.offsets))
    if source.rereadable:
        growth = max(1, int(np.ceil(token_map.width / token_map.d)))
        source = source.resized(0, growth)
    else:
        source = Peeked(first, batches, total=source.total)
    return MappedStream(source, token_map, positions)
