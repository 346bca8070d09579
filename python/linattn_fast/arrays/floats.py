"""Reading what the caller gave as an array of numbers that compiled code can use in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .device import brought_over, device_of, is_on_device, module_of, on_device, to_host
from .foreign import conversion, unreadable


def as_array(value: object, name: str) -> npt.NDArray[Any]:
    """Return the value as a numpy array."""
    given = to_host(brought_over(value, name))
    try:
        return np.asarray(given)
    except Exception as error:  # the object's own conversion may raise anything
        raise unreadable(name, error) from None


def as_floats(value: object, name: str) -> npt.NDArray[Any]:
    """Return the value as a float32 or float64 array that compiled code can read in place."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name}: masked arrays are not supported; fill or drop the masked entries")
    if isinstance(value, np.ndarray):
        return _readable(value, name, value)
    array = brought_over(value, name)
    with on_device(device_of(array)):
        return _readable(array, name, value)


def _readable(value: Any, name: str, given: object) -> npt.NDArray[Any]:
    array = value if is_on_device(value) else as_array(value, name)
    if array.dtype.kind in "iub":
        return array.astype(np.float64)
    if array.dtype.kind == "O" and not isinstance(value, np.ndarray):
        kind = type(value).__name__
        raise TypeError(
            f"{name}: dtype must be float32, float64 or an integer type; "
            f"this {kind} cannot be read as an array of numbers"
        )
    if array.dtype.kind != "f" or array.dtype.itemsize not in (4, 8):
        hint = f"; convert it with {conversion(given)}" if "float" in array.dtype.name else ""
        raise TypeError(
            f"{name}: dtype must be float32, float64 or an integer type, got {array.dtype}{hint}"
        )
    if is_on_device(array):  # compiled code reads C order there
        contiguous: npt.NDArray[Any] = module_of(array).ascontiguousarray(array)
        return contiguous
    array = array.view(np.ndarray)
    uneven = any(stride % array.itemsize for stride in array.strides)
    if not array.dtype.isnative or not array.flags.aligned or uneven:
        array = array.astype(array.dtype.newbyteorder("="))
    return array


def as_matrix(value: object, name: str, ndim: int) -> npt.NDArray[np.float64]:
    """Check a real, finite array of given dimension, as contiguous float64."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name}: masked arrays are not supported; fill the masked entries")
    value = brought_over(value, name)
    with on_device(device_of(value)):
        return _as_matrix(value, name, ndim)


def _as_matrix(value: object, name: str, ndim: int) -> npt.NDArray[np.float64]:
    xp = module_of(value)
    array: Any = value if is_on_device(value) else as_array(value, name)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name}: real numbers are needed, got dtype {array.dtype}")
    if array.ndim != ndim:
        raise ValueError(f"{name}: an array of {ndim} axes is needed, got shape {array.shape}")
    copy: npt.NDArray[np.float64] = xp.array(array, dtype=np.float64, order="C")
    if not xp.isfinite(copy).all():
        raise ValueError(f"{name}: must be finite")
    return copy
