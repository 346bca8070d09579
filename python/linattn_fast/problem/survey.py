"""One reading of a stream before the work: how much there is, and a copy of it where that is small.

A copy rounded to float32 takes half the bytes, and products with the Gram of rounded samples are as
good as products that are themselves rounded to float32: the iteration recomputes its residuals from
the stream (:mod:`linattn_fast.solvers.conjugate_gradients.narrow`). So a stream is read a handful
of times, not once an iteration.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

import numpy as np

from ..arrays.types import Array
from ..data.passed import PassedStates
from ..data.states import States, joined_states
from ..data.stream_states import StreamStates, joined_streams
from ..data.tokens import Tokens, as_tokens
from ..features.samples import Samples

_MAPPED_FROM = 1 << 18
"""Bytes of a copy from which it has pages of its own."""
_TOGETHER = 8 << 20
"""Bytes of small batches that are held as one, so that a pass makes few calls."""


@dataclass
class Survey:
    """What one reading of all parts has found."""

    n_samples: int = 0
    n_columns: int = 0
    """Number of matrices S that are formed of them."""
    weight: float = 0.0
    largest_weight: float = 0.0
    nbytes: int = 0
    """Bytes of tokens and targets."""
    rounded: list[Samples] | None = field(default_factory=list)
    """All samples in float32, without targets; None where they do not fit or overflow."""

    @property
    def held(self) -> int:
        """Bytes of the rounded samples."""
        return sum(part.nbytes for part in self.rounded or ())

    def add(self, part: Samples, room: int) -> None:
        """Count a part, and hold a rounded copy of it as long as all copies fit in the room."""
        self.n_samples += part.n_samples
        self.n_columns += part.n_columns
        self.weight += part.total_weight
        self.largest_weight = max(self.largest_weight, part.largest_weight)
        self.nbytes += part.nbytes
        if self.rounded is None:
            return
        if part.device is not None or self.held + _rounded_bytes(part.tokens) > room:
            self.rounded = None
            return
        copy = _rounded(part)
        if copy is None:
            self.rounded = None
        elif self.rounded and self.rounded[-1].nbytes + copy.nbytes <= _TOGETHER:
            self.rounded[-1] = joined([self.rounded[-1], copy])
        else:
            self.rounded.append(copy)


def survey(read: Callable[[], AbstractContextManager[Iterator[Samples]]], room: int) -> Survey:
    """Read all parts once, and hold their rounded copies where these fit in so many bytes."""
    found = Survey()
    with read() as parts:
        for part in parts:
            found.add(part, room)
    return found


def _rounded_bytes(tokens: Tokens) -> int:
    return sum(4 * array.size for array in tokens.arrays)


def _rounded(part: Samples) -> Samples | None:
    """A copy in float32, without targets; None where a number is too large for it."""
    with np.errstate(over="ignore", under="ignore"):
        tokens = part.tokens.mapped(_to_float32)
    if not all(np.isfinite(array).all() for array in tokens.arrays):
        return None
    return replace(part, tokens=tokens, targets=None)


def _to_float32(array: Array) -> Array:
    """A copy in any case: a source may fill the same array with its next batch."""
    if 4 * array.size < _MAPPED_FROM:
        return np.array(array, dtype=np.float32)
    # Pages of its own: they go back to the system when they are let go, between other arrays too
    pages = mmap.mmap(-1, 4 * array.size)
    copy: Array = np.frombuffer(pages, np.float32, array.size).reshape(array.shape)
    copy[...] = array
    return copy


def joined(parts: list[Samples]) -> Samples:
    """All samples of some parts as one batch."""
    if len(parts) == 1:
        return parts[0]
    given = [part.targets for part in parts if part.targets is not None]
    targets = None
    if given:
        scalar = all(part.scalar_targets for part in parts)
        targets = replace(_joined_targets(given), scalar=scalar)
    weights = None
    if any(part.weights is not None for part in parts):
        ones = (np.ones(p.n_sequences) if p.weights is None else p.weights for p in parts)
        weights = np.concatenate(list(ones))
    tokens = _joined_tokens([part.tokens for part in parts])
    return replace(parts[0], tokens=tokens, targets=targets, weights=weights)


def _joined_targets(parts: list[Tokens]) -> Tokens:
    """Targets of all parts: one array where each part is one, of sequences of one length."""
    arrays = [part.storage for part in parts if not isinstance(part.storage, tuple)]
    dense = len(arrays) == len(parts) and all(part.offsets is None for part in parts)
    if dense and parts[0].device is None and len({array.shape[1:] for array in arrays}) == 1:
        return Tokens(np.concatenate(arrays))
    return as_tokens([y for part in parts for y in part])


def _joined_tokens(parts: list[Tokens]) -> Tokens:
    passed = [part.of for part in parts if isinstance(part, PassedStates)]
    if passed:
        whole = _joined_states(passed)
        assert isinstance(whole, States)
        return PassedStates(whole)
    return _joined_states(parts)


def _joined_states(parts: Sequence[Tokens]) -> Tokens:
    streams = [part for part in parts if isinstance(part, StreamStates)]
    if len(streams) == len(parts):
        return joined_streams(streams)
    states = [part for part in parts if isinstance(part, States)]
    if streams:
        raise TypeError("Z: batches must be all States or all Streams to be gathered, got both")
    return joined_states(states) if states else as_tokens([z for part in parts for z in part])
