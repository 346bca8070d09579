"""The part of CuPy that linattn_fast uses, over host memory, for machines without a GPU.

Honest where it matters: an array here is no numpy array. It converts to one by ``get()`` alone,
numpy's functions refuse it, and it refuses numpy arrays, on either side of an operator and as an
index. Names, arguments and methods that CuPy lacks do not exist. Stricter than CuPy: arrays must be
on the current device, where CuPy would go through peer access. New memory is poisoned. Devices and
streams are those of :mod:`fake_machine`.
"""

from __future__ import annotations

import importlib.machinery
import operator
import types
from typing import Any

import numpy as np
from stand_ins.fake_machine import (
    Device,
    Event,
    State,
    Stream,
    get_current_stream,
    log,
    reset,
    synchronised,
)

# -------------------------------------------------------------------------------------- arrays


def host(value: Any) -> Any:
    """What numpy computes with in the place of an argument; refuses what CuPy refuses."""
    if isinstance(value, ndarray):
        if value._device != State.device:
            raise RuntimeError(
                f"an array of device {value._device} is used while device {State.device} is current"
            )
        return value._array
    if isinstance(value, np.ndarray):
        raise TypeError("Unsupported type <class 'numpy.ndarray'>")
    if isinstance(value, list | tuple):
        return type(value)(host(item) for item in value)
    if isinstance(value, slice) or value is None or value is Ellipsis:
        return value
    if not isinstance(value, str | int | float | np.generic | type | np.dtype):
        raise TypeError(f"Unsupported type {type(value)}")
    return value


def device(value: Any) -> Any:
    """A result of numpy, as an array here."""
    if isinstance(value, tuple):
        return tuple(device(item) for item in value)
    return ndarray(np.asarray(value))


def _index(index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(_index(item) for item in index)
    return host(index)


class _Flags:
    def __init__(self, array: np.ndarray) -> None:
        self.c_contiguous = array.flags.c_contiguous
        self.f_contiguous = array.flags.f_contiguous


class ndarray:  # noqa: N801  # CuPy's name
    """An array on the device that was current when it was made."""

    __array_ufunc__ = None  # numpy's operators leave the work to ours, which refuse numpy arrays

    def __init__(self, array: np.ndarray, device: int | None = None) -> None:
        self._array = array
        self._device = State.device if device is None else device

    def __array__(self, *args: object, **kwargs: object) -> Any:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. "
            "Please use `.get()` to construct a NumPy array explicitly."
        )

    def __array_function__(self, func: Any, *args: object) -> Any:
        raise TypeError(f"numpy.{func.__name__} was called with an array on a device")

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        contiguous = self._array.flags.c_contiguous
        return {
            "shape": self._array.shape,
            "typestr": self._array.dtype.str,
            "descr": self._array.dtype.descr,
            "strides": None if contiguous else self._array.strides,
            "data": (self._array.ctypes.data, False),
            "version": 3,
            "stream": 1,
        }

    # shape and type

    shape = property(lambda self: self._array.shape)
    dtype = property(lambda self: self._array.dtype)
    size = property(lambda self: self._array.size)
    ndim = property(lambda self: self._array.ndim)
    nbytes = property(lambda self: self._array.nbytes)
    itemsize = property(lambda self: self._array.itemsize)
    flags = property(lambda self: _Flags(self._array))
    device = property(lambda self: Device(self._device))
    data = property(lambda self: types.SimpleNamespace(ptr=self._array.ctypes.data))
    T = property(lambda self: ndarray(self._array.T, self._device))

    def __len__(self) -> int:
        return len(self._array)

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    def reshape(self, *shape: Any) -> ndarray:
        return ndarray(self._array.reshape(*shape), self._device)

    def ravel(self) -> ndarray:
        return ndarray(self._array.ravel(), self._device)

    def take(self, indices: Any, axis: int | None = None) -> ndarray:
        return device(host(self).take(host(indices), axis=axis))

    def transpose(self, *axes: int) -> ndarray:
        return ndarray(self._array.transpose(*axes), self._device)

    def view(self, dtype: Any) -> ndarray:
        return ndarray(self._array.view(dtype), self._device)

    def diagonal(self) -> ndarray:
        return device(np.diagonal(host(self)))

    def copy(self, order: str = "C") -> ndarray:
        return device(host(self).copy(order))

    def astype(self, dtype: Any, order: str = "K", copy: bool = True) -> ndarray:
        if not copy and self._array.dtype == np.dtype(dtype):
            return self
        return device(host(self).astype(dtype, order=order))

    # transfers, which wait

    def get(self) -> np.ndarray:
        synchronised("get")
        return self._array.copy()

    def set(self, arr: np.ndarray, stream: Stream | None = None) -> None:
        if not isinstance(arr, np.ndarray):
            raise TypeError("Only numpy.ndarray can be set to cupy.ndarray")
        if arr.dtype != self.dtype or arr.shape != self.shape:
            raise TypeError("the array has another dtype or shape")
        stream = get_current_stream() if stream is None else stream
        log.append(("copy", stream, arr.nbytes, self._array.ctypes.data))
        target = self._array
        stream._queue(lambda: np.copyto(target, arr))

    def __float__(self) -> float:
        synchronised("float")
        return float(self._array)

    def __int__(self) -> int:
        synchronised("int")
        return int(self._array)

    def __bool__(self) -> bool:
        synchronised("bool")
        return bool(self._array)

    def item(self) -> Any:
        synchronised("item")
        return self._array.item()

    # reductions

    def sum(self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False):
        return device(host(self).sum(axis=axis, keepdims=keepdims))

    def max(self, axis: Any = None, out: Any = None, keepdims: bool = False):
        return device(host(self).max(axis=axis, keepdims=keepdims))

    def min(self, axis: Any = None, out: Any = None, keepdims: bool = False):
        return device(host(self).min(axis=axis, keepdims=keepdims))

    def any(self, axis: Any = None, out: Any = None, keepdims: bool = False):
        return device(host(self).any(axis=axis, keepdims=keepdims))

    def all(self, axis: Any = None, out: Any = None, keepdims: bool = False):
        return device(host(self).all(axis=axis, keepdims=keepdims))

    def argmax(self, axis: Any = None, out: Any = None):
        return device(host(self).argmax(axis=axis))

    def trace(self):
        return device(np.trace(host(self)))

    def __getitem__(self, index: Any) -> ndarray:
        return ndarray(np.asarray(self._array[_index(index)]), self._device)

    def __setitem__(self, index: Any, value: Any) -> None:
        self._array[_index(index)] = host(value)

    def __reduce__(self) -> Any:
        return asarray, (self._array,)


