"""Batches on a CUDA device: taken where they are, or brought from the host while others compute.

Host arrays are cut into pieces of some sequences each. Two slots, each of pinned host memory and of
device memory, take turns:

    host     | pack 0 | pack 1 |     pack 2     |
    copying           | copy 0 | copy 1 | copy 2 |          a stream of its own
    current                    | compute 0 | compute 1 |    the caller's stream

A copy waits, on the device, until the work on the piece that was in its slot is done; the host only
waits for the copy before the last, before it packs into that slot's memory again.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...arrays.device import cupy, cupyx
from ...arrays.types import Array, Floats, Positions
from ...data.tokens import Tokens
from ...features.features import Features
from . import extension

PIECE_BYTES = 32 << 20
"""Bytes of host data that are copied at a time: enough to fill a card, little beside its memory."""
_ALIGNMENT = 256
"""Bytes that each array within a slot is aligned to, as CuPy's pool aligns its own."""


class DeviceBatch(NamedTuple):
    """A batch as the kernels take it, all arrays on the current device, in C order."""

    tokens: Any
    """(N, n, d), or (rows, d) with ``offsets``."""
    offsets: Any
    """(N + 1,) of int64, or None."""
    targets: Any
    """(queries, d_out), or None."""
    weights: Any
    """(N,), or None."""
    bounds: npt.NDArray[np.int64] | None
    """The offsets on the host, for what is decided there."""

    @property
    def n_sequences(self) -> int:
        """Number of sequences."""
        return len(self.tokens) if self.bounds is None else len(self.bounds) - 1

    @property
    def n_rows(self) -> int:
        """Number of tokens in all sequences together."""
        rows: int = self.tokens.size // self.tokens.shape[-1]
        return rows

    @property
    def d(self) -> int:
        """Number of coordinates of a token."""
        return int(self.tokens.shape[-1])

    @property
    def d_out(self) -> int:
        """Number of outputs; 0 without targets."""
        return 0 if self.targets is None else int(self.targets.shape[-1])


def chosen_indices(features: Features) -> tuple[Any, Any]:
    """Chosen pairs and queries as the kernels take them: on the device, or None for all."""
    if features.everything:
        return None, None
    xp = cupy()
    return xp.asarray(features.pair_numbers, np.int64), xp.asarray(features.queries, np.int64)


def current_stream() -> int:
    """Pointer of CuPy's current stream on the current device."""
    return int(cupy().cuda.get_current_stream().ptr)


def on_current_device(array: Array) -> Any:
    """The array on the current device, in C order; copied only where it was not so already."""
    xp = cupy()
    return xp.ascontiguousarray(xp.asarray(array))


def device_samples(
    batch: DeviceBatch, positions: Positions, chosen: tuple[Any, Any] = (None, None)
) -> extension.kernels.Samples:
    """A batch as the kernels take it; ``chosen`` comes from :func:`chosen_indices`."""
    return extension.kernels.Samples(
        tokens=batch.tokens,
        offsets=batch.offsets,
        targets=batch.targets,
        weights=batch.weights,
        positions=positions,
        pairs=chosen[0],
        queries=chosen[1],
    )


def workspace(
    operation: Any,
    samples: extension.kernels.Samples,
    *,
    m: int = 0,
    d_out: int | None = None,
    kept: bool = False,
) -> Any:
    """Workspace of an operation on samples, from CuPy's pool."""
    size = samples.sizes.workspace_bytes(operation, m=m, d_out=d_out, kept=kept)
    return cupy().empty(max(size, 1), np.uint8)  # an empty array has no address


def device_batches(
    tokens: Tokens, targets: Tokens | None = None, weights: Floats | None = None
) -> Iterator[DeviceBatch]:
    """Yield the batch on the current device: as a whole if it is there, else piece by piece.

    Work on a piece must be queued on the current stream before the next one is asked for.
    """
    if tokens.device is None:
        yield from _streamed(tokens, targets, weights)
    else:
        yield whole_batch(tokens, targets, weights)


def whole_batch(
    tokens: Tokens, targets: Tokens | None = None, weights: Floats | None = None
) -> DeviceBatch:
    """The batch on the current device; only lists are copied where they are there already."""
    bounds = _bounds(tokens)
    storage = tokens.rows() if isinstance(tokens.storage, tuple) else tokens.storage
    return DeviceBatch(
        on_current_device(storage),
        None if bounds is None else on_current_device(bounds),
        None if targets is None else on_current_device(targets.rows()),
        None if weights is None else on_current_device(weights),
        bounds,
    )


