"""Figure 4: how many traces a universal simulator is learned from.

The paper trains by gradient descent to simulate automata, and asks how the data that is needed
grows with the numbers of states and symbols and the length of the words. Here the convex learner is
asked the same (:mod:`linattn_fast.programs`), and it can tell by itself when it has seen enough:

    covered   runs of which every step is in the range of the training features
    right     runs of which every step is right, covered or not
    rank      of the training features, of the rank that all runs together have

The last is known beforehand, from the exact invariants of the program. When it is reached, every
machine and input of the size is covered, as the certificate proves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..programs import DfaSimulator, Program, TuringSimulator, certify, learn
from ..system.machine import get_num_threads, processor
from ..system.packages import optional_module
from .figure import Figure, Finding, Settings

_BASE = {"states": 3, "symbols": 2, "length": 4}
"""Sizes of the automata, one of which is varied."""
_SIZES, _QUICK_SIZES = range(2, 9), range(2, 4)
_TRACES, _QUICK_TRACES = 25 * 2 ** np.arange(11), 25 * 2 ** np.arange(6)
_MACHINES, _QUICK_MACHINES = ((2, 2, 2), (2, 2, 3), (2, 2, 4), (3, 2, 3)), ((2, 2, 2),)
"""States, symbols and cells of the Turing machines."""
_MACHINE_STEPS = 12
"""Steps of a trace of a Turing machine."""
_RUNS, _QUICK_RUNS = 500, 100
"""Random runs that each fit is tried on."""


@dataclass(frozen=True)
class _Curve:
    """One simulator, learned from more and more traces."""

    part: str
    """The size that is varied, or "Turing machine"."""
    label: str
    """The size itself, in words."""
    program: Program
    steps: int
    """Steps of a trace."""


def _curves(quick: bool) -> Iterator[_Curve]:
    for part, base in _BASE.items():
        for size in _QUICK_SIZES if quick else _SIZES:
            if quick and size > base:
                continue
            sizes = _BASE | {part: size}
            program = DfaSimulator(sizes["states"], sizes["symbols"], sizes["length"])
            yield _Curve(part, str(size), program, sizes["length"])
    for machine in _QUICK_MACHINES if quick else _MACHINES:
        label = ", ".join(map(str, machine))
        yield _Curve("Turing machine", label, TuringSimulator(*machine), _MACHINE_STEPS)


def _points(curve: _Curve, settings: Settings) -> Iterator[dict[str, object]]:
    """Learn from the first traces of one list, until every run is proved to be covered."""
    numbers = _QUICK_TRACES if settings.quick else _TRACES
    traces = curve.program.traces(int(numbers[-1]), curve.steps, seed=settings.seed)
    for number in numbers:
        fit = learn(curve.program, traces[:number])
        tried = certify(
            fit,
            curve.program,
            method="sampled",
            steps=curve.steps,
            samples=_QUICK_RUNS if settings.quick else _RUNS,
            seed=settings.seed + 1,
        )
        verdict = tried.verdict
        if tried.covered_runs == tried.runs:
            verdict = certify(fit, curve.program, method="invariants").verdict
        yield {
            "program": curve.program.description,
            "d": curve.program.d,
            "contexts": curve.program.family.count,
            "traces": int(number),
            "features": fit.features.count,
            "rank": tried.rank,
            "runs": tried.runs,
            "covered_runs": tried.covered_runs,
            "right_runs": tried.right_runs,
            "answers": tried.answers,
            "covered_answers": tried.covered_answers,
            "right_answers": tried.right_answers,
            "covered_but_wrong": tried.covered_but_wrong,
            "verdict": verdict,
        }
        if verdict == "covered":
            return


def _run(settings: Settings) -> Finding:
    curves = list(_curves(settings.quick))
    rows: list[dict[str, Any]] = []
    known: dict[str, list[dict[str, Any]]] = {}  # the base size is on three curves
    for done, curve in enumerate(curves):
        settings.report(done, len(curves))
        name = curve.program.description
        if name not in known:
            known[name] = list(_points(curve, settings))
        rows += [{"part": curve.part, "size": curve.label, **row} for row in known[name]]
    settings.report(len(curves), len(curves))
    wrong = sum(row["covered_but_wrong"] for row in rows)
    answers = sum(row["covered_answers"] for row in rows)
    ends = _last(rows)
    lines = [
        f"{end['program']}: d = {end['d']}, {end['contexts']:,} machines and inputs; "
        + (
            f"all covered, proved, after {end['traces']:,} traces (rank {end['rank']:,} of "
            f"{end['features']:,} features)"
            if end["verdict"] == "covered"
            else f"not all covered after {end['traces']:,} traces"
        )
        for end in ends
    ]
    text = (
        "Universal simulators learned from random traces: least squares on active features, "
        f"{processor()}, {get_num_threads()} threads, seed {settings.seed}.\n"
        f"Automata: {_BASE['states']} states, {_BASE['symbols']} symbols, words of "
        f"{_BASE['length']}, one of these varied; Turing machines: {_MACHINE_STEPS} steps a trace, "
        f"on circular tapes.\nThe number of traces is doubled until the certificate proves every "
        f"machine and input covered.\nEach fit is tried on "
        f"{rows[0]['runs']} random runs: of {answers:,} covered answers {wrong:,} were wrong.\n\n"
        + "\n".join(lines)
    )
    found = {"covered_but_wrong": wrong, "traces": {e["program"]: e["traces"] for e in ends}}
    return Finding(rows, text, lambda figure: _draw(figure, rows), (15, 8), found)


def _last(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last row of each simulator."""
    return list({row["program"]: row for row in rows}.values())


