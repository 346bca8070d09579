"""Digests of batches: what a checkpoint remembers of the data whose sums it holds.

A batch has one 64-bit number for its tokens, one for its targets and one for its weights. Each is
made from the kind of number, the width, the lengths of the sequences and all values x_1, x_2, ..:

    lower half   CRC-32 of all bytes, which sees their order
    upper half   the sum of the bits of all x_i, modulo 2^32 - 1

Both run at the speed of memory, so they cost little beside a Gram; they detect accidents, not
forgeries. Sequences have the same digest as one array and as a list, and weights of 1 the same as
none.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from ..arrays.types import Array
from ..data.states import States
from ..data.stream_states import StreamStates
from ..data.tokens import Tokens
from ..features.samples import Samples

_ROWS_AT_ONCE = 1 << 12
"""Rows of short sequences that are put together."""


class BatchDigest(NamedTuple):
    """Digests of the parts of a batch."""

    tokens: int
    targets: int
    weights: int


def digest_of(samples: Samples) -> BatchDigest:
    """Digest a checked batch."""
    targets, weights = samples.targets, samples.weights
    ones = np.ones(samples.n_sequences) if weights is None else weights
    return BatchDigest(
        _of_rows(samples.tokens), 0 if targets is None else _of_rows(targets), _number([ones])
    )


def _of_rows(batch: Tokens) -> int:
    """Digest the rows of all sequences, (n_i, d) each."""
    batch = batch.put(np.zeros(0))  # on the host
    kind = np.frombuffer(f"{batch.sequence(0).dtype.str} {batch.d}".encode(), np.uint8)
    return _number([kind, batch.lengths, *_pieces(batch)])


def _pieces(batch: Tokens) -> Iterator[Array]:
    """Yield all rows; short sequences are put together to a few thousand rows."""
    if isinstance(batch, StreamStates):
        yield from batch.arrays
        yield from (batch.sequences, batch.seen)
        if batch.gates is not None:
            yield batch.gates
        return
    if isinstance(batch, States):
        yield from batch.arrays
        return
    if not isinstance(batch.storage, tuple):
        yield batch.storage
        return
    waiting: list[Array] = []
    rows = 0
    for sequence in batch.storage:
        waiting.append(sequence)
        rows += len(sequence)
        if rows >= _ROWS_AT_ONCE:
            yield np.concatenate(waiting)
            waiting, rows = [], 0
    if waiting:
        yield np.concatenate(waiting)


def _number(arrays: Iterable[Array]) -> int:
    """Digest the values of arrays, one after the other."""
    crc = total = 0
    for array in map(np.ascontiguousarray, arrays):
        crc = zlib.crc32(array.data, crc)
        total += int(array.view(f"u{array.itemsize}").sum(dtype=np.uint64))
    return total % (2**32 - 1) << 32 | crc
