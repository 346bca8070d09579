"""The campaign: cases in all processes until the time is over.

Prints the seeds, what was claimed how often, and every claim that exact arithmetic denies with the
command that repeats it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

for name in ("LINATTN_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")  # processes take the cores

import linattn_fast as la  # noqa: E402  # reads the variables above

from .calls import Broken  # noqa: E402
from .cases import case_of  # noqa: E402
from .claims import examine  # noqa: E402

SECONDS = 120
"""A case that takes longer counts as one that does not end."""


def _too_long(*_: object) -> None:
    raise Broken(f"no answer within {SECONDS} s")


def one(seed: int) -> tuple[int, Counter[str], str | None]:
    """Counts of one seed, and what broke."""
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(SECONDS)
    case = None
    try:
        case = case_of(seed)
        name, counts = examine(case, seed)
        return seed, counts + Counter({f"cases: {name}": 1}), None
    except Broken as broken:
        return seed, Counter(), f"{case.describe() if case else ''}\n{broken}"
    except Exception:
        return seed, Counter(), f"{case.describe() if case else ''}\n{traceback.format_exc()}"
    finally:
        signal.alarm(0)


def seeds(first: int, until: float, most: int | None) -> Iterator[int]:
    """Seeds one after the other while there is time."""
    for seed in count(first) if most is None else islice(count(first), most):
        if time.monotonic() > until:
            return
        yield seed


def table(counts: Counter[str], broken: int, told: str) -> str:
    """Counts as a table in Markdown: one row a promise, how often each answer was given."""
    cases = sum(n for name, n in counts.items() if name.startswith("cases: "))
    rows: dict[str, list[str]] = {}
    for name, n in sorted(counts.items()):
        promise, _, answer = name.partition(": ")
        rows.setdefault(promise, []).append(f"{n:,} {answer}" if answer else f"{n:,}")
    cells = [f"| {promise} | {', '.join(answers)} |" for promise, answers in rows.items()]
    head = f"{cases + broken:,} cases, {told}: {broken} broken promises."
    return "\n".join([head, "", "| claim | answers |", "|---|---|", *cells]) + "\n"


def main() -> int:
    """Run the campaign; 1 where a promise broke."""
    parser = argparse.ArgumentParser(prog="attack", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--first", type=int, help="first seed; by default from the clock")
    parser.add_argument("--cases", type=int, help="stop after so many")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--write", type=Path, help="file for the table of counts")
    options = parser.parse_args()
    first = int(time.time()) * 1000 if options.first is None else options.first
    until = time.monotonic() + 60 * options.minutes
    print(f"linattn_fast {la.__version__}, seeds from {first}", flush=True)
    counts: Counter[str] = Counter()
    broken, last = 0, first
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        chosen = seeds(first, until, options.cases)
        for seed, found, message in pool.imap_unordered(one, chosen, chunksize=4):
            counts += found
            last = max(last, seed)
            if message is not None:
                broken += 1
                print(f"\nbroken: python -m attack --cases 1 --first {seed}\n{message}", flush=True)
    text = table(counts, broken, f"seeds {first} to {last}")
    print(f"\n{text}")
    if options.write is not None and not broken:
        options.write.write_text(text)
    return 1 if broken else 0
