"""Whether "auto" takes the right solver: the default call against the same call with each solver.

    make bench-choices
    python bench/choices.py icl "all features, d = 8"      cases whose name has one of these words

For each case, the seconds of the default call, and those predicted and measured of every solver,
the certificate included; answers are compared first. "chosen / best" is the measured time of the
solver that "auto" takes over that of the fastest; it should be at most 1.5. A solver that is
predicted to take ten times as long as the fastest, or more than the memory, is left out.
Least of a few runs in turns.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import blocks
import numpy as np
from defaults import in_context_data
from machine import in_block
from record import markdown_table

import linattn_fast as la
from linattn_fast.fitting.call import as_problem
from linattn_fast.solvers.costs import predicted_seconds, room_for_samples

SOLVERS = ("cholesky", "pcg", "dual", "qr", "blocks")
LIMIT = 1.5
"""Times the fastest that the chosen solver may take."""
HOPELESS = 10.0
"""Times the fastest prediction from which on a solver is not run."""
LONGEST = 60.0
"""Seconds of a run beyond which nothing is repeated or tried."""
ROUNDS = 3


class Case(NamedTuple):
    """Data of a fit, made when it is its turn."""

    name: str
    data: Callable[[], dict[str, object]]
    """Arguments of ``la.fit``."""
    solvers: tuple[str, ...] = SOLVERS[:-1]


def planted(d: int, N: int, n: int, alpha: float, positions: str = "last") -> dict[str, object]:
    """All features, targets of two heads with a little noise."""
    rng = np.random.default_rng(d)
    truth = la.Heads(rng.standard_normal((2, 1, d)), rng.standard_normal((2, d, d)))
    Z = rng.standard_normal((N, n, d))
    y = truth(Z, positions)
    y = y + 0.01 * y.std() * rng.standard_normal(y.shape)
    return {"Z": Z, "y": y, "alpha": alpha, "positions": positions}


def in_context(d: int, N: int, alpha: float) -> dict[str, object]:
    """In-context regression, as in bench/defaults.py."""
    Z, y, features = in_context_data(d, N, 2 * d)
    return {"Z": Z, "y": y, "features": features, "alpha": alpha}


def one_hot(states: int, N: int) -> dict[str, object]:
    """Universal automata, as in bench/blocks.py: queries that never occur together."""
    Z, y, _ = blocks.runs(states, 2, 4, N, 0)
    return {"Z": Z, "y": y, "features": la.Features.active(Z)}


def cases() -> Iterator[Case]:
    """The benchmark's cases."""
    for d, N, n in ((4, 400, 16), (8, 4000, 32), (16, 8000, 32)):
        yield Case(f"defaults, d = {d}, N = {N}", lambda d=d, N=N, n=n: planted(d, N, n, 0.0))
    for d in (16, 32, 64):
        p = d * (d + 1)
        for N in (p // 2, p + p // 20, 5 * d * d):
            for alpha in (1e-2, 1e-6 / d):
                name = f"in-context, d = {d}, p = {p}, N = {N}, alpha = {alpha:.1g}"
                yield Case(name, lambda d=d, N=N, alpha=alpha: in_context(d, N, alpha))
    for d in (4, 8, 16, 24):
        p = d * d * (d + 1) // 2
        for times in (0.5, 1.2, 3, 10):
            for alpha in (0.0, 1e-2):
                N = round(times * p)
                name = f"all features, d = {d}, p = {p}, N = {N}, alpha = {alpha:g}"
                yield Case(name, lambda d=d, N=N, alpha=alpha: planted(d, N, 16, alpha))
    for d, N, n in ((8, 400, 100), (16, 200, 32), (16, 400, 100), (24, 450, 64)):
        name = f"causal, d = {d}, {N} sequences of {n}"
        yield Case(name, lambda d=d, N=N, n=n: planted(d, N, n, 0.0, "causal"))
    for states, N in ((3, 500), (4, 1000)):
        name = f"one-hot automata of {states} states, {N} runs"
        yield Case(name, lambda states=states, N=N: one_hot(states, N), SOLVERS)


def agree(fits: dict[str, la.Fit]) -> None:
    """Raise where two solvers that know their error differ."""
    first, *others = fits
    expected = fits[first].coefficients
    for name in others:
        size = np.linalg.norm(expected)
        error = np.linalg.norm(fits[name].coefficients - expected) / size
        unknown = any(fits[each].info.coefficient_error is None for each in (first, name))
        assert error < 1e-5 or unknown, f"{name} and {first} differ by {error:.1e}"


def measured(case: Case) -> tuple[list[str], float]:
    """The row of a case, and how many times as long as the fastest the chosen solver takes."""
    arguments = case.data()
    Z, y = arguments.pop("Z"), arguments.pop("y")
    problem = as_problem(
        Z, y, None, None, arguments.get("positions", "last"), arguments.get("features"), "auto"
    )
    alpha, room = float(arguments.get("alpha", 0.0)), room_for_samples(None)
    predicted = predicted_seconds(problem, alpha, room, certify=True)
    soonest = min(predicted.values())
    auto = la.fit(Z, y, **arguments)
    taken = auto.info.solver
    runs, fits = {"auto": partial(la.fit, Z, y, **arguments)}, {"auto": auto}
    for solver in case.solvers:
        if solver != taken and predicted.get(solver, 0.0) > HOPELESS * soonest:
            continue
        run = partial(la.fit, Z, y, solver=solver, **arguments)
        try:
            fits[solver] = run()
        except (MemoryError, ValueError, np.linalg.LinAlgError):
            continue
        runs[solver] = run
    agree(fits)
    seconds = dict.fromkeys(runs, math.inf)
    for _ in range(ROUNDS):
        for name, run in runs.items():
            seconds[name] = min(seconds[name], in_block(run))
        if max(seconds.values()) > LONGEST / 10:
            break
    best = min((name for name in runs if name != "auto"), key=seconds.__getitem__)
    ratio = min(seconds["auto"], seconds.get(taken, math.inf)) / seconds[best]
    row = [case.name, taken, f"{1e3 * seconds['auto']:.3g}"]
    for solver in SOLVERS:
        told = f"{1e3 * predicted[solver]:.3g}" if solver in predicted else "?"
        row.append(f"{told} / {1e3 * seconds[solver]:.3g}" if solver in seconds else f"{told} / -")
    mark = "" if ratio <= LIMIT else " !"
    return [*row, best, f"{ratio:.2f}{mark}"], ratio


def main(words: list[str]) -> None:
    """Print a table of all cases, or of those whose names have some words."""
    warnings.simplefilter("ignore")  # of few samples, which are meant
    rows, ratios = [], []
    for case in cases():
        if words and not any(word in case.name for word in words):
            continue
        row, ratio = measured(case)
        rows.append(row)
        ratios.append(ratio)
        print(" | ".join(row), flush=True)
    solvers = [f"{solver}: predicted / measured" for solver in SOLVERS]
    header = ["case", "chosen", "auto", *solvers, "best", "chosen / best"]
    above = f"Milliseconds, {la.get_num_threads()} threads; largest ratio {max(ratios):.2f}."
    print("\n" + markdown_table(above, header, rows))


if __name__ == "__main__":
    main(sys.argv[1:])
