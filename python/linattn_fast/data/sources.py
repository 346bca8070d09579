"""Data that is not in memory: how it is recognised, and how it is cut into batches.

- Stored arrays: numpy memory maps, and anything else with ``shape``, ``dtype`` and slices, such as
  Zarr arrays and HDF5 datasets. Tokens are (N, n, d), or (sum n_i, d) with offsets; targets may be
  stored or in memory. They are cut into batches by bytes, along the chunks they are stored in, and
  can be read again.
- Iterables of batches. A batch is ``(Z, y)`` or ``(Z, y, sample_weight)``, or a mapping with the
  names ``"Z"``, ``"y"``, ``"offsets"``, ``"sample_weight"``; where no targets are wanted, an array
  Z alone will do. A list, or any other object that ``iter`` starts anew, can be read again; an
  iterator, such as a generator, cannot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt

from ..arrays.device import in_cuda_memory
from ..arrays.floats import as_array
from ..arrays.libraries import axes_of, exports_memory
from ..arrays.types import Array, Floats, Positions
from .memory_map import copy_of
from .states import States
from .streams import Streams
from .tokens import Tokens, as_offsets, as_weights, require_form

BATCH_BYTES = 32 << 20
"""Bytes of tokens that are read at a time, at least."""
_LARGEST_BATCH = 128 << 20
"""Bytes of tokens that are read at a time, at most."""
_LARGEST_CHUNK = 4
"""Size in batches up to which stored chunks are read whole. Of a larger one, a part is read at a
time, and each part decompresses the chunk again."""


class Batch(NamedTuple):
    """A batch as it was read, not yet checked."""

    Z: object
    y: object
    offsets: object
    sample_weight: object
    end: int
    """Place in the source after this batch, in the source's unit."""
    where: str
    """Name of this batch in messages."""


class Source(Protocol):
    """Something to read batches from."""

    @property
    def unit(self) -> str:
        """What ``end`` and ``total`` count: "sequences" or "batches"."""
        ...

    @property
    def total(self) -> int | None:
        """Number of sequences or batches, if that is known."""
        ...

    @property
    def rereadable(self) -> bool:
        """Whether the data can be read again."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes that all of it takes in memory, beyond what is there; 0 where it is unknown."""
        ...

    def n_samples(self, positions: Positions) -> int | None:
        """Number of queries in all batches, where it is known before they are read."""
        ...

    def resized(self, moments_bytes: int, growth: int = 1) -> Source:
        """Cut into batches of a size that suits moments, or tokens that grow so many times."""
        ...

    def read(self) -> Iterator[Batch]:
        """Yield all batches, in order."""
        ...


def batch_bytes_for(moments_bytes: int) -> int:
    """Bytes of tokens to read at a time for moments of some size.

    Within limits, a batch has as many bytes as the moments: adding it then costs no more than
    reading it.
    """
    return min(max(BATCH_BYTES, moments_bytes), max(BATCH_BYTES, _LARGEST_BATCH))


def is_stored(value: object) -> bool:
    """Whether this is an array with shape, dtype and slices that is not in memory."""
    if isinstance(value, np.ndarray):
        return isinstance(value, np.memmap)
    if exports_memory(value) or in_cuda_memory(value):  # an array of another library
        return False
    named = hasattr(value, "dtype") and hasattr(value, "__getitem__")
    return named and isinstance(getattr(value, "shape", None), tuple)


def _looks_like_a_batch(item: object) -> bool:
    """Tell (Z, y) from a sequence of tokens, (n_i, d), whose first entry is a token."""
    if isinstance(item, Mapping):
        return True
    if not isinstance(item, list | tuple) or len(item) not in (2, 3):
        return False
    first = item[0]
    if isinstance(first, States | Streams):
        return True
    if hasattr(first, "shape") or exports_memory(first):
        return axes_of(first) >= 2
    return isinstance(first, list | tuple) and len(first) > 0 and np.ndim(first[0]) >= 1


def is_batches(value: object) -> bool:
    """Tell an iterable of batches from a batch."""
    if isinstance(value, list | tuple):
        return len(value) > 0 and (
            isinstance(value[0], States | Streams) or _looks_like_a_batch(value[0])
        )
    if isinstance(value, np.ndarray | Tokens | str | bytes | Mapping | set | frozenset):
        return False
    if hasattr(value, "__array__") or hasattr(value, "shape") or exports_memory(value):
        return False
    return isinstance(value, Iterable)


