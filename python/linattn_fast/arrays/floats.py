"""Floating-point numbers: read from what the caller gave, and what rounding may do to them.

k roundings in a row err by at most gamma(k) = k u / (1 - k u), relative to the result, unless it is
below 2^-1022, the smallest normal number, where errors are absolute. Whether this thread computes
with such numbers at all is another question: a library may have told the processor to take them for
zero (``torch.set_flush_denormal``, or one compiled with -ffast-math). Sums then lose what bounds on
their rounding count on. The compiled core undoes that in its own threads; here it is undone for
work in numpy.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from . import compiled
from .device import cupy, device_of, is_on_device, on_device, to_host
from .libraries import brought_over, conversion, unreadable

UNIT = 2.0**-53
"""Relative error of one rounding in float64."""
NARROW_UNIT = 2.0**-24
"""Relative error of one rounding in float32."""

# ----------------------------------------------------------------------------- what the caller gave


def as_array(value: object, name: str) -> npt.NDArray[Any]:
    """Return the value as a numpy array."""
    given = value if isinstance(value, np.ndarray) else to_host(brought_over(value, name))
    try:
        return np.asarray(given)
    except Exception as error:  # the object's own conversion may raise anything
        raise unreadable(name, error) from None


def as_floats(value: object, name: str) -> npt.NDArray[Any]:
    """Return the value as a float32 or float64 array that compiled code can read in place."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name}: masked arrays are not supported; fill or drop the masked entries")
    if isinstance(value, np.ndarray):
        return _readable(_of_float_type(value, name, value))
    given = brought_over(value, name)
    if is_on_device(given):
        with on_device(device_of(given)):  # compiled code reads C order there
            contiguous: npt.NDArray[Any] = cupy().ascontiguousarray(
                _of_float_type(given, name, value)
            )
        return contiguous
    array = as_array(given, name)
    if array.dtype.kind == "O" and not isinstance(given, np.ndarray):
        raise TypeError(
            f"{name}: dtype must be float32, float64 or an integer type; "
            f"this {type(given).__name__} cannot be read as an array of numbers"
        )
    return _readable(_of_float_type(array, name, value))


def _of_float_type(array: Any, name: str, given: object) -> Any:
    """The array if it is of float32 or float64, or integers as float64; ``given`` gets a hint."""
    if array.dtype.kind in "iub":
        return array.astype(np.float64)
    if array.dtype.kind != "f" or array.dtype.itemsize not in (4, 8):
        hint = f"; convert it with {conversion(given)}" if "float" in array.dtype.name else ""
        raise TypeError(
            f"{name}: dtype must be float32, float64 or an integer type, got {array.dtype}{hint}"
        )
    return array


def _readable(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A view, or a copy where compiled code could not read the array's bytes or strides."""
    array = array.view(np.ndarray)
    uneven = any(stride % array.itemsize for stride in array.strides)
    if not array.dtype.isnative or not array.flags.aligned or uneven:
        array = array.astype(array.dtype.newbyteorder("="))
    return array


def as_matrix(value: object, name: str, ndim: int) -> npt.NDArray[np.float64]:
    """Check a real, finite array of given dimension, as contiguous float64."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name}: masked arrays are not supported; fill the masked entries")
    given = value if isinstance(value, np.ndarray) else brought_over(value, name)
    if isinstance(given, np.ndarray) or not is_on_device(given):
        return _finite_copy(np, as_array(given, name), name, ndim)
    with on_device(device_of(given)):
        return _finite_copy(cupy(), given, name, ndim)


def _finite_copy(xp: ModuleType, array: Any, name: str, ndim: int) -> npt.NDArray[np.float64]:
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name}: real numbers are needed, got dtype {array.dtype}")
    if array.ndim != ndim:
        raise ValueError(f"{name}: an array of {ndim} axes is needed, got shape {array.shape}")
    copy: npt.NDArray[np.float64] = xp.array(array, dtype=np.float64, order="C")
    if not xp.isfinite(copy).all():
        raise ValueError(f"{name}: must be finite")
    return copy


def all_finite(array: npt.NDArray[Any]) -> bool:
    """Whether an array on the host has no NaN and no infinity.

    A sum of squares that is finite tells, in one pass and without a second array; one that is not
    may have overflowed.
    """
    quick = array.flags.c_contiguous and array.dtype.kind == "f"
    return (quick and math.isfinite(np.vdot(array, array))) or bool(np.isfinite(array).all())


# ----------------------------------------------------------------------------- what rounding may do


def gamma(roundings: float, unit: float = UNIT) -> float:
    """k u / (1 - k u), which bounds the relative error of k roundings; infinite if k u >= 1."""
    error = roundings * unit
    return error / (1 - error) if error < 1 else float("inf")


def keeps_subnormals() -> bool:
    """Whether numbers below 2^-1022 are read as what they are, and results are not flushed."""
    smallest, normal = sys.float_info.min * sys.float_info.epsilon, sys.float_info.min
    return smallest + smallest > 0 and normal / 2 > 0


@contextmanager
def gradual_underflow() -> Iterator[None]:
    """Compute with numbers below 2^-1022 in this thread, as far as it can be arranged."""
    if compiled.MISSING is not None:  # nothing can be undone then, but it can be seen
        yield
        return
    before = compiled.core.set_default_environment()
    try:
        yield
    finally:
        compiled.core.restore_environment(before)
