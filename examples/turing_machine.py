"""A universal Turing machine in one linear attention layer: learned, certified, and put to work.

    .venv/bin/python examples/turing_machine.py [--plot run.png]

The layer sees random machines with 3 states, 2 symbols and 4 cells for 12 steps each, and learns
by least squares what a step is. The certificate then proves that every machine of that size is
covered, on every tape and for billions of steps, and the layer runs a busy beaver.
"""

from __future__ import annotations

import argparse

from linattn_fast import programs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=int, default=500)
    parser.add_argument("--cells", type=int, default=4)
    parser.add_argument("--plot", metavar="FILE", help="draw the run, with matplotlib")
    arguments = parser.parse_args()

    simulator = programs.TuringSimulator(n_states=3, n_symbols=2, n_cells=arguments.cells)
    print(f"{simulator}: tokens with d = {simulator.d}, {simulator.family.count:,} contexts")
    traces = simulator.traces(arguments.traces, 12, seed=0)
    fit = programs.learn(simulator, traces, progress=True)
    print(f"learned from {fit.info.n_samples:,} samples in {fit.info.dimension:,} features")
    print(programs.certify(fit, simulator, steps=12, samples=200, progress=True), end="\n\n")

    machine = programs.busy_beaver(2)
    print(machine, end="\n\n")
    run = simulator.execute(machine, at=arguments.cells // 2, steps=100, heads=fit)
    print(run)
    assert run == machine.run(n_cells=arguments.cells, at=arguments.cells // 2, steps=100)
    if arguments.plot:
        run.plot().savefig(arguments.plot, dpi=110)


if __name__ == "__main__":
    main()