def _bounds(tokens: Tokens) -> npt.NDArray[np.int64] | None:
    """Where sequences begin and end among the rows; None for a dense batch."""
    if isinstance(tokens.storage, tuple):
        return np.concatenate([[0], np.cumsum(tokens.lengths)])
    return tokens.offsets


# --------------------------------------------------------------------------- from the host


def _cuts(tokens: Tokens) -> list[int]:
    """Number of the first sequence of each piece of about PIECE_BYTES, none empty, and the end."""
    rows = np.concatenate([[0], np.cumsum(tokens.lengths)])
    step = max(1, PIECE_BYTES // (tokens.d * tokens.arrays[0].itemsize))
    cuts = [0]
    while cuts[-1] < len(tokens):
        fitting = int(np.searchsorted(rows, rows[cuts[-1]] + step, side="right")) - 1
        cuts.append(max(fitting, cuts[-1] + 1))
    return cuts


def _parts(
    tokens: Tokens, targets: Tokens | None, weights: Floats | None
) -> Iterator[list[list[Array] | None]]:
    """Arrays of each piece, each as a list of arrays to put together; None if absent."""
    cuts = _cuts(tokens)
    for first, last in pairwise(cuts):
        part = tokens.part(first, last)
        bounds = _bounds(part)
        yield [
            list(part.arrays),
            None if bounds is None else [bounds],
            None if targets is None else list(targets.part(first, last).arrays),
            None if weights is None else [weights[first:last]],
        ]


def _nbytes(arrays: list[Array] | None) -> int:
    """Number of bytes that arrays take in a slot."""
    size = sum(array.nbytes for array in arrays or ())
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class _Slot:
    """Pinned host memory and device memory for one piece."""

    def __init__(self, nbytes: int) -> None:
        cuda = cupy().cuda
        self._pinned = cupyx().empty_pinned(nbytes, np.uint8)
        self._memory = cupy().empty(nbytes, np.uint8)
        self.copied = cuda.Event(disable_timing=True)
        self.used = cuda.Event(disable_timing=True)

    def send(self, part: list[list[Array] | None], copying: Any) -> list[Any]:
        """Copy the arrays of a piece to the device, on the stream ``copying``."""
        self.copied.synchronize()  # until then, the pinned memory is being read
        found: list[Any] = []
        end = 0
        for arrays in part:
            if arrays is None:
                found.append(None)
                continue
            start, end = end, end + _nbytes(arrays)
            shape = (sum(map(len, arrays)), *arrays[0].shape[1:])
            size = sum(array.nbytes for array in arrays)
            place = self._pinned[start : start + size].view(arrays[0].dtype).reshape(shape)
            np.concatenate(arrays, out=place)
            view = self._memory[start : start + size]
            found.append(view.view(arrays[0].dtype).reshape(shape))
        copying.wait_event(self.used)  # until then, the device memory is being computed with
        self._memory[:end].set(self._pinned[:end], stream=copying)
        self.copied.record(copying)
        return found


def _streamed(
    tokens: Tokens, targets: Tokens | None, weights: Floats | None
) -> Iterator[DeviceBatch]:
    """Yield pieces of host data, each copied while the device works on those before it."""
    parts = list(_parts(tokens, targets, weights))  # views alone
    cuda = cupy().cuda
    current, copying = cuda.get_current_stream(), cuda.Stream(non_blocking=True)
    largest = max(sum(map(_nbytes, part)) for part in parts)
    slots = [_Slot(largest) for _ in parts[:2]]
    # The memory may still be in use by work that was queued before it was given to us.
    copying.wait_event(current.record())
    try:
        for i, part in enumerate(parts):
            slot = slots[i % 2]
            Z, offsets, y, w = slot.send(part, copying)
            current.wait_event(slot.copied)
            bounds = None if part[1] is None else part[1][0]
            y = None if y is None else y.reshape(-1, y.shape[-1])
            yield DeviceBatch(Z, offsets, y, w, bounds)
            slot.used.record(current)
    finally:
        for slot in slots:  # both memories go back to their pools, so no copy may be under way
            slot.copied.synchronize()
