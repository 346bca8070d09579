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
the process BLAS has one thread meanwhile, and a setting that is changed meanwhile is lost.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import scipy
import scipy.linalg  # so that its BLAS is loaded before it is looked for
from threadpoolctl import ThreadpoolController

_Function = TypeVar("_Function", bound=Callable[..., object])


class _Library(Protocol):
    """One BLAS in this process."""

    def get_num_threads(self) -> int: ...
    def set_num_threads(self, num_threads: int) -> object: ...


@cache
def _libraries() -> list[_Library]:
    """Every BLAS in this process whose threads can be set; numpy and SciPy have one each."""
    return list(ThreadpoolController().select(user_api="blas").lib_controllers)


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
    """The calls that hold BLAS to one thread at this moment, and the setting before them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: set[object] = set()
        self._before: list[tuple[_Library, int]] = []

    def begin(self, call: object) -> None:
        with self._lock:
            if not self._calls:
                self._before = [(blas, blas.get_num_threads()) for blas in _libraries()]
            # First the name, then the deed: an interrupt in between finds what to undo
            self._calls.add(call)
            for blas, threads in self._before if len(self._calls) == 1 else ():
                if threads != 1:
                    blas.set_num_threads(1)

    def end(self, call: object) -> None:
        with self._lock:
            if call not in self._calls:  # interrupted before it began
                return
            self._calls.discard(call)
            if not self._calls:
                self._restore()

    def forget(self) -> None:
        """In a forked process: the calls of other threads are not there to end."""
        self._lock = threading.Lock()
        if self._calls:
            self._calls.clear()
            self._restore()

    def _restore(self) -> None:
        for blas, threads in self._before:
            if threads != 1:
                blas.set_num_threads(threads)


_holding = _Holding()
os.register_at_fork(after_in_child=_holding.forget)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Hold BLAS to one thread within a block."""
    call = object()
    try:
        _holding.begin(call)
        yield
    finally:
        _holding.end(call)


def same_bits(function: _Function) -> _Function:
    """Hold BLAS to one thread while a function runs; for every public one that computes."""

    @wraps(function)
    def held(*arguments: Any, **named: Any) -> object:
        with one_blas_thread():
            return function(*arguments, **named)

    held.holds_blas = True  # type: ignore[attr-defined]  # tests look for it
    return cast(_Function, held)
