"""Every floor that default calls are held to, measured in one run: which of them hold.

    make bench-floors
    python bench/floors.py --all      with the two that take minutes: in-context regression at
                                      d = 100, and all features at d = 64

A floor is a ratio of times in the same run, or a number of seconds at a peak of 100 GFlop/s, scaled
by the peak of the run. Answers are checked before they are timed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

import busy
import defaults
import few_heads
import run
import scale

import linattn_fast as la
from linattn_fast import _cpu
from linattn_fast.system.machine import in_words

OLD_SECONDS, OLD_PEAK = 241.0, 285e9
"""All features at d = 64 before (commit 6b7cc7f, 571 iterations to 1e-7): seconds, measured on an
AMD EPYC with two threads, and the multiply-adds, in flops a second, that these reach there."""


class Floor(NamedTuple):
    """One line: what was measured, what it is held to, and whether that holds."""

    what: str
    found: str
    floor: str
    holds: bool


def default_calls(names: list[str]) -> Iterator[Floor]:
    """Tokens to heads against numpy to coefficients."""
    for row in defaults.rows_of(names):
        found = f"{row['ratio']:.1f}x ({defaults.in_words(row['ours'])})"
        holds = row["ratio"] >= row["floor"]
        yield Floor(row["problem"], found, f"at least {row['floor']:g}x numpy", holds)


def beside_busy_processes() -> Iterator[Floor]:
    """A default fit of p = 272 beside two busy processes, against itself."""
    problem = defaults.PROBLEMS["icl16"]()
    for what, code in busy.BUSY.items():
        ((quiet, beside),) = busy.quiet_and_busy([problem.ours], code)
        found = f"{beside / quiet:.1f}x ({1e3 * beside:.1f} ms)"
        holds = beside <= busy.FLOOR * quiet
        floor = f"at most {busy.FLOOR:g}x its quiet time"
        yield Floor(f"p = 272 beside two busy processes, {what}", found, floor, holds)


def applied_heads() -> Iterator[Floor]:
    """Heads applied, against one reading of the tokens."""
    for d, N in ((8, 100_000), (16, 50_000)):
        row = next(
            row for row in run.predict("last", d, N, 32) if row.against == "one reading of Z"
        )
        times = row.ours_seconds / row.theirs_seconds
        yield Floor(row.scenario, f"{times:.2f}x", "at most 1.5x one reading of Z", times <= 1.5)


def heads_without_a_gram() -> Iterator[Floor]:
    """Four heads at d = 64 in 2 GB, within 60 s at 100 GFlop/s."""
    found = few_heads.measure()
    peak = _cpu.multiply_add_rate(la.get_num_threads())
    allowed = 60 * 100e9 / peak
    yield Floor(
        f"heads = {few_heads.HEADS}, d = {few_heads.D}, N = {few_heads.N:,}, without a Gram",
        f"{found.seconds:.1f} s at {peak / 1e9:.0f} GFlop/s, {in_words(found.bytes)}",
        f"at most {allowed:.0f} s (60 s at 100 GFlop/s) and 2 GB",
        found.seconds <= allowed and found.bytes <= 2e9,
    )


def all_features() -> Iterator[Floor]:
    """All features at d = 64 against the code before, as long as it would take at this peak."""
    seconds = float(scale.dense_64()["seconds"])
    peak = max(_cpu.multiply_add_rate(la.get_num_threads()) for _ in range(5))
    before = OLD_SECONDS * OLD_PEAK / peak
    yield Floor(
        "all features, d = 64, N = 160,000, to 1e-7",
        f"{before / seconds:.1f}x ({seconds:.0f} s; before: {OLD_SECONDS:.0f} s at "
        f"{OLD_PEAK / 1e9:.0f} GFlop/s, so {before:.0f} s at the {peak / 1e9:.0f} of this run)",
        "at least 3x as before",
        before >= 3 * seconds,
    )


def main(arguments: list[str]) -> None:
    """Print each floor as it is measured; exit with 1 where one does not hold."""
    everything = "--all" in arguments
    names = [name for name in defaults.PROBLEMS if everything or name != defaults.LARGEST]
    parts = [
        lambda: default_calls([*names, "batch"]),
        applied_heads,
        beside_busy_processes,
        heads_without_a_gram,
    ]
    if everything:
        parts.append(all_features)
    missed = 0
    for part in parts:
        for floor in part():
            mark = "holds " if floor.holds else "MISSED"
            print(f"{mark}  {floor.what}: {floor.found}; {floor.floor}", flush=True)
            missed += not floor.holds
    if missed:
        sys.exit(f"{missed} floors do not hold")


if __name__ == "__main__":
    main(sys.argv[1:])
