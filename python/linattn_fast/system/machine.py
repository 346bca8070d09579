"""The machine as a public call finds it: cores and memory, our own threads, and those of BLAS.

**Cores and memory** are what this process may use; limits of a container (a cgroup) are included.
Within a public call each fact is read once (:func:`read_once`), however often it is asked for; what
needs more memory than there is, or than ``memory_limit`` allows, is refused before any work.

**Threads.** Results have the same bits whatever the number of threads. Our own kernels divide work
by sizes alone. A BLAS does not: the order in which it sums, and with it the last bits of a product,
an eigenvalue or a rank at the edge of a tolerance, depends on the number of its threads. So every
public function that comes near numpy's or SciPy's linear algebra is decorated::

    @same_bits
    def fit(...): ...

What is large goes through our own kernels (:mod:`linattn_fast.linalg.cholesky`,
``compiled.multiply_transposed``) and loses nothing by it.

The number of threads of a BLAS belongs to the process, not to a call: while calls overlap, in one
thread or in several, the first sets it to one and the last sets it back, also when they fail.
Elsewhere in the process BLAS has one thread meanwhile, and a setting that is changed meanwhile is
lost. An OpenBLAS on OpenMP has a number for each thread that calls it; there each thread looks
after its own.
"""

from __future__ import annotations

import math
import operator
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, cached_property, partial, wraps
from pathlib import Path
from typing import Any, TypeVar, cast, overload

import numpy as np
import scipy
import scipy.linalg  # so that its BLAS is loaded before it is looked for
from threadpoolctl import ThreadpoolController

from .arguments import as_size

# --------------------------------------------------------------------------------- cores and memory

_CGROUP = "/sys/fs/cgroup"


_SECONDS = 1.0
"""How long the limits of a container are taken to stay as they are."""
_known: dict[str, tuple[float, list[str]]] = {}
"""When a file was read last, and its words."""


def _read_words(path: str) -> list[str]:
    """The words of a file; none where there is no such file."""
    now = time.monotonic()
    read, words = _known.get(path, (-math.inf, []))
    if now - read < _SECONDS:
        return words
    try:
        with open(path) as file:
            words = file.read().split()
    except OSError:
        words = []
    _known[path] = now, words
    return words


def _read_cores() -> int:
    """Cores this process may run on: its affinity, cut to the CPU quota of its container."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    # "max 100000" or "150000 100000": microseconds per period
    quota = _read_words(f"{_CGROUP}/cpu.max")
    if len(quota) == 2 and quota[0].isdigit() and int(quota[1]) > 0:
        cores = min(cores, max(1, math.ceil(int(quota[0]) / int(quota[1]))))
    return cores


def _read_memory() -> int:
    """Bytes of memory this process may hold: the machine's, or its container's if that is less."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # cgroup v2, v1
        limit = _read_words(f"{_CGROUP}/{name}")
        if limit and limit[0].isdigit():
            memory = min(memory, int(limit[0]))
    return memory


class _Facts:
    """Cores, memory and the default of our threads, each read when it is first asked for."""

    @cached_property
    def cores(self) -> int:
        """Cores that this process may use."""
        return _read_cores()

    @cached_property
    def memory(self) -> int:
        """Bytes of memory that this process may hold."""
        return _read_memory()

    @cached_property
    def threads(self) -> int:
        """Threads of our own where none are set."""
        return _default_threads()


_of_this_call: ContextVar[_Facts | None] = ContextVar("linattn_fast_machine", default=None)


@contextmanager
def read_once() -> Iterator[None]:
    """Read each fact at most once within a block; an outer block has read it for the inner ones."""
    if _of_this_call.get() is not None:
        yield
        return
    token = _of_this_call.set(_Facts())
    try:
        yield
    finally:
        _of_this_call.reset(token)


def usable_cores() -> int:
    """Cores this process may run on, as they were when the public call under way first asked."""
    facts = _of_this_call.get()
    return _read_cores() if facts is None else facts.cores


def usable_memory() -> int:
    """Bytes this process may hold, as they were when the public call under way first asked."""
    facts = _of_this_call.get()
    return _read_memory() if facts is None else facts.memory