def _operator(name: str) -> None:
    function = getattr(operator, name)
    reflected = f"__r{name.strip('_')}__"

    def forward(self: ndarray, other: Any) -> Any:
        return device(function(host(self), host(other)))

    def backward(self: ndarray, other: Any) -> Any:
        return device(function(host(other), host(self)))

    setattr(ndarray, name, forward)
    if name not in ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"):
        setattr(ndarray, reflected, backward)


def _in_place(name: str) -> None:
    def in_place(self: ndarray, other: Any) -> ndarray:
        getattr(operator, name)(host(self), host(other))
        return self

    setattr(ndarray, name, in_place)


for _name in ("add", "sub", "mul", "truediv", "matmul", "pow", "mod", "and_", "or_"):
    _operator(f"__{_name.strip('_')}__")
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    _operator(f"__{_name}__")
for _name in ("iadd", "isub", "imul", "itruediv"):
    _in_place(f"__{_name}__")
ndarray.__neg__ = lambda self: device(-host(self))
ndarray.__invert__ = lambda self: device(~host(self))


# ----------------------------------------------------------------------------------- functions


def asarray(a: Any, dtype: Any = None, order: str | None = None) -> ndarray:
    """On the current device: copied from the host, from another device, or not at all."""
    if isinstance(a, ndarray):
        same = a._device == State.device and (dtype is None or a.dtype == np.dtype(dtype))
        return a if same else ndarray(a._array.astype(a.dtype if dtype is None else dtype))
    if hasattr(type(a), "__cuda_array_interface__"):
        return _from_interface(a)
    given = np.array(a, dtype=dtype)
    log.append(("upload", given.nbytes))
    return ndarray(given)


def _from_interface(value: Any) -> ndarray:
    described = value.__cuda_array_interface__
    holder = types.SimpleNamespace(
        __array_interface__={k: described[k] for k in ("shape", "typestr", "data", "version")}
        | {"strides": described.get("strides")},
        value=value,
    )
    return ndarray(np.asarray(holder), getattr(value, "on", 0))


