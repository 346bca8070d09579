"""The part of CuPy that linattn_fast uses, over host memory, for machines without a GPU.

Honest where it matters: an array here is no numpy array. It converts to one by ``get()`` alone,
numpy's functions refuse it, and it refuses numpy arrays, on either side of an operator and as an
index. Names, arguments and methods that CuPy lacks do not exist. Stricter than CuPy: arrays must be
on the current device, where CuPy would go through peer access.

``log`` has what a GPU would have done or waited for: ("sync", why), ("copy", stream, bytes),
("record", stream, event), ("wait", stream, event), ("device", number).

Work on the current stream is done at once. Copies on another stream are late: they are done when
something that waits for them is reached, and read the host memory then. New memory is poisoned.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import itertools
import operator
import types
from typing import Any

import numpy as np

log: list[tuple[Any, ...]] = []


class State:
    """Of the make-believe machine."""

    devices = 2
    device = 0
    capability = "80"
    free = 1 << 40
    linalg = "ignore"
    streams: dict[int, list[Stream]] = {}  # noqa: RUF012  # one machine


def reset() -> None:
    """A fresh machine."""
    log.clear()
    State.device, State.capability, State.free, State.linalg = 0, "80", 1 << 40, "ignore"
    State.streams = {i: [Stream(null=True)] for i in range(State.devices)}


def synchronised(why: str) -> None:
    """Note that the host has waited for the device."""
    log.append(("sync", why))


# ------------------------------------------------------------------------------------- devices


class Device:
    """``with Device(i):`` makes it current."""

    attributes = {"L2CacheSize": 1 << 20}  # noqa: RUF012  # small, so that there are several panels

    def __init__(self, device: int | None = None) -> None:
        self.id = State.device if device is None else int(device)
        if not 0 <= self.id < State.devices:
            raise RuntimeError("cudaErrorInvalidDevice: invalid device ordinal")
        self._before: list[int] = []

    def __enter__(self) -> Device:
        self._before.append(State.device)
        State.device = self.id
        log.append(("device", self.id))
        return self

    def __exit__(self, *error: object) -> None:
        State.device = self._before.pop()
        log.append(("device", State.device))

    def synchronize(self) -> None:
        synchronised("device")

    @property
    def compute_capability(self) -> str:
        return State.capability

    @property
    def mem_info(self) -> tuple[int, int]:
        return State.free, 1 << 40


class Event:
    """A mark in a stream."""

    def __init__(self, block: bool = False, disable_timing: bool = False) -> None:
        self._stream: Stream | None = None
        self._position = 0

    def record(self, stream: Stream | None = None) -> None:
        self._stream = get_current_stream() if stream is None else stream
        self._position = self._stream._queued
        log.append(("record", self._stream, self))

    def synchronize(self) -> None:
        if self._stream is not None:
            log.append(("wait for copy", self._stream, self))
            self._stream._reach(self._position)


class Stream:
    """A queue of work; copies on another stream than the current one are done late."""

    null: Stream
    _numbers = itertools.count(1)

    def __init__(self, null: bool = False, non_blocking: bool = False) -> None:
        self.ptr = 0 if null else next(self._numbers)
        self._late: list[Any] = []
        self._queued = 0
        self._before: list[Stream] = []

    def __enter__(self) -> Stream:
        State.streams[State.device].append(self)
        return self

    def __exit__(self, *error: object) -> None:
        State.streams[State.device].pop()

    def _queue(self, work: Any) -> None:
        self._late.append(work)
        self._queued += 1
        if self is get_current_stream():
            self._reach(self._queued)

    def _reach(self, position: int) -> None:
        while self._late and self._queued - len(self._late) < position:
            self._late.pop(0)()

    def record(self, event: Event | None = None) -> Event:
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        log.append(("wait", self, event))
        if event._stream is not None:
            event._stream._reach(event._position)

    def synchronize(self) -> None:
        synchronised("stream")
        self._reach(self._queued)


def get_current_stream() -> Stream:
    return State.streams[State.device][-1]


# -------------------------------------------------------------------------------------- arrays


def _host(value: Any) -> Any:
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
        return type(value)(_host(item) for item in value)
    if isinstance(value, slice) or value is None or value is Ellipsis:
        return value
    if not isinstance(value, str | int | float | np.generic | type | np.dtype):
        raise TypeError(f"Unsupported type {type(value)}")
    return value


def _device(value: Any) -> Any:
    """A result of numpy, as an array here."""
    if isinstance(value, tuple):
        return tuple(_device(item) for item in value)
    return ndarray(np.asarray(value))


def _index(index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(_index(item) for item in index)
    return _host(index)


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

    def transpose(self, *axes: int) -> ndarray:
        return ndarray(self._array.transpose(*axes), self._device)

    def view(self, dtype: Any) -> ndarray:
        return ndarray(self._array.view(dtype), self._device)

    def diagonal(self) -> ndarray:
        return _device(np.diagonal(_host(self)))

    def copy(self, order: str = "C") -> ndarray:
        return _device(_host(self).copy(order))

    def astype(self, dtype: Any, order: str = "K", copy: bool = True) -> ndarray:
        if not copy and self._array.dtype == np.dtype(dtype):
            return self
        return _device(_host(self).astype(dtype, order=order))

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
        return _device(_host(self).sum(axis=axis, keepdims=keepdims))

    def max(self, axis: Any = None, out: Any = None, keepdims: bool = False):
        return _device(_host(self).max(axis=axis, keepdims=keepdims))

    def min(self, axis: Any = None, out: Any = None, keepdims: bool = False):
        return _device(_host(self).min(axis=axis, keepdims=keepdims))

    def any(self, axis: Any = None, out: Any = None, keepdims: bool = False):
        return _device(_host(self).any(axis=axis, keepdims=keepdims))

    def all(self, axis: Any = None, out: Any = None, keepdims: bool = False):
        return _device(_host(self).all(axis=axis, keepdims=keepdims))

    def argmax(self, axis: Any = None, out: Any = None):
        return _device(_host(self).argmax(axis=axis))

    def trace(self):
        return _device(np.trace(_host(self)))

    def __getitem__(self, index: Any) -> ndarray:
        return ndarray(np.asarray(self._array[_index(index)]), self._device)

    def __setitem__(self, index: Any, value: Any) -> None:
        self._array[_index(index)] = _host(value)

    def __reduce__(self) -> Any:
        return asarray, (self._array,)


def _operator(name: str) -> None:
    function = getattr(operator, name)
    reflected = f"__r{name.strip('_')}__"

    def forward(self: ndarray, other: Any) -> Any:
        return _device(function(_host(self), _host(other)))

    def backward(self: ndarray, other: Any) -> Any:
        return _device(function(_host(other), _host(self)))

    setattr(ndarray, name, forward)
    if name not in ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"):
        setattr(ndarray, reflected, backward)


def _in_place(name: str) -> None:
    def in_place(self: ndarray, other: Any) -> ndarray:
        getattr(operator, name)(_host(self), _host(other))
        return self

    setattr(ndarray, name, in_place)


for _name in ("add", "sub", "mul", "truediv", "matmul", "pow", "mod", "and_", "or_"):
    _operator(f"__{_name.strip('_')}__")
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    _operator(f"__{_name}__")
for _name in ("iadd", "isub", "imul", "itruediv"):
    _in_place(f"__{_name}__")
ndarray.__neg__ = lambda self: _device(-_host(self))
ndarray.__invert__ = lambda self: _device(~_host(self))


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
    return _device(np.array(_host(asarray(a)), dtype=dtype, order=order))


def empty(shape: Any, dtype: Any = float) -> ndarray:
    """Poisoned: NaN, or bytes that make one."""
    new = np.empty(shape, dtype)
    new.reshape(-1).view(np.uint8)[...] = 0xFF
    return ndarray(new)


def _creator(function: Any) -> Any:
    def create(*args: Any, **kwargs: Any) -> Any:
        return _device(function(*args, **kwargs))

    return create


def _wrapped(function: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        if not any(isinstance(a, ndarray) for a in _flat(args)):
            raise TypeError(f"{function.__name__}: an array on a device is needed")
        with np.errstate(all="ignore"):  # a GPU does not warn
            given = {name: _host(value) for name, value in kwargs.items()}
            return _device(function(*map(_host, args), **given))

    return call


def _flat(args: Any) -> Any:
    for item in args:
        if isinstance(item, list | tuple):
            yield from _flat(item)
        else:
            yield item


def cumsum(a: ndarray, axis: int | None = None, dtype: Any = None) -> ndarray:
    return _device(np.cumsum(_host(a), axis=axis))


def repeat(a: ndarray, repeats: Any, axis: int | None = None) -> ndarray:
    return _device(np.repeat(_host(a), _host(repeats), axis=axis))


def ascontiguousarray(a: ndarray, dtype: Any = None) -> ndarray:
    """The same array if it is contiguous."""
    _host(a)
    same = a.flags.c_contiguous and (dtype is None or a.dtype == np.dtype(dtype))
    return a if same else _device(np.ascontiguousarray(a._array, dtype))


# ------------------------------------------------------------------------------ linear algebra


def _checked(failed: bool) -> None:
    """cuSOLVER's status is looked at only if that was asked for."""
    if State.linalg == "raise":
        synchronised("linalg")
        if failed:
            raise np.linalg.LinAlgError("Error reported by potrf in cuSOLVER. devInfo = [3].")


