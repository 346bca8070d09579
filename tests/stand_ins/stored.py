"""Arrays that are not in memory, or pretend not to be."""

import numpy as np


class Stored:
    """What Zarr arrays and HDF5 datasets have in common: shape, dtype, slices, perhaps chunks."""

    def __init__(self, array, chunks=None):
        self._array = array
        self.shape, self.dtype = array.shape, array.dtype
        self.reads = []
        if chunks is not None:
            self.chunks = chunks

    def __getitem__(self, rows):
        assert isinstance(rows, slice)
        self.reads.append((rows.start, rows.stop))
        return self._array[rows]

    def __array__(self, *_, **__):
        raise AssertionError("read as a whole")


def on_disk(tmp_path, name, array):
    """A memory map of a copy of the array."""
    path = tmp_path / f"{name}.npy"
    np.save(path, array)
    return np.load(path, mmap_mode="r")
