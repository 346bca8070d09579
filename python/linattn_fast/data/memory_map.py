"""Memory maps, read without keeping their pages in this process's memory."""

from __future__ import annotations

import mmap

import numpy as np

from ..arrays.types import Array


def _mapping(array: object) -> mmap.mmap | None:
    """The memory map that an array lies in; None for other arrays."""
    while isinstance(array, np.ndarray):
        array = array.base
    return array if isinstance(array, mmap.mmap) else None


def copy_of(part: Array) -> Array:
    """Copy a part of a memory map, and give its pages back.

    A page that was touched counts as memory of this process until the system needs it elsewhere;
    giving it back leaves it in the system's cache of the file. Pages of private maps (mode "c") are
    kept, because they may hold changes that exist nowhere else.
    """
    copy = np.array(part, subok=False)
    mapping = _mapping(part)
    shared = isinstance(part, np.memmap) and part.mode in ("r", "r+", "w+")
    if mapping is None or not shared or not hasattr(mapping, "madvise") or part.size == 0:
        return copy
    # First and last byte, whatever the signs of the strides
    reach = [(n - 1) * stride for n, stride in zip(part.shape, part.strides, strict=True)]
    start = part.ctypes.data - np.frombuffer(mapping, np.uint8).ctypes.data
    end = start + sum(max(0, step) for step in reach) + part.itemsize
    start += sum(min(0, step) for step in reach)
    start -= start % mmap.PAGESIZE
    mapping.madvise(mmap.MADV_DONTNEED, start, end - start)
    return copy