def _cholesky(a: ndarray) -> ndarray:
    try:
        factor = np.linalg.cholesky(_host(a))
    except np.linalg.LinAlgError:
        _checked(True)
        return _device(np.full(a.shape, np.nan))
    _checked(False)
    return _device(factor)


def _eigh(a: ndarray, UPLO: str = "L") -> Any:
    _checked(False)
    return _device(tuple(np.linalg.eigh(_host(a), UPLO)))


def _eigvalsh(a: ndarray, UPLO: str = "L") -> ndarray:
    _checked(False)
    return _device(np.linalg.eigvalsh(_host(a), UPLO))


def _qr(a: ndarray, mode: str = "reduced") -> Any:
    return _device(np.linalg.qr(_host(a), mode))


def _svd(a: ndarray, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    _checked(False)
    return _device(tuple(np.linalg.svd(_host(a), full_matrices, compute_uv)))


def _norm(x: ndarray, ord: Any = None, axis: Any = None, keepdims: bool = False) -> ndarray:
    return _device(np.linalg.norm(_host(x), ord, axis, keepdims))


def _potrs(L: ndarray, b: ndarray, lower: bool) -> ndarray:
    from scipy.linalg import cho_solve

    solved = cho_solve((_host(L), lower), _host(b))
    b._array[...] = np.nan  # "may be modified in place"
    return _device(solved)


def _solve_triangular(a: ndarray, b: ndarray, trans: Any = 0, lower: bool = False) -> ndarray:
    from scipy.linalg import solve_triangular

    return _device(solve_triangular(_host(a), _host(b), trans=trans, lower=lower))


@contextlib.contextmanager
def _errstate(*, linalg: str) -> Any:
    before, State.linalg = State.linalg, linalg
    try:
        yield
    finally:
        State.linalg = before


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


CREATE = ("zeros", "ones", "full", "arange", "linspace", "indices")
WRAP = (
    "abs", "concatenate", "diag", "einsum", "exp2", "frexp", "isfinite", "isinf", "log2",
    "matmul", "maximum", "minimum", "rint", "round", "sqrt", "stack", "tensordot", "vdot", "where",
    "zeros_like",
)  # fmt: skip

linalg = _module(
    "cupy.linalg", cholesky=_cholesky, eigh=_eigh, eigvalsh=_eigvalsh, qr=_qr, svd=_svd, norm=_norm
)
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
    names = (asarray, array, empty, cumsum, repeat, ascontiguousarray, from_dlpack, ndarray)
    contents: dict[str, Any] = {each.__name__: each for each in names}
    contents |= {name: _creator(getattr(np, name)) for name in CREATE}
    contents |= {name: _wrapped(getattr(np, name)) for name in WRAP}
    cupy = _module("cupy", linalg=linalg, cuda=cuda, __version__="make-believe", **contents)
    cupy.__spec__ = importlib.machinery.ModuleSpec("cupy", None)
    lapack = _module("cupyx.lapack", potrs=_potrs)
    scipy_linalg = _module("cupyx.scipy.linalg", solve_triangular=_solve_triangular)
    cupyx = _module("cupyx", empty_pinned=_empty_pinned, errstate=_errstate, lapack=lapack)
    return {
        "cupy": cupy,
        "cupyx": cupyx,
        "cupyx.lapack": lapack,
        "cupyx.scipy": _module("cupyx.scipy", linalg=scipy_linalg),
        "cupyx.scipy.linalg": scipy_linalg,
    }


reset()