class _OfUnknownSize:
    """What sources have in common that learn of their batches by reading them."""

    nbytes = 0

    def n_samples(self, positions: Positions) -> int | None:
        """See :meth:`Source.n_samples`."""
        return None

    def resized(self, moments_bytes: int, growth: int = 1) -> Source:
        """See :meth:`Source.resized`: batches are as they come."""
        return cast(Source, self)


@dataclass
class Batches(_OfUnknownSize):
    """An iterable of batches."""

    iterable: Iterable[Any]
    unit: str = "batches"

    @property
    def rereadable(self) -> bool:
        """Whether the batches can be read again: those of an iterator cannot."""
        return not isinstance(self.iterable, Iterator)

    @property
    def total(self) -> int | None:
        """Number of batches, if it is known."""
        try:
            return len(self.iterable) if isinstance(self.iterable, Sized) else None
        except TypeError:  # a loader over a stream has a length that it refuses to tell
            return None

    def read(self) -> Iterator[Batch]:
        """Yield all batches, in order."""
        for i, item in enumerate(self.iterable):
            yield unpacked(item, i)


@dataclass
class Peeked(_OfUnknownSize):
    """A source that can be read only once, with its first batch put back."""

    first: Batch
    rest: Iterator[Batch]
    unit: str = "batches"
    total: int | None = None
    rereadable: bool = False

    def read(self) -> Iterator[Batch]:
        """Yield all batches."""
        return chain([self.first], self.rest)


def unpacked(item: object, i: int) -> Batch:
    """Take the i-th batch of an iterable apart."""
    names = ("Z", "y", "offsets", "sample_weight")
    where = f"batch {i}"
    if isinstance(item, Mapping):
        if "Z" not in item or not set(item) <= set(names):
            given = ", ".join(map(repr, item))
            raise ValueError(
                f"Z: a batch that is a mapping has {', '.join(map(repr, names))}, of which 'Z' is "
                f"needed; got {given or 'nothing'}; in {where}"
            )
        Z, y, offsets, weight = (item.get(name) for name in names)
        return Batch(Z, y, offsets, weight, i + 1, where)
    if isinstance(item, list | tuple) and len(item) in (2, 3):
        weight = item[2] if len(item) == 3 else None
        return Batch(item[0], item[1], None, weight, i + 1, where)
    if hasattr(item, "shape") or exports_memory(item) or isinstance(item, States | Streams):
        return Batch(item, None, None, None, i + 1, where)
    size = f" of {len(item)}" if isinstance(item, list | tuple) else ""
    raise TypeError(
        "Z: a batch must be (Z, y), (Z, y, sample_weight) or a mapping with these names, "
        f"got a {type(item).__name__}{size}; in {where}"
    )


