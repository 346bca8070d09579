"""Where an array is: in the memory of the host, or on a CUDA device as a CuPy array.

What is computed from moments is the same in both places, so it is written once. A function takes
the names of numpy from the module of its arrays,

    xp = module_of(array)        numpy or CuPy

and its result is where its arguments were. What exists on the host alone (LAPACK's pivoted QR, the
search for heads, proofs) brings its arguments home with :func:`to_host` and puts its result back
with :func:`put`. Types say "array" for both: CuPy has no types, and need not be installed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from importlib import import_module
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from ..system.packages import NAME

INSTALL = f"pip install '{NAME}[cuda13]'"

_CUDA_MEMORY = (2, 13)
"""Device types of DLPack: CUDA memory, and managed memory."""


def cupy() -> Any:
    """Import CuPy; untyped, because it is optional and has no types."""
    return import_module("cupy")


def cupyx(part: str = "") -> Any:
    """Import a part of CuPy's companion, such as "lapack"."""
    return import_module(f"cupyx.{part}" if part else "cupyx")


def is_on_device(value: object) -> bool:
    """Whether this is a CuPy array; nothing is one before CuPy has been imported."""
    imported: Any = sys.modules.get("cupy")
    return imported is not None and isinstance(value, imported.ndarray)


def module_of(*arrays: object) -> Any:
    """CuPy if one of the arrays is on a device, else numpy."""
    return cupy() if "cupy" in sys.modules and any(map(is_on_device, arrays)) else np


def in_cuda_memory(value: object) -> bool:
    """Whether an array, also one of another library, holds memory of a CUDA device."""
    if isinstance(value, np.ndarray | np.generic) or value is None:
        return False
    kind = type(value)  # properties of the object itself may raise
    if hasattr(kind, "__dlpack_device__"):
        try:
            # mypy does not follow hasattr of the type.
            return int(value.__dlpack_device__()[0]) in _CUDA_MEMORY  # type: ignore[attr-defined]
        except Exception:  # an array without memory; reading it says why
            return False
    return hasattr(kind, "__cuda_array_interface__")


def as_cupy_array(value: Any, name: str) -> Any:
    """An array of any library that is on a CUDA device, as a CuPy array of the same memory."""
    if is_on_device(value):
        return value
    if hasattr(type(value), "detach"):  # PyTorch hands over no tensor with a history of gradients
        value = value.detach()
    try:
        xp = cupy()
    except ImportError:
        raise TypeError(
            f"{name}: this {type(value).__name__} is on a CUDA device, and CuPy is needed to read "
            f"it: {INSTALL}"
        ) from None
    try:
        return xp.from_dlpack(value) if hasattr(value, "__dlpack__") else xp.asarray(value)
    except Exception as error:  # the object's own conversion may raise anything
        raise TypeError(f"{name}: cannot be read as a CuPy array ({error})") from None


class Placed(Protocol):
    """An object that knows where its arrays are."""

    @property
    def device(self) -> int | None:
        """Number of the device; None for the host."""


def device_of(*values: object) -> int | None:
    """Device of the first value that is on one: an array, a list of them, or :class:`Placed`."""
    for value in values:
        if value is None or isinstance(value, np.ndarray):
            continue
        found: object = None
        if isinstance(value, list | tuple):
            found = device_of(*value[:1])
        elif is_on_device(value) or in_cuda_memory(value):
            found = int(as_cupy_array(value, "array").device.id)
        elif "cupy" in sys.modules:  # before it is imported, nothing of ours is on a device
            found = getattr(value, "device", None)
        if isinstance(found, int):  # arrays of other libraries have something else
            return found
    return None


def on_device(number: int | None) -> AbstractContextManager[object]:
    """Make a device current, and the previous one again afterwards; None leaves it as it is."""
    if number is None:
        return nullcontext()
    guard: AbstractContextManager[object] = cupy().cuda.Device(number)
    return guard


Owner = TypeVar("Owner", bound=Placed)
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def on_own_device(
    method: Callable[Concatenate[Owner, Arguments], Result],
) -> Callable[Concatenate[Owner, Arguments], Result]:
    """Let a method run on the device of its object."""

    @wraps(method)
    def guarded(self: Owner, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if (number := self.device) is None:
            return method(self, *args, **kwargs)
        with on_device(number):
            return method(self, *args, **kwargs)

    return guarded


def device_memory() -> int:
    """Bytes of memory of the current device."""
    return int(cupy().cuda.Device().mem_info[1])


def to_host(array: Any) -> npt.NDArray[Any]:
    """Bring an array home; one that is there already is returned as it is."""
    home: npt.NDArray[Any] = array.get() if is_on_device(array) else array
    return home


def put(array: Any, like: object) -> Any:
    """The array where another one is; as it is if that is where it was."""
    device = device_of(like)
    if device is None:
        return to_host(array)
    with on_device(device):
        return cupy().asarray(array)


def put_all(arrays: list[Any], like: object) -> list[Any]:
    """The arrays where another object is; many of them at no cost where there is only the host."""
    return [put(array, like) for array in arrays] if "cupy" in sys.modules else arrays


def frozen(array: Any) -> Any:
    """Make an array read-only where numpy can, and return it."""
    if isinstance(array, np.ndarray):
        array.setflags(write=False)
    return array
