"""Data larger than memory, and data on a cluster: memory and time, on answers checked first.

    make bench-stream

Writes bench/results/stream.md and stream.json, and puts the table into docs/scale.md.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from machine import alternate, in_fresh_process, processor
from record import RESULTS, keep, markdown_table

import linattn_fast as la
from linattn_fast import _cpu
from linattn_fast.system.machine import in_words

D, LENGTH = 12, 32


class Row(NamedTuple):
    """One floor and what was measured."""

    scenario: str
    against: str
    measured: str
    """What is said of both, in words."""
    ours: float
    theirs: float


def write_tokens(path: Path, n_bytes: int) -> int:
    """Fill a file with Gaussian tokens; return the number of sequences."""
    N = n_bytes // (8 * LENGTH * D)
    Z = np.lib.format.open_memmap(path, mode="w+", dtype=np.float64, shape=(N, LENGTH, D))
    rng = np.random.default_rng(0)
    for first in range(0, N, 20_000):
        rng.standard_normal(out=Z[first : first + 20_000])
    Z.flush()
    return N


STREAMING = """
import os, time
import numpy as np, linattn_fast as la
path, D, what = {path!r}, {D}, {what!r}
def peak():  # of this program alone; getrusage would count what the parent held when it forked
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
la.Moments(2, 1).update(iter([(np.ones((60, 2, 2)), np.ones(60))]))  # what is loaded once
with open(path, "rb") as file:  # from the disk, not from the system's cache
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
Z = np.load(path, mmap_mode="r")
y = np.ones(len(Z))
before, start = peak(), time.perf_counter()
if what == "reading":  # the file once, a batch at a time, and nothing else
    with open(path, "rb") as file:
        while file.read(32 << 20):
            pass
else:
    moments = la.Moments(D, 1).update(Z, y)
    assert moments.n_samples == len(Z)
    if what == "check":  # against the same batches, read by hand
        wanted = la.Moments(D, 1)
        for first in range(0, len(Z), 9_000):
            wanted.update(np.array(Z[first : first + 9_000]), y[first : first + 9_000])
        size = np.sqrt(wanted.gram_diagonal())
        error = np.abs(moments.gram() - wanted.gram()) / (size * size[:, None])
        assert error.max() < 1e-12, error.max()
print((peak() - before) * 1024, time.perf_counter() - start)
"""


def streaming(folder: Path, n_bytes: int = 2 * 10**9) -> list[Row]:
    """2 GB of tokens in a file: peak of memory beyond what the program has, and time."""
    path = folder / "Z.npy"
    N = write_tokens(path, n_bytes)

    def run(what: str) -> tuple[float, float]:
        printed = in_fresh_process(STREAMING.format(path=str(path), D=D, what=what))
        memory, seconds = (float(word) for word in printed.split())
        return memory, seconds

    run("check")
    memory, seconds = run("moments")
    reading = run("reading")[1]
    path.unlink()
    scenario = f"stream {in_words(n_bytes)} from a file to moments, d = {D}, N = {N:,}"
    return [
        Row(scenario, "the file", f"{in_words(int(memory))} of memory", memory, n_bytes),
        Row(
            scenario,
            "one reading of the file",
            f"{seconds:.2f} s; reading alone {reading:.2f} s",
            seconds,
            reading,
        ),
    ]


def _batch(i: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([2, i])
    return rng.standard_normal((size, LENGTH, D)), rng.standard_normal((size, 1))


def _bind(core: int) -> None:
    """Keep every thread of a worker, with Dask's own, on one core."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), {core})


def cluster(N: int = 100_000, parts: int = 4) -> list[Row]:
    """Tokens to moments: 2 workers x 1 thread, the data on them, against 1 process x 1 thread.

    Left to the system, both workers may compute on one core for a while as the other threads of
    the cluster come and go; so they are timed that way, and with a core for each.
    """
    import dask
    import distributed

    import linattn_fast.dask as lad

    whole = [_batch(i, N // parts) for i in range(parts)]
    Z, y = (np.concatenate(arrays) for arrays in zip(*whole, strict=True))
    rows = []
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, memory_limit=0
        ) as running,
        distributed.Client(running) as client,
    ):
        batches = list(dask.persist(*(dask.delayed(_batch)(i, N // parts) for i in range(parts))))
        distributed.wait(batches)
        held = client.has_what()
        assert [len(keys) for keys in held.values()] == [parts // 2] * 2, "unequal shares"
        la.set_num_threads(1)
        expected = la.Moments(D, 1).update(Z, y)
        size = np.sqrt(expected.gram_diagonal())
        for where in ("placed by the system", "a core for each"):
            if where == "a core for each":
                for core, worker in zip(sorted(os.sched_getaffinity(0)), held, strict=False):
                    client.run(_bind, core, workers=[worker])
            found = lad.moments(batches)
            error = np.abs(found.gram() - expected.gram()) / (size * size[:, None])
            assert error.max() < 1e-12, f"answers differ by {error.max():.1e}"
            ours, theirs = alternate(
                [lambda: lad.moments(batches), lambda: la.Moments(D, 1).update(Z, y)], 9
            )
            scenario = f"Dask, 2 workers x 1 thread, {where}, d = {D}, n = {LENGTH}, N = {N:,}"
            measured = f"{ours:.2f} s against {theirs:.2f} s: {theirs / ours:.2f}x"
            rows.append(Row(scenario, "one process x 1 thread", measured, ours, theirs))
            print(f"{where}: {measured}", flush=True)
        la.set_num_threads(None)
    return rows


def table(rows: list[Row], machine: str) -> str:
    above = (
        f"{machine}. Answers checked first. The file is read from the disk, its pages dropped from "
        "the system's cache before; the cluster's data is on its workers, and a run is from tokens "
        "to moments in this process, median of 9 in turns."
    )
    header = ["scenario", "against", "measured"]
    return markdown_table(above, header, [[getattr(row, name) for name in header] for row in rows])


def main() -> None:
    machine = f"{processor()}, {la.get_num_threads()} cores, {_cpu.instruction_set()}"
    rows = cluster()
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_FOLDER")) as folder:
        rows += streaming(Path(folder))
    text = table(rows, machine)
    keep(RESULTS, "stream", text, {"machine": machine, "rows": [row._asdict() for row in rows]})
    print("\n" + text)


if __name__ == "__main__":
    main()