def processor() -> str:
    """The machine's own name for its processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def as_memory_limit(memory_limit: object) -> int | None:
    """Check a number of bytes, or None."""
    if memory_limit is None:
        return None
    if isinstance(memory_limit, bool):
        raise TypeError("memory_limit: a number of bytes is needed, got bool")
    return as_size(memory_limit, "memory_limit")


def in_words(size: int) -> str:
    """Bytes for people."""
    if size < 1000:
        return f"{size} bytes"
    number = float(size)
    for unit in ("kB", "MB", "GB", "TB", "PB"):
        number /= 1000
        if number < 1000 or unit == "PB":
            break
    return f"{number:.3g} {unit}"


def require_memory(needed: int, what: str, memory_limit: int | None = None) -> None:
    """Raise MemoryError, before any work, when ``needed`` bytes are more than may be used."""
    limit = usable_memory() if memory_limit is None else memory_limit
    if needed > limit:
        source = "this machine has" if memory_limit is None else "memory_limit is"
        raise MemoryError(f"{what} needs {in_words(needed)}, {source} {in_words(limit)}")


# ---------------------------------------------------------------------------------- our own threads

_MOST_THREADS = 65536
_chosen: int | None = None
_in_this_context: ContextVar[int | None] = ContextVar("linattn_fast_threads", default=None)


def _checked(value: object, name: str) -> int:
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # any object may turn up here
    except TypeError:
        kind = type(value).__name__
        raise TypeError(f"{name}: a whole number of threads is needed, got {kind}") from None
    if not 1 <= number <= _MOST_THREADS:
        raise ValueError(f"{name}: must be between 1 and {_MOST_THREADS}, got {number}")
    return number


def set_num_threads(n: int | None) -> None:
    """Set the number of threads for all later calls of this process.

    Parameters
    ----------
    n
        Number of threads, the calling one included; ``None`` returns to the default: the
        environment variable ``LINATTN_NUM_THREADS`` if it is set, else the cores this process may
        use.

    Notes
    -----
    Results have the same bits for every number. Products, Cholesky factorisations and triangular
    systems run on these threads. What is left to numpy and SciPy (eigenvalues, singular values, QR)
    runs on one thread of BLAS, because its sums would otherwise depend on how many there are; your
    own setting of BLAS threads is as before after each call.

    Examples
    --------
    >>> import linattn_fast as la
    >>> la.set_num_threads(1)
    >>> la.get_num_threads()
    1
    >>> la.set_num_threads(None)  # the default again
    """
    global _chosen  # noqa: PLW0603  # the one process-wide setting
    _chosen = None if n is None else _checked(n, "n")


@contextmanager
def num_threads(n: int) -> Iterator[None]:
    """Use n threads within a block, in this context alone: other threads keep the setting."""
    token = _in_this_context.set(_checked(n, "threads"))
    try:
        yield
    finally:
        _in_this_context.reset(token)


def get_num_threads() -> int:
    """Return the number of threads the compiled code uses.

    Returns
    -------
    int
        What was set by :func:`set_num_threads`, or else its default.
    """
    if (here := _in_this_context.get()) is not None:
        return here
    if _chosen is not None:
        return _chosen
    facts = _of_this_call.get()
    return _default_threads() if facts is None else facts.threads


def _default_threads() -> int:
    """The number in the environment, or else the cores that may be used."""
    text = os.environ.get("LINATTN_NUM_THREADS", "").strip()
    if not text:
        return usable_cores()
    try:
        number = int(text)
    except ValueError:
        raise ValueError(f"LINATTN_NUM_THREADS: a whole number is needed, got {text!r}") from None
    return _checked(number, "LINATTN_NUM_THREADS")


# ---------------------------------------------------------------------------------- threads of BLAS

_Function = TypeVar("_Function", bound=Callable[..., object])


@dataclass(frozen=True)
class _Library:
    """One BLAS in this process, and how the number of its threads is asked for and set."""

    get: Callable[[], int]
    set: Callable[[int], object]
    a_number_each: bool
    """Whether each thread that calls it has a number of its own."""


@cache
def _libraries() -> list[_Library]:
    """Every BLAS in this process whose threads can be set; numpy and SciPy have one each."""
    found = []
    for blas in ThreadpoolController().select(user_api="blas").lib_controllers:
        # set_num_threads of an OpenBLAS does nothing in any other Python thread than the first
        # that called it, lest threads fight over the number. Ours do not: they count.
        setter = getattr(blas, "_real_set_num_threads", blas.set_num_threads)
        on_openmp = getattr(blas, "threading_layer", "") == "openmp"
        each = on_openmp and blas.internal_api == "openblas"
        found.append(_Library(blas.get_num_threads, setter, each))
    return found


@cache
def unknown_blas() -> str | None:
    """Name a BLAS of numpy or SciPy whose threads nobody can set, such as Apple's; None: none."""
    for package in (np, scipy):
        configuration = cast(dict[str, Any], package.show_config(mode="dicts"))
        name = str(configuration.get("Build Dependencies", {}).get("blas", {}).get("name", ""))
        if "accelerate" in name.lower():
            return f"{package.__name__}'s {name}"
    return None if _libraries() else "numpy's BLAS"


