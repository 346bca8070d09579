"""The machine a benchmark runs on, and how it times."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from linattn_fast.system.machine import processor

__all__ = ["alternate", "extra_memory", "flop_rate", "in_block", "in_fresh_process", "processor"]

PAUSE = 0.3
"""Seconds before a run: BLAS threads spin for a while after a call and disturb the next."""
SHORT = 0.05
"""Seconds of a call below which a block of calls is timed in its place."""
BLOCK = 0.1
"""Seconds of a block, at least."""


def in_block(run: Callable[[], object]) -> float:
    """Seconds of a call: the mean of many where it is short, the first not counted.

    A short call that follows another library's is slower than in a loop of its own: threads of that
    library spin, and caches are cold. People call small fits in loops.
    """
    time.sleep(PAUSE)
    start = time.perf_counter()
    run()
    first = time.perf_counter() - start
    if first >= SHORT:
        return first
    calls, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < BLOCK:
        run()
        calls += 1
    return spent / calls


def alternate(runs: list[Callable[[], object]], repeats: int) -> list[float]:
    """Median seconds of each, run in turns so that all see the same machine."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(repeats):
        for run, spent in zip(runs, times, strict=True):
            spent.append(in_block(run))
    return [statistics.median(spent) for spent in times]


def in_fresh_process(code: str) -> str:
    """What a program prints."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def extra_memory(positions: str, d: int, N: int, n: int) -> int:
    """Bytes that accumulating takes beyond its input, at its peak, in a fresh process."""
    return int(
        in_fresh_process(f"""
import numpy as np, linattn_fast as la
Z = np.random.default_rng(0).standard_normal(({N}, {n}, {d}))
la.Moments(1, 0, positions={positions!r}).update(np.ones((3, 3, 1)))  # what is loaded once
def peak():  # of this program alone; getrusage would count what the parent held when it forked
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
before = peak()
la.Moments({d}, 0, positions={positions!r}).update(Z)
print((peak() - before) * 1024)
""")
    )


def flop_rate(setting: str, run: str, flops: float, repeats: int) -> float:
    """``flops`` over the seconds of ``run``, as a fraction of the multiply-add peak.

    Both are medians of runs in turns, in a fresh process: no other library's threads disturb.
    """
    return float(
        in_fresh_process(f"""
import statistics, time
import numpy as np, linattn_fast as la
from linattn_fast import _cpu
{setting}
seconds, peaks = [], []
for _ in range({repeats} + 1):
    peaks.append(_cpu.multiply_add_rate(la.get_num_threads()))
    start = time.perf_counter()
    {run}
    seconds.append(time.perf_counter() - start)
print({flops} / statistics.median(seconds[1:]) / statistics.median(peaks[1:]))
""")
    )
