"""A fit by conjugate gradients, wherever the data is: from a task to a solved problem."""

from __future__ import annotations

import numpy as np

from ...arrays.types import Floats
from ...data.non_finite import largest_size, may_underflow, underflow_error
from ...features.accumulation import sizes_are_apart, summand_sizes
from ...features.samples import Samples
from ...linalg.factors import NotSafe
from ...problem.interface import Problem
from ...system.progress import IterationBar
from ..accuracy import squares_underflow
from ..costs import Kept, bytes_of
from ..solved import Solved, Task
from .pcg import PcgSolution, solve_pcg

_SOME = 256
"""Sequences that are looked at to see how far features cancel."""
_SMALLEST_TOKEN = float(np.finfo(np.float64).tiny) ** (1 / 6)
"""Size of tokens below which squares of the cubic features underflow."""


def solve(task: Task) -> Solved:
    """Solve without a p x p matrix, to the accuracy asked for."""
    found = _attempt(task)
    return found[0]


def solve_if_accurate(task: Task) -> Solved | NotSafe:
    """Solve likewise; not safe if the accuracy is unknown and least norm was not seen."""
    solved, found = _attempt(task)
    if found.error is None and not found.least_norm:
        return NotSafe(f"{_how(solved)}; conjugate gradients took {found.reason}")
    return solved


def _how(solved: Solved) -> str:
    return "" if solved.passes is None else solved.passes.how


def _attempt(task: Task) -> tuple[Solved, PcgSolution]:
    problem, samples = task.problem, task.problem.samples
    task.moments = None  # the memory of a Gram that came before is wanted now
    kept = Kept.of(problem, task.memory_limit, sparing=task.sparing)
    passes = problem.passes(keep=kept.packed > 0)
    narrow = passes.kept and kept.narrow > 0
    _require_visible(problem)
    larger = None if samples is None else _larger_summands(samples)
    with task.stages.timed("solve"), IterationBar("conjugate gradients", task.progress) as watch:
        found = solve_pcg(passes.operator, task.alpha, watch, task.tol, larger, narrow)
    reason, error = f"{passes.how}; {found.reason}", found.error
    if samples is not None and _may_lose_digits(samples):
        reason += "; squares of targets, or products of tokens, underflow: nothing is known"
        error = None
    n = passes.operator.n_samples
    solved = Solved(
        "pcg",
        problem,
        found.solution,
        reason,
        condition=found.condition,
        mean_squared_target=found.mean_squared_target,
        n_samples=n,
        coefficient_error=error,
        iterations=found.iterations,
        bytes=bytes_of(problem, n)["pcg"]
        + (kept.packed if passes.kept else 0)
        + (kept.narrow if found.narrow_passes else 0),
        passes=passes,
        kronecker=found.factors,
    )
    return solved, found


def _may_lose_digits(samples: Samples) -> bool:
    """Whether squares of targets or products of tokens may underflow, where errors are unknown."""
    lost = samples.targets is not None and squares_underflow(samples.targets)
    return lost or bool(may_underflow(samples.tokens).any())


def _larger_summands(samples: Samples) -> Floats | None:
    """Mean squares of the summands over those of the features, (p,), from some sequences.

    None with all features, whose summands the Kronecker factors bound, as those of states.
    """
    apart = sizes_are_apart(samples)
    if (samples.features.everything and not apart) or samples.device is not None:
        return None
    count = min(samples.n_sequences, _SOME)
    some = samples.chosen(np.linspace(0, samples.n_sequences - 1, count).astype(np.intp))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        summands = summand_sizes(some)
        s, z = some.rows()
        squares = (s**2).T @ (z**2 * some.weight_of_each()[:, None])
        ratio = np.where(squares > 0, summands / squares, 1.0)
    return np.maximum(ratio, 1.0).reshape(-1)


def _require_visible(problem: Problem) -> None:
    """Raise where no square of a feature is above zero, although there are tokens that are not."""
    features = problem.features
    if problem.read is None or not (features.everything and features.sums_cancel):
        return
    with problem.read() as parts:
        tokens = next(parts).tokens
    if 0 < largest_size(tokens) * float(np.sqrt(tokens.longest)) < _SMALLEST_TOKEN:
        raise underflow_error(tokens)
