"""Fits beside processes that keep the cores busy, against the same fits on a quiet machine.

    make bench-busy

Default fits with heads, and numpy to coefficients for comparison, are timed quiet and beside two
processes that compute, in blocks in turns, so that both see the same machine. With two cores and
two busy processes the fair share of one thread is two thirds of a core, and of two threads half.
The floor: a default fit of p = 272 takes at most three times its quiet time.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import defaults
from machine import in_block, processor

import linattn_fast as la

BUSY = {
    "Python loops": "while True: pass",
    "numpy products": "import numpy as np\nA = np.ones((600, 600))\nwhile True: A @ A",
}
"""What each of the two processes does, on one thread."""
PROCESSES = 2
ROUNDS = 5
FLOOR = 3.0
"""Times its quiet time that a fit of p = 272 may take."""


@contextmanager
def busy(code: str) -> Iterator[None]:
    """Processes that compute, for the length of a block."""
    alone = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    started = [subprocess.Popen([sys.executable, "-c", code], env=alone) for _ in range(PROCESSES)]
    try:
        time.sleep(1.0)  # until they are at work
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def quiet_and_busy(runs: list[Callable[[], object]], code: str) -> list[tuple[float, float]]:
    """Median seconds of each, quiet and beside busy processes, in turns."""
    quiet: list[list[float]] = [[] for _ in runs]
    beside: list[list[float]] = [[] for _ in runs]
    for _ in range(ROUNDS):
        for run, spent in zip(runs, quiet, strict=True):
            spent.append(in_block(run))
        with busy(code):
            for run, spent in zip(runs, beside, strict=True):
                spent.append(in_block(run))
    return [
        (statistics.median(a), statistics.median(b)) for a, b in zip(quiet, beside, strict=True)
    ]


def main() -> None:
    """Print each problem quiet, busy, and the ratio."""
    print(f"{processor()}, {la.get_num_threads()} threads; {PROCESSES} busy processes")
    for name in ("icl16", "d16"):
        problem = defaults.PROBLEMS[name]()
        dimension = defaults.checked(problem).info.dimension
        for what, code in BUSY.items():
            pairs = quiet_and_busy([problem.ours, problem.by_numpy], code)
            for who, (quiet, beside) in zip(("ours", "numpy"), pairs, strict=True):
                floor = f" (floor {FLOOR:.0f}x)" if who == "ours" and name == "icl16" else ""
                print(
                    f"p = {dimension}, {what}, {who}: {1e3 * quiet:.1f} ms quiet, "
                    f"{1e3 * beside:.1f} ms busy, {beside / quiet:.1f}x{floor}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
