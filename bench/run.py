"""Time our moments against what users write in numpy, on answers checked first.

    make bench

Writes bench/results/table.md and bench/results/record.json, and puts the table into the README.
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import competitors
import numpy as np

import linattn_fast as la

RESULTS = Path(__file__).parent / "results"
REPEATS = 5
PAUSE = 0.3
"""Seconds before each run: BLAS threads spin for a while after a call and disturb the next."""


@dataclass(frozen=True)
class Row:
    scenario: str
    against: str
    ours_seconds: float
    theirs_seconds: float

    @property
    def ratio(self) -> float:
        return self.theirs_seconds / self.ours_seconds


def processor() -> str:
    """The machine's own name for its processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def alternate(ours: Callable[[], object], theirs: Callable[[], object]) -> tuple[float, float]:
    """Median seconds of each, run in turns so that both see the same machine."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(REPEATS):
        for run, spent in zip((ours, theirs), times, strict=True):
            time.sleep(PAUSE)
            start = time.perf_counter()
            run()
            spent.append(time.perf_counter() - start)
    return statistics.median(times[0]), statistics.median(times[1])


def check(found: np.ndarray, expected: np.ndarray) -> None:
    """Agreement to rounding, relative to the diagonal as for any Gram."""
    size = np.sqrt(np.diag(expected))
    error = np.abs(found - expected) / (size * size[:, None])
    assert error.max() < 1e-12, f"answers differ by {error.max():.1e}"


def last(d: int, N: int, n: int = 32) -> list[Row]:
    Z = np.random.default_rng(d).standard_normal((N, n, d))
    name = f"last, d = {d}, n = {n}, N = {N:,}"

    def ours() -> la.Moments:
        return la.Moments(d, 0, backend="cpu").update(Z)

    gram = ours().gram()
    rows = []
    check(gram, competitors.expert_last(Z))
    rows.append(Row(name, "expert numpy", *alternate(ours, lambda: competitors.expert_last(Z))))
    if 8 <= d <= 16:
        check(gram, competitors.symmetric_part(competitors.literal_last(Z), d))
        times = alternate(ours, lambda: competitors.literal_last(Z))
        rows.append(Row(name, "literal d^3 numpy", *times))
    return rows


def table(rows: list[Row], machine: str) -> str:
    lines = [
        f"{machine}; median of {REPEATS}, both sides in turns; answers checked before timing.",
        "",
        "| tokens to moments | against | ours | theirs | ratio |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.scenario} | {row.against} | {1e3 * row.ours_seconds:.1f} ms "
        f"| {1e3 * row.theirs_seconds:.1f} ms | {row.ratio:.1f}x |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def show_in_readme(text: str) -> None:
    """Replace what stands between the two marks in the README."""
    readme = Path(__file__).parent.parent / "README.md"
    before, rest = readme.read_text().split("<!-- bench/results/table.md -->\n")
    after = rest.split("<!-- end -->")[1]
    readme.write_text(f"{before}<!-- bench/results/table.md -->\n{text}<!-- end -->{after}")


def main() -> None:
    machine = (
        f"{processor()}, {la.get_num_threads()} threads, numpy {np.__version__}, "
        f"{la.backends()[0].reason.split(';')[0]}"
    )
    rows = []
    for d, N in ((4, 300_000), (8, 40_000), (12, 20_000), (16, 8_000), (24, 2_000)):
        rows += last(d, N)
        print(f"{rows[-1].scenario}: {rows[-1].ratio:.1f}x {rows[-1].against}", flush=True)
    RESULTS.mkdir(exist_ok=True)
    text = table(rows, machine)
    (RESULTS / "table.md").write_text(text)
    record = [{**asdict(row), "ratio": row.ratio} for row in rows]
    (RESULTS / "record.json").write_text(
        json.dumps({"machine": machine, "rows": record}, indent=1) + "\n"
    )
    show_in_readme(text)
    print("\n" + text)


if __name__ == "__main__":
    main()