class _Holding:
    """The calls that hold some BLAS to one thread at this moment, and the setting before them."""

    def __init__(self, *, a_number_each: bool) -> None:
        self._kind = a_number_each
        self._lock = threading.Lock()
        self._calls: set[object] = set()
        self._before: list[tuple[_Library, int]] = []

    def begin(self, call: object) -> None:
        with self._lock:
            if self._calls:
                self._calls.add(call)
                return
            chosen = [blas for blas in _libraries() if blas.a_number_each == self._kind]
            self._before = [(blas, blas.get()) for blas in chosen]
            # First the name, then the deed: an interrupt in between finds what to undo
            self._calls.add(call)
            self._set(1)

    def end(self, call: object) -> None:
        with self._lock:
            if call in self._calls:  # else it was interrupted before it began
                self._calls.discard(call)
                if not self._calls:
                    self._set(None)

    def forget(self) -> None:
        """In a forked process: the calls of other threads are not there to end."""
        self._lock = threading.Lock()
        if self._calls:
            self._calls.clear()
            self._set(None)

    def _set(self, threads: int | None) -> None:
        """A number of threads, or None: as before."""
        for blas, before in self._before:
            if before != 1:
                blas.set(before if threads is None else threads)


class _OfThisThread(threading.local):
    """What belongs to the thread that asks."""

    def __init__(self) -> None:
        self.holding = _Holding(a_number_each=True)


_shared = _Holding(a_number_each=False)
_of_this_thread = _OfThisThread()
os.register_at_fork(after_in_child=_shared.forget)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Hold BLAS to one thread within a block."""
    call, own = object(), _of_this_thread.holding
    try:
        _shared.begin(call)
        own.begin(call)
        yield
    finally:
        own.end(call)
        _shared.end(call)


@overload
def same_bits(function: _Function) -> _Function: ...
@overload
def same_bits(*, first: Callable[..., object]) -> Callable[[_Function], _Function]: ...
def same_bits(
    function: _Function | None = None, *, first: Callable[..., object] | None = None
) -> _Function | Callable[[_Function], _Function]:
    """Hold BLAS to one thread while a function runs; for every public one that computes.

    ``first``, which uses no BLAS, is tried before with the same arguments; what it returns is the
    answer, unless it is None.
    """
    if function is None:
        return partial(_held, first=first)
    return _held(function, None)


def _held(function: _Function, first: Callable[..., object] | None) -> _Function:
    @wraps(function)
    def held(*arguments: Any, **named: Any) -> object:
        with one_blas_thread(), read_once():
            return function(*arguments, **named)

    @wraps(function)
    def tried(*arguments: Any, **named: Any) -> object:
        try:
            found = first(*arguments, **named) if first is not None else None
        except TypeError:  # arguments that the function has none of; it says so in its own name
            found = None
        return held(*arguments, **named) if found is None else found

    public = held if first is None else tried
    public.holds_blas = True  # type: ignore[attr-defined]  # tests look for it
    return cast(_Function, public)
