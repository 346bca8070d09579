"""Simulators of automata and Turing machines: compiled, learned, certified and run, all of them.

    make bench-programs

Writes bench/results/programs.md, and puts the table into docs/programs.md.
"""

from __future__ import annotations

import time

import numpy as np
import readme
from machine import processor
from record import RESULTS, markdown_table

import linattn_fast as la
from linattn_fast import programs
from linattn_fast.programs.language.program import Context
from linattn_fast.programs.running.appending import run_many

Row = tuple[str, str, str]


def compiled() -> list[Row]:
    """50 random machines of each size for 40 steps, token by token against plain Python."""
    rows = []
    for size in ((2, 2, 4), (3, 2, 5), (4, 3, 6)):
        states, symbols, cells = size
        simulator = programs.TuringSimulator(*size)
        heads = simulator.heads()
        layer = programs.Layer.of(heads, simulator.d)
        rng = np.random.default_rng(0)
        exact = 0
        for _ in range(50):
            machine = programs.TuringMachine.random(states, symbols, rng)
            word, at = rng.integers(symbols, size=cells).tolist(), int(rng.integers(cells))
            context = simulator.context(machine, word, at=at)
            run = simulator.run(layer, context, 40)
            truth = machine.run(word, n_cells=cells, steps=40, at=at)
            same = simulator.configurations(run) == list(truth.configurations)
            # The same tokens also from the package's own loop over dense heads
            whole = heads.generate(simulator.encode(context), 80, round=0)
            exact += same and np.array_equal(whole, run.tokens)
        rate = speed(simulator, layer, simulator.context(machine, word))
        rows.append(
            (
                f"compiled, {simulator.description}: d = {simulator.d}, {len(heads)} heads",
                f"{exact} of 50 random machines exact in every token of 40 steps",
                f"{rate:,.0f} steps/s",
            )
        )
    return rows


def speed(simulator: programs.TuringSimulator, layer: programs.Layer, context: Context) -> float:
    """Steps a second of one run of 20,000 steps."""
    simulator.run(layer, context, 200)
    start = time.perf_counter()
    run = simulator.run(layer, context, 20_000)
    assert len(run) == 40_000
    return 20_000 / (time.perf_counter() - start)


def simulated(program: programs.Program, fit: la.Fit, tokens: int) -> tuple[int, int]:
    """Run the learned layer by itself from every context: how many runs are exact, of how many."""
    layer, exact, number = programs.Layer.of(fit, program.d), 0, 0
    for Z in program.family.chunks(16_384):
        same = run_many(layer, Z, tokens) == run_many(program.layer, Z, tokens)
        exact += int(same.all(axis=(1, 2)).sum())
        number += len(Z)
    return exact, number


def learned(program: programs.Program, traces: int, steps: int) -> tuple[la.Fit, Row]:
    """Learn and certify."""
    runs = program.traces(traces, steps, seed=0)
    start = time.perf_counter()
    fit = programs.learn(program, runs)
    middle = time.perf_counter()
    found = programs.certify(fit, program, steps=steps)
    end = time.perf_counter()
    if found.method == "invariants":
        proved = "any number of" if found.steps is None else f"{found.steps:,}"
        what = f"all {found.contexts:,} contexts covered, proved for {proved} steps"
    else:
        what = (
            f"{found.method}: {found.covered_runs:,} of {found.runs:,} runs covered, "
            f"{found.right_runs:,} right, {found.covered_but_wrong} covered answers wrong"
        )
    row = (
        f"{program.description} from {traces:,} traces of {steps} steps: rank {found.rank:,} of "
        f"{fit.features.count:,} features",
        what,
        f"learned in {middle - start:.1f} s, certified in {end - middle:.1f} s",
    )
    print(row, flush=True)
    return fit, row


def automata() -> list[Row]:
    program, rows = programs.DfaSimulator(3, 2, 4), []
    for traces in (50, 100, 200, 300, 400, 500):
        fit, row = learned(program, traces, 4)
        rows.append(row)
    start = time.perf_counter()
    exact, number = simulated(program, fit, 8)
    spent = time.perf_counter() - start
    rows.append(("the last one, run by itself", f"{exact:,} of {number:,} exact", f"{spent:.1f} s"))
    return rows


def turing() -> list[Row]:
    program, rows = programs.TuringSimulator(2, 2, 3), []
    for traces in (50, 100, 150, 200, 400):
        fit, row = learned(program, traces, 12)
        rows.append(row)
        if traces == 150:
            few = fit
    start = time.perf_counter()
    exact, number = simulated(program, few, 24)
    spent = time.perf_counter() - start
    every = "every machine, tape, cell and state"
    what = f"150 traces, run by itself for 12 steps from {every}"
    rows.append((what, f"{exact:,} of {number:,} exact", f"{spent:.1f} s"))
    rng = np.random.default_rng(1)
    start, good = time.perf_counter(), 0
    for _ in range(200):
        machine = programs.TuringMachine.random(2, 2, rng)
        word = rng.integers(2, size=3).tolist()
        done = program.execute(machine, word, steps=1000, heads=few)
        good += done == machine.run(word, n_cells=3, steps=1000)
    spent = time.perf_counter() - start
    what = "150 traces of 12 steps, run for 1,000"
    rows.append((what, f"{good} of 200 random machines exact", f"{spent:.1f} s"))
    layer = programs.Layer.of(few, program.d)
    rate = speed(program, layer, program.context(machine, word))
    rows.append(("the same", "one run of 20,000 steps", f"{rate:,.0f} steps/s"))
    fit, row = learned(programs.TuringSimulator(3, 2, 5), 1500, 20)
    return [*rows, row]


def main() -> None:
    rows = [*compiled(), *automata(), *turing()]
    above = f"{processor()}, {la.get_num_threads()} threads."
    text = markdown_table(above, ["simulator", "found", "time"], rows)
    print(text)
    (RESULTS / "programs.md").write_text(text)
    readme.show("programs.md", text, "docs/programs.md")


if __name__ == "__main__":
    main()