@dataclass
class StoredArrays:
    """Stored tokens, with one row of targets per query, and weights."""

    Z: Any
    y: Any
    offsets: npt.NDArray[np.int64] | None
    weights: Floats | None
    positions: Positions
    batch_bytes: int
    unit: str = "sequences"
    rereadable: bool = True

    @property
    def total(self) -> int:
        """Number of sequences."""
        return int(self.Z.shape[0]) if self.offsets is None else len(self.offsets) - 1

    @property
    def nbytes(self) -> int:
        """Bytes of the tokens, and of the targets if they are stored."""
        stored = [self.Z] if self.y is None or not is_stored(self.y) else [self.Z, self.y]
        return sum(int(np.prod(x.shape, dtype=np.int64)) * _item_bytes(x) for x in stored)

    def n_samples(self, positions: Positions) -> int:
        """See :meth:`Source.n_samples`."""
        if positions == "last":
            return self.total
        return int(np.prod(self.Z.shape[:-1], dtype=np.int64))

    def resized(self, moments_bytes: int, growth: int = 1) -> StoredArrays:
        """See :meth:`Source.resized`."""
        return replace(self, batch_bytes=max(1, batch_bytes_for(moments_bytes) // growth))

    def _rows(self, first: int, last: int, positions: Positions) -> slice:
        """Entries of some sequences along the first axis of Z ("all"), or of y ("last")."""
        if self.offsets is None or positions == "last":
            return slice(first, last)
        return slice(int(self.offsets[first]), int(self.offsets[last]))

    def _end(self, first: int) -> int:
        """The end of the batch that begins with sequence ``first``."""
        row_bytes = max(1, _item_bytes(self.Z) * int(np.prod(self.Z.shape[1:], dtype=np.int64)))
        rows = max(1, self.batch_bytes // row_bytes)
        start: int = self._rows(first, first, "all").start
        chunk = _chunk_rows(self.Z)
        if chunk <= _LARGEST_CHUNK * rows:
            end = (start + max(rows, chunk)) // chunk * chunk  # the last whole chunk
        else:
            end = start + rows
        if self.offsets is not None:
            end = int(np.searchsorted(self.offsets, end, side="right")) - 1
        return min(max(end, first + 1), self.total)

    def read(self) -> Iterator[Batch]:
        """Yield all batches, cut by bytes, in order."""
        first = 0
        while first < self.total:
            last = self._end(first)
            rows = self._rows(first, last, "all")
            offsets = None
            if self.offsets is not None:
                offsets = self.offsets[first : last + 1] - self.offsets[first]
            y = None
            if self.y is not None:
                y = _part(self.y, self._rows(first, last, self.positions))
            yield Batch(
                _part(self.Z, rows),
                y,
                offsets,
                None if self.weights is None else self.weights[first:last],
                last,
                f"sequences {first}:{last}, counted from {first}",
            )
            first = last


def _part(array: Any, rows: slice) -> Array:
    """Entries of a stored array, in memory."""
    part = array[rows]
    return copy_of(part) if isinstance(part, np.memmap) else np.asarray(part)


def _item_bytes(array: Any) -> int:
    """Bytes of one number in memory, where integers become float64."""
    dtype = array.dtype
    return int(dtype.itemsize) if getattr(dtype, "kind", "f") == "f" else 8


def _chunk_rows(array: Any) -> int:
    """Entries along the first axis of a chunk of storage; 1 where there are no chunks."""
    chunks = getattr(array, "chunks", None)
    if not isinstance(chunks, Sequence) or len(chunks) == 0:
        return 1
    first = chunks[0]
    if isinstance(first, Sequence):  # Dask and xarray list every chunk
        first = max(first, default=1)
    return max(1, int(first))


def as_source(
    Z: object,
    y: object = None,
    *,
    offsets: object = None,
    sample_weight: object = None,
    positions: Positions = "last",
    moments_bytes: int = 0,
) -> Source | None:
    """Data that is not in memory as a source of batches; None for anything else."""
    if is_stored(Z):
        size = batch_bytes_for(moments_bytes)
        return _as_stored(Z, y, offsets, sample_weight, positions, size)
    if isinstance(Z, Iterator) or (y is None and is_batches(Z)):
        given = {"y": y, "offsets": offsets, "sample_weight": sample_weight}
        for name, value in given.items():
            if value is not None:
                raise ValueError(
                    f"{name}: Z is an iterable of batches, which bring their own {name}; "
                    "give (Z, y, sample_weight), or a mapping with these names, as a batch"
                )
        assert isinstance(Z, Iterable)
        return Batches(Z)
    return None


def _as_stored(
    Z: Any,
    y: Any,
    offsets: object,
    sample_weight: object,
    positions: Positions,
    batch_bytes: int,
) -> StoredArrays:
    shape = tuple(int(size) for size in Z.shape)
    require_form(shape, flat=offsets is not None, name="Z")
    checked = None if offsets is None else as_offsets(offsets, shape[0], "Z")
    n_sequences = shape[0] if checked is None else len(checked) - 1
    if y is not None and not is_stored(y):
        y = as_array(y, "y")
    rows = n_sequences if positions == "last" else shape[0]
    if y is not None and (len(y.shape) == 0 or y.shape[0] != rows):
        what = "sequence" if positions == "last" else "token"
        if checked is None:
            what = "sequence"
        raise ValueError(
            f"y: one entry a {what} is needed along its first axis, {rows}, "
            f"got shape {tuple(y.shape)}"
        )
    weights = as_weights(sample_weight, n_sequences)
    return StoredArrays(Z, y, checked, weights, positions, batch_bytes)
