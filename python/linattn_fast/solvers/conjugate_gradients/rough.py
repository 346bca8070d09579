"""A rough solution of the convex problem in few passes: where a search for heads starts from."""

from __future__ import annotations

import numpy as np

from ...arrays.types import Floats
from ...system.machine import usable_memory
from ...system.progress import IterationBar
from ..accuracy import Solution
from ..costs import bytes_of, kept_samples_bytes
from ..solved import Solved, Task
from .restarts import RestartedSolve
from .whitening import Whitening, whiten

_FLOPS = 2e11
"""Flops of all iterations."""
_FEW = 3
"""Iterations below which none are made."""
_MOST = 40
"""Iterations, however few flops they take."""


def solve_roughly(task: Task) -> Solved:
    """A few conjugate-gradient iterations from zero."""
    problem = task.problem
    kept = 0
    if problem.n_columns is not None:
        kept = kept_samples_bytes(
            problem.features, problem.d_out, problem.positions, problem.n_columns
        )
    room = usable_memory() // 2 if task.memory_limit is None else task.memory_limit
    needed = bytes_of(problem).get("pcg", 0)
    # Samples written out serve the search for heads better
    passes = problem.passes(keep=needed + 4 * kept <= room)
    operator = passes.operator
    n = operator.n_samples
    with task.stages.timed("solve"), IterationBar("conjugate gradients", task.progress) as watch:
        solve = RestartedSolve(operator, task.alpha, watch, None)
        flops = 4.0 * n * operator.features.count * operator.d_out
        solve.limit = int(min(_FLOPS / flops, _MOST))
        try:
            with np.errstate(all="ignore"):  # what is not finite is refused later
                whitening = whiten(
                    solve.factors, operator.total_weight, task.alpha, operator.features
                )
                C, squared_error, iterations = _start(solve, whitening)
        except BaseException as stop:
            # an attribute of ours on whatever exception stopped it, which no class declares
            stop.iterate = solve.so_far()  # type: ignore[attr-defined]
            raise
    reason = f"{passes.how}; a start from {iterations} iterations for the coefficients"
    return Solved(
        "pcg",
        problem,
        Solution(C, (), float(squared_error.sum())),
        reason,
        condition=whitening.condition,
        mean_squared_target=float(solve.zero.squared_error.sum()),
        n_samples=n,
        coefficient_error=None,
        iterations=iterations,
        bytes=bytes_of(problem, n)["pcg"] + (kept if passes.kept else 0),
        passes=passes,
        kronecker=solve.factors,
        whitening=whitening,
    )


def _start(solve: RestartedSolve, whitening: Whitening) -> tuple[Floats, Floats, int]:
    """Coefficients (d_out, p), the squared errors before or after them, and the iterations made.

    Where even a few iterations would take long, as with many outputs, the gradient at zero has to
    do: with the Kronecker product in the place of the second moment.
    """
    if solve.limit < _FEW:
        v = whitening.transpose(solve.zero.gradient)
        return whitening.coefficients(v), solve.zero.squared_error, 0
    point, state = solve.first(whitening, np.zeros(len(solve.zero.C)))
    return point.C, point.squared_error, state.iterations
