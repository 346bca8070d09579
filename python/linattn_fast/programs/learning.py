"""Learning a program from its traces: least squares on the features that ever occur.

A trace is a run; each of its prefixes with the token that follows is one sample. No part of the
program is used but its traces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from ..arrays.types import Floats
from ..features.features import Features
from ..fitting.call import fit
from ..fitting.plan import Solver
from ..fitting.result import Fit
from ..solvers.conjugate_gradients.pcg import Pcg
from ..system.machine import same_bits
from .language.program import Program
from .language.run import Run


def training_pairs(traces: Sequence[Run]) -> tuple[list[Floats], Floats]:
    """Prefixes, views of the traces, and the tokens (N, d) that follow them."""
    pairs = [pair for trace in traces for pair in trace.pairs()]
    return [Z for Z, _ in pairs], np.array([y for _, y in pairs])


@same_bits
def learn(
    program: Program,
    traces: Sequence[Run],
    *,
    heads: Literal["minimal", "svd"] | None = None,
    solver: Solver | Pcg = "blocks",
    memory_limit: int | None = None,
    progress: bool | Callable[[int, Any], object] = False,
) -> Fit:
    """Learn a layer from traces of a program: :func:`linattn_fast.fit` on active features.

    Parameters
    ----------
    program
        The program that the traces are of; only for checking them.
    traces
        Runs, from :meth:`Program.trace` or :meth:`Program.traces`.
    heads
        Whether to recover heads as well. Running needs none: it takes the coefficients.
    solver, memory_limit, progress
        As for :func:`linattn_fast.fit`. Tokens are one-hot, so most queries never occur together,
        and "blocks" solves for each group of them by itself.

    Returns
    -------
    Fit
        Its ``certificate`` says input by input what the traces determine; :func:`certify` decides
        whether that is every run of the program.

    Examples
    --------
    >>> from linattn_fast import programs
    >>> simulator = programs.DfaSimulator(n_states=2, n_symbols=2, length=3)
    >>> fit = programs.learn(simulator, simulator.traces(200, steps=3, seed=0))
    >>> parity = programs.Automaton([[0, 1], [1, 0]])
    >>> run = simulator.run(fit, simulator.context(parity, [1, 0, 1]), steps=3)
    >>> simulator.states(run)
    [0, 1, 1, 0]
    """
    if not isinstance(program, Program):
        raise TypeError(f"program: a Program is needed, got {type(program).__name__}")
    if not isinstance(traces, Sequence):
        raise TypeError(f"traces: a list of Runs is needed, got {type(traces).__name__}")
    for trace in traces:
        if not isinstance(trace, Run):
            raise TypeError(f"traces: Runs are needed, got {type(trace).__name__}")
        if trace.tokens.shape[1] != program.d:
            raise ValueError(
                f"traces: tokens with d = {program.d} are needed, got {trace.tokens.shape[1]}"
            )
    Z, y = training_pairs(traces)
    if not Z:
        raise ValueError("traces: at least one step is needed, got none")
    return fit(
        Z,
        y,
        features=Features.active(Z),
        heads=heads,
        solver=solver,
        memory_limit=memory_limit,
        progress=progress,
    )
