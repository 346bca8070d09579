"""The CUDA backend on a card: both ways to form the Gram, PCG and layers, on answers checked first.

    make bench-cuda

Needs an NVIDIA card, CuPy and the compiled CUDA module; says what is missing and ends with status 2
otherwise. Writes bench/results/cuda.md and cuda.json, which docs/cuda.md asks card owners to send.

Not called cuda.py: a program's folder comes first on the path, and CuPy imports a package ``cuda``.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from machine import processor
from record import RESULTS, keep, markdown_table

import linattn_fast as la
from linattn_fast.features.compact import shape

REPEATS = 7
PATHS = ("kernels", "cublas")
CHUNK_BYTES = 256 << 20
"""Bytes of features that the competitor holds at once."""

SIZES = {
    "last": [(4, 32, 2_000_000), (8, 32, 500_000), (16, 32, 100_000), (24, 32, 20_000)],
    "all": [(8, 64, 200_000), (16, 64, 50_000)],
    "causal": [(8, 100, 10_000), (16, 100, 2_000)],
}
"""(d, n, N) of each mode."""


class Row(NamedTuple):
    """One measurement."""

    scenario: str
    what: str
    """One of our ways, or the competitor."""
    seconds: float
    flops_per_second: float | None
    """Flops of the compact Gram over the seconds, where one is formed."""


def timed(runs: dict[str, Callable[[], object]], wait: Callable[[], None]) -> dict[str, float]:
    """Median seconds of each, in turns, until the device has finished."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():  # what is compiled or loaded once
        run()
    for _ in range(REPEATS):
        for name, run in runs.items():
            wait()
            start = time.perf_counter()
            run()
            wait()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(spent) for name, spent in times.items()}


def by_path(path: str, Z: Any, positions: str, precision: str = "float64") -> la.Moments:
    os.environ["LINATTN_CUDA_PATH"] = path
    try:
        moments = la.Moments(
            Z.shape[2], 0, positions=positions, backend="cuda", precision=precision
        )
        return moments.update(Z)
    finally:
        del os.environ["LINATTN_CUDA_PATH"]


