"""Digests of batches: what a checkpoint remembers of the data that it holds the sums of.

A batch has one 64-bit number for its tokens, one for its targets and one for its weights: BLAKE2b
of the kind of number, the width, the lengths of the sequences and all values in their order. The
form that the sequences come in, one array or a list, has no part in it, nor have weights of 1.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np

from .device import to_host
from .tokens import Array, Floats, Tokens


class BatchDigest(NamedTuple):
    """Digests of the parts of a batch."""

    tokens: int
    targets: int
    weights: int


def digest_of(tokens: Tokens, targets: Tokens | None, weights: Floats | None) -> BatchDigest:
    """Digest a checked batch."""
    ones = np.ones(len(tokens)) if weights is None else weights
    return BatchDigest(_of_rows(tokens), 0 if targets is None else _of_rows(targets), _number(ones))


def _of_rows(batch: Tokens) -> int:
    """Digest the rows of all sequences, (n_i, d) each."""
    header = f"{batch.sequence(0).dtype.str} {batch.d}".encode()
    return _number(np.frombuffer(header, np.uint8), batch.lengths, *batch.arrays)


def _number(*arrays: Array) -> int:
    """Digest the values of arrays, one after the other."""
    state = hashlib.blake2b(digest_size=8)
    for array in arrays:
        state.update(np.ascontiguousarray(to_host(array)).data)
    return int.from_bytes(state.digest(), "little")
