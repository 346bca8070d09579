"""One thread of BLAS for the length of a call, so that results have the same bits for any setting.

The order in which a BLAS sums, and with it the last bits of a product, an eigenvalue or a rank at
the edge of a tolerance, depends on the number of its threads. So every public function that comes
near numpy's or SciPy's linear algebra is decorated::

    @same_bits
    def fit(...): ...

What is large goes through our own kernels, whose bits do not depend on threads
(:mod:`linattn_fast.cholesky`, ``cpu.multiply_transposed``), and loses nothing by it.

The number of threads belongs to the process, not to a call: while calls overlap, in one thread or
in several, the first sets it to one and the last sets it back, also when they fail. Elsewhere in
the process BLAS has one thread meanwhile, and a setting that is changed meanwhile is lost. An
OpenBLAS on OpenMP has a number for each thread that calls it; there each thread looks after its
own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any, TypeVar, cast

import numpy as np
import scipy
import scipy.linalg  # so that its BLAS is loaded before it is looked for
from threadpoolctl import ThreadpoolController

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
        with one_blas_thread():
            return function(*arguments, **named)

    held.holds_blas = True  # type: ignore[attr-defined]  # tests look for it
    return cast(_Function, held)
