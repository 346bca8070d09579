"""The machine: its processor, and the cores and memory this process may use of it.

Limits of a container (a cgroup) are included. Within a public call each fact is read once
(:func:`read_once`), however often it is asked for; what needs more memory than there is, or than
``memory_limit`` allows, is refused before any work.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from pathlib import Path

from .arguments import as_size

_CGROUP = Path("/sys/fs/cgroup")


def _read_words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _read_cores() -> int:
    """Cores this process may run on: its affinity, cut to the CPU quota of its container."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    # "max 100000" or "150000 100000": microseconds per period
    quota = _read_words(_CGROUP / "cpu.max")
    if len(quota) == 2 and quota[0].isdigit() and int(quota[1]) > 0:
        cores = min(cores, max(1, math.ceil(int(quota[0]) / int(quota[1]))))
    return cores


def _read_memory() -> int:
    """Bytes of memory this process may hold: the machine's, or its container's if that is less."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # cgroup v2, v1
        limit = _read_words(_CGROUP / name)
        if limit and limit[0].isdigit():
            memory = min(memory, int(limit[0]))
    return memory


class _Facts:
    """Cores and memory, each read when it is first asked for."""

    @cached_property
    def cores(self) -> int:
        """Cores that this process may use."""
        return _read_cores()

    @cached_property
    def memory(self) -> int:
        """Bytes of memory that this process may hold."""
        return _read_memory()


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
