"""The machine: its processor, and the cores and memory this process may use of it.

Limits of a cgroup are included.
"""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def _read_words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def usable_cores() -> int:
    """Cores this process may run on: its affinity, cut to the CPU quota of its container."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quota = _read_words(
        _CGROUP / "cpu.max"
    )  # "max 100000" or "150000 100000": microseconds per period
    if len(quota) == 2 and quota[0].isdigit() and int(quota[1]) > 0:
        cores = min(cores, max(1, math.ceil(int(quota[0]) / int(quota[1]))))
    return cores


def usable_memory() -> int:
    """Bytes of memory this process may hold: the machine's, or its container's if that is less."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # cgroup v2, v1
        limit = _read_words(_CGROUP / name)
        if limit and limit[0].isdigit():
            memory = min(memory, int(limit[0]))
    return memory


def processor() -> str:
    """The machine's own name for its processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