def from_dlpack(array: Any) -> ndarray:
    return _from_interface(array)


def array(a: Any, dtype: Any = None, copy: bool = True, order: str = "K") -> ndarray:
    return device(np.array(host(asarray(a)), dtype=dtype, order=order))


def empty(shape: Any, dtype: Any = float) -> ndarray:
    """Poisoned: NaN, or bytes that make one."""
    new = np.empty(shape, dtype)
    new.reshape(-1).view(np.uint8)[...] = 0xFF
    return ndarray(new)


def _creator(function: Any) -> Any:
    def create(*args: Any, **kwargs: Any) -> Any:
        return device(function(*args, **kwargs))

    return create


def _wrapped(function: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        if not any(isinstance(a, ndarray) for a in _flat(args)):
            raise TypeError(f"{function.__name__}: an array on a device is needed")
        with np.errstate(all="ignore"):  # a GPU does not warn
            given = {name: host(value) for name, value in kwargs.items()}
            return device(function(*map(host, args), **given))

    return call


def _flat(args: Any) -> Any:
    for item in args:
        if isinstance(item, list | tuple):
            yield from _flat(item)
        else:
            yield item


def cumsum(a: ndarray, axis: int | None = None, dtype: Any = None) -> ndarray:
    return device(np.cumsum(host(a), axis=axis))


def repeat(a: ndarray, repeats: Any, axis: int | None = None) -> ndarray:
    return device(np.repeat(host(a), host(repeats), axis=axis))


def ascontiguousarray(a: ndarray, dtype: Any = None) -> ndarray:
    """The same array if it is contiguous."""
    host(a)
    same = a.flags.c_contiguous and (dtype is None or a.dtype == np.dtype(dtype))
    return a if same else device(np.ascontiguousarray(a._array, dtype))


def _empty_pinned(shape: Any, dtype: Any = float, order: str = "C") -> np.ndarray:
    log.append(("pinned", shape))
    new = np.empty(shape, dtype, order)
    new.view(np.uint8)[...] = 0xFF
    return new


# ------------------------------------------------------------------------------------- modules


def _module(name: str, **contents: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    vars(module).update(contents)
    return module


CREATE = ("zeros", "ones", "eye", "full", "arange", "linspace", "indices")
WRAP = (
    "abs", "concatenate", "diag", "einsum", "exp2", "frexp", "isfinite", "isinf",
    "isnan", "ldexp", "log2", "matmul", "maximum", "minimum", "rint", "round", "sqrt", "stack",
    "tensordot", "vdot", "where", "zeros_like",
)  # fmt: skip

cuda = _module(
    "cupy.cuda",
    Device=Device,
    Stream=Stream,
    Event=Event,
    get_current_stream=get_current_stream,
    runtime=types.SimpleNamespace(
        getDeviceCount=lambda: State.devices, getDeviceProperties=lambda device: {"name": b"none"}
    ),
)


def modules() -> dict[str, types.ModuleType]:
    """What stands in ``sys.modules`` in the place of CuPy."""
    from stand_ins import fake_cusolver as solver  # which is about the arrays here

    names_of_linalg = ("cholesky", "eigh", "eigvalsh", "qr", "svd", "norm")
    linalg = _module("cupy.linalg", **{name: getattr(solver, name) for name in names_of_linalg})
    names = (asarray, array, empty, cumsum, repeat, ascontiguousarray, from_dlpack, ndarray)
    contents: dict[str, Any] = {each.__name__: each for each in names}
    contents |= {name: _creator(getattr(np, name)) for name in CREATE}
    contents |= {name: _wrapped(getattr(np, name)) for name in WRAP}
    cupy = _module("cupy", linalg=linalg, cuda=cuda, __version__="make-believe", **contents)
    cupy.__spec__ = importlib.machinery.ModuleSpec("cupy", None)
    lapack = _module("cupyx.lapack", potrs=solver.potrs)
    scipy_linalg = _module("cupyx.scipy.linalg", solve_triangular=solver.solve_triangular)
    cupyx = _module("cupyx", empty_pinned=_empty_pinned, errstate=solver.errstate, lapack=lapack)
    return {
        "cupy": cupy,
        "cupyx": cupyx,
        "cupyx.lapack": lapack,
        "cupyx.scipy": _module("cupyx.scipy", linalg=scipy_linalg),
        "cupyx.scipy.linalg": scipy_linalg,
    }


reset()
