"""Threads: how many our own kernels use, and one for BLAS while a public function runs.

Results have the same bits whatever the number of threads. Our own kernels divide work by sizes
alone. A BLAS does not: the order in which it sums, and with it the last bits of a product, an
eigenvalue or a rank at the edge of a tolerance, depends on the number of its threads. So every
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

import operator
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any, TypeVar, cast

import numpy as np
import scipy
import scipy.linalg  # so that its BLAS is loaded before it is looked for
from threadpoolctl import ThreadpoolController

from .machine import read_once, usable_cores

# ---------------------------------------------------------------------------------- our own threads

_MOST = 65536
_chosen: int | None = None
_in_this_context: ContextVar[int | None] = ContextVar("linattn_fast_threads", default=None)


def _checked(value: object, name: str) -> int:
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # any object may turn up here
    except TypeError:
        kind = type(value).__name__
        raise TypeError(f"{name}: a whole number of threads is needed, got {kind}") from None
    if not 1 <= number <= _MOST:
        raise ValueError(f"{name}: must be between 1 and {_MOST}, got {number}")
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
    text = os.environ.get("LINATTN_NUM_THREADS", "").strip()
    if not text:
        return usable_cores()
    try:
        number = int(text)
    except ValueError:
        raise ValueError(f"LINATTN_NUM_THREADS: a whole number is needed, got {text!r}") from None
    return _checked(number, "LINATTN_NUM_THREADS")


# ------------------------------------------------------------------------------- threads of BLAS

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


def same_bits(function: _Function) -> _Function:
    """Hold BLAS to one thread while a function runs; for every public one that computes."""

    @wraps(function)
    def held(*arguments: Any, **named: Any) -> object:
        with one_blas_thread(), read_once():
            return function(*arguments, **named)

    held.holds_blas = True  # type: ignore[attr-defined]  # tests look for it
    return cast(_Function, held)
