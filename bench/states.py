"""States drawn in batches at the size of published phase diagrams, against the Gram written out.

    make bench-states            d = 80, p = 6,480, N = 512,000: about three minutes
    python bench/states.py --quick

In-context regression with contexts of 6,400 tokens, whose sequences would be 2 TB: the sufficient
statistics of each are drawn instead, s = (mean of x y, mean of y^2), with the query x. Ours is
``la.fit(batches, alpha=...)`` from a source that draws its batches whenever it is read; numpy forms
the features of a batch, ``H @ H.T``, and solves. Both draw; the answers are compared. Each runs in
a process of its own, and memory is its peak beyond one batch, with what drawing that takes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import numpy as np
from machine import processor
from record import RESULTS, keep, markdown_table

from linattn_fast import _cpu

CONTEXT = 6400
FULL, QUICK = (80, 512_000), (24, 40_000)
"""d and N."""
BATCH = 8000

_DRAW = """
import json, sys, time, numpy as np, linattn_fast as la

d, N, batch, context = json.loads(sys.argv[1])

class Drawn:
    def __iter__(self):
        for number in range(N // batch):
            rng = np.random.default_rng(number)
            w, x = rng.standard_normal((2, batch, d))
            x /= np.sqrt(d)
            s = np.empty((batch, d + 1))
            s[:, :d] = w / np.sqrt(d) + np.sqrt(1.25 / context) * rng.standard_normal((batch, d))
            s[:, d] = (w**2).mean(axis=1) + 0.25
            y = (x * w).sum(axis=1) + 0.5 * rng.standard_normal(batch)
            yield la.States(s, x), y

def peak():
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

alpha, drawn = 1e-6 / d, Drawn()
for states, y in drawn:
    break
before, start = peak(), time.perf_counter()
"""

_OURS = """
fit = la.fit(drawn, alpha=alpha)
seconds, C = time.perf_counter() - start, fit.coefficients[0]
told = [fit.info.solver, fit.certificate.verdict, fit.certificate.lower_bound]
"""

_NUMPY = """
p = d * (d + 1)
gram, cross, rows = np.zeros((p, p)), np.zeros(p), 0
for states, y in drawn:
    H = (states.memory[:, :, None] * states.query[:, None]).reshape(batch, -1).T
    gram += H @ H.T
    cross += H @ y
gram[np.diag_indices(p)] += alpha * N
C = np.linalg.solve(gram, cross)
seconds, told = time.perf_counter() - start, []
"""

_TELL = """
np.save(sys.argv[2], C)
print(json.dumps([seconds, peak() - before, *told]))
"""


def run(code: str, sizes: tuple[int, int], path: str) -> list[float | str]:
    """Run one side in a process of its own: seconds, bytes beyond a batch, and what it says."""
    arguments = [sys.executable, "-c", _DRAW + code + _TELL, json.dumps([*sizes, BATCH, CONTEXT])]
    done = subprocess.run([*arguments, path], capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout.splitlines()[-1]))


def measure(sizes: tuple[int, int]) -> Iterator[tuple[str, str]]:
    """Name and value of each figure; raises where the answers differ."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [f"{folder}/{name}.npy" for name in ("ours", "numpy")]
        ours = run(_OURS, sizes, paths[0])
        theirs = run(_NUMPY, sizes, paths[1])
        C, expected = map(np.load, paths)
    difference = float(np.linalg.norm(C - expected) / np.linalg.norm(expected))
    assert difference < 1e-7, difference
    d, N = sizes
    peak = _cpu.multiply_add_rate(2)
    yield "problem", f"d = {d}, p = {d * (d + 1):,}, N = {N:,}, states in batches of {BATCH:,}"
    yield "`la.fit(batches, alpha=...)`", f"{ours[0]:.1f} s by {ours[2]}"
    yield "its memory beyond a batch", f"{float(ours[1]) / 1e6:.0f} MB"
    yield "certificate", f"{ours[3]}, lambda_min proved to be at least {ours[4]:.2g}"
    yield "numpy, `H @ H.T` and `solve`", f"{theirs[0]:.1f} s, {float(theirs[1]) / 1e6:.0f} MB"
    yield "ratio", f"{float(theirs[0]) / float(ours[0]):.1f}x"
    yield "coefficients differ by", f"{difference:.1e}"
    yield "peak of the run, two threads", f"{peak / 1e9:.0f} GFlop/s"


def main() -> None:
    """Measure, print, and keep the table of the full size."""
    quick = "--quick" in sys.argv[1:]
    rows = list(measure(QUICK if quick else FULL))
    table = markdown_table(f"{processor()}, two threads.", ("figure", "found"), rows)
    print(table)
    if not quick:
        keep(RESULTS, "states", table, dict(rows))


if __name__ == "__main__":
    main()