def _draw(figure: Any, rows: list[dict[str, Any]]) -> None:
    parts = list(dict.fromkeys(row["part"] for row in rows))
    axes = figure.subplots(2, len(parts), sharex=True, sharey="row", squeeze=False)
    colours = optional_module("matplotlib", "linattn-fast paper", "plot").colormaps["viridis"]
    for column, part in enumerate(parts):
        mine = [row for row in rows if row["part"] == part]
        labels = list(dict.fromkeys(row["size"] for row in mine))
        for number, label in enumerate(labels):
            curve = [row for row in mine if row["size"] == label]
            colour = colours(0.9 * number / max(1, len(labels) - 1))
            traces = [row["traces"] for row in curve]
            needed = curve[-1]["rank"] if curve[-1]["verdict"] == "covered" else np.nan
            top, bottom = axes[0, column], axes[1, column]
            covered = [row["covered_runs"] / row["runs"] for row in curve]
            right = [row["right_runs"] / row["runs"] for row in curve]
            top.plot(traces, covered, "o-", color=colour, markersize=4, label=label)
            top.plot(traces, right, ":", color=colour)
            ranks = [row["rank"] / needed for row in curve]
            bottom.plot(traces, ranks, "o-", color=colour, markersize=4)
        machines = part == "Turing machine"
        what = "states, symbols, cells" if machines else part
        title = "Turing machines" if machines else f"automata, {part} varied"
        axes[0, column].set(title=title, ylim=(-0.03, 1.03))
        handles = axes[0, column].get_legend_handles_labels()
        axes[1, column].legend(*handles, title=what, fontsize="small", loc="lower right")
        axes[1, column].set(xlabel="traces", xscale="log", ylim=(-0.03, 1.03))
        ticks = sorted({row["traces"] for row in rows})[::2]
        axes[1, column].set_xticks(ticks, [str(tick) for tick in ticks])
        axes[1, column].set_xticks([], minor=True)
        for axis in axes[:, column]:
            axis.grid(alpha=0.3)
    axes[0, 0].set_ylabel("runs covered (solid), right (dotted)")
    axes[1, 0].set_ylabel("rank / rank of all runs")
    figure.suptitle("one layer that simulates every automaton, or every Turing machine, of a size")


FIGURE = Figure(
    name="fig4",
    title="universal automata and Turing machines: what is covered, against the number of traces",
    description="simulators of all automata with 2-8 states, 2-8 symbols or words of 2-8 letters, "
    "and of all\nsmall Turing machines, learned from random traces: covered and right fraction of "
    "runs, and rank.\nThe number of traces is doubled until every machine and input is proved to "
    "be covered.",
    run=_run,
)