def expert_cupy(cupy: Any, Z: Any) -> Any:
    """What users write today: symmetric features in chunks, multiplied with themselves: (p, p)."""
    d = Z.shape[2]
    j, k = (cupy.asarray(index) for index in np.triu_indices(d))
    p = len(j) * d
    gram = cupy.zeros((p, p))
    step = max(1, CHUNK_BYTES // (8 * p))
    for first in range(0, len(Z), step):
        z = Z[first : first + step]
        S = z.transpose(0, 2, 1) @ z
        features = (S[:, j, k][:, :, None] * z[:, -1][:, None, :]).reshape(len(z), p)
        gram += features.T @ features
    return gram


def check(found: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    """Agreement relative to the diagonal, as for any Gram."""
    size = np.sqrt(np.diag(expected))
    error = float((np.abs(found - expected) / (size * size[:, None])).max())
    if not error < tolerance:
        raise SystemExit(f"bench-cuda: the answers differ by {error:.1e}, more than {tolerance}")


def gram_rows(
    cupy: Any, wait: Callable[[], None], positions: str, d: int, n: int, N: int
) -> list[Row]:
    """Tokens to moments."""
    Z = cupy.asarray(np.random.default_rng(d).standard_normal((N, n, d)))
    few = Z[:500]
    expected = la.Moments(d, 0, positions=positions, backend="cpu").update(few.get()).gram()
    for path in PATHS:
        check(by_path(path, few, positions).gram().get(), expected, 1e-11)
    check(by_path("cublas", few, positions, "mixed").gram().get(), expected, 1e-3)
    runs: dict[str, Callable[[], object]] = {
        path: lambda path=path: by_path(path, Z, positions) for path in PATHS
    }
    runs["cublas, mixed precision"] = lambda: by_path("cublas", Z, positions, "mixed")
    home = Z.get()
    runs["kernels, from the host"] = lambda: by_path("kernels", home, positions)
    if positions == "last":
        check(expert_cupy(cupy, few).get(), expected, 1e-11)
        runs["expert CuPy"] = lambda: expert_cupy(cupy, Z)
    samples = N * n if positions == "causal" else N
    flops = 2.0 * samples * int(np.prod(shape(la.Features(d), positions)))
    scenario = f"moments, {positions}, d = {d}, n = {n}, N = {N:,}"
    found = timed(runs, wait)
    return [Row(scenario, name, seconds, flops / seconds) for name, seconds in found.items()]


def fit_rows(cupy: Any, wait: Callable[[], None], d: int, n: int, N: int) -> list[Row]:
    """Fits by Cholesky and by conjugate gradients, and the layer applied, against the CPU."""
    rng = np.random.default_rng(d)
    truth = la.Heads(rng.standard_normal((2, 4, d)), rng.standard_normal((2, d, d)))
    home = rng.standard_normal((N, n, d))
    targets = truth(home)
    Z, y = cupy.asarray(home), cupy.asarray(targets)
    rows = []
    for solver in ("cholesky", "pcg"):
        settings: dict[str, Any] = {"solver": solver, "heads": None, "certify": False}
        fit = la.fit(Z, y, **settings).get()
        error = np.linalg.norm(fit.coefficients - truth.coefficients())
        if not error < 1e-8 * np.linalg.norm(truth.coefficients()):
            raise SystemExit(f"bench-cuda: {solver} missed the planted layer by {error:.1e}")
        runs = {
            "cuda": lambda settings=settings: la.fit(Z, y, **settings),
            "cpu": lambda settings=settings: la.fit(home, targets, backend="cpu", **settings),
        }
        scenario = f"fit by {solver}, d = {d}, n = {n}, N = {N:,}"
        rows += [Row(scenario, name, spent, None) for name, spent in timed(runs, wait).items()]
    there = la.Heads(cupy.asarray(truth.V), cupy.asarray(truth.Q))
    worst = float(np.abs(there(Z).get() - targets).max())
    if not worst < 1e-10 * float(np.abs(targets).max()):
        raise SystemExit(f"bench-cuda: outputs differ by {worst:.1e}")
    runs = {"cuda": lambda: there(Z), "cpu": lambda: truth(home, backend="cpu")}
    scenario = f"apply 2 heads, d = {d}, n = {n}, N = {N:,}"
    return rows + [Row(scenario, name, spent, None) for name, spent in timed(runs, wait).items()]


def table(rows: list[Row], machine: str) -> str:
    def told(rate: float | None) -> str:
        return "" if rate is None else f"{rate / 1e12:.2f} TFlop/s"

    return markdown_table(
        f"{machine}. Median of {REPEATS} runs in turns; answers checked before timing.",
        ["scenario", "what", "time", "rate"],
        [
            [row.scenario, row.what, f"{1e3 * row.seconds:.2f} ms", told(row.flops_per_second)]
            for row in rows
        ],
    )


def main(sizes: dict[str, list[tuple[int, int, int]]], fit_size: tuple[int, int, int]) -> int:
    info = next(each for each in la.backends() if each.name == "cuda")
    if not info.available:
        print(f"bench-cuda: nothing measured: {info.reason}", file=sys.stderr)
        return 2
    import cupy

    device = cupy.cuda.Device()
    properties = cupy.cuda.runtime.getDeviceProperties(device.id)
    machine = (
        f"{properties['name'].decode()} (sm_{device.compute_capability}), CuPy "
        f"{cupy.__version__}; {processor()}, {la.get_num_threads()} threads; {info.reason}"
    )
    rows = []
    for positions, each in sizes.items():
        for d, n, N in each:
            rows += gram_rows(cupy, device.synchronize, positions, d, n, N)
            print(table(rows[-1:], machine).splitlines()[-1], flush=True)
    rows += fit_rows(cupy, device.synchronize, *fit_size)
    text = table(rows, machine)
    keep(RESULTS, "cuda", text, {"machine": machine, "rows": [row._asdict() for row in rows]})
    print("\n" + text)
    return 0


if __name__ == "__main__":
    sys.exit(main(SIZES, (16, 32, 50_000)))
