"""Data that a layer fits exactly can be learned from a part of it.

No loss is below zero. Where a few sequences determine a layer (a safe Cholesky factorisation of
their second moment) and that layer fits *all* sequences to rounding, it is a best fit of all of
them, found without the Gram of the others; and because more data never determines less, the only
one. Noise shows in the residuals of the first sequences that are looked at, and the data is then
fitted as if nothing had been tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ..arrays.types import Floats
from ..backend.chosen_layer import outputs_of
from ..features.samples import Samples
from ..linalg.factors import EPS, NotSafe
from ..moments.factors import try_cholesky_of_moments
from ..problem.in_memory import InMemory
from .accuracy import Solution, refine_on_data
from .costs import bytes_of, predict
from .solved import Solved, Task

_SAMPLES_PER_FEATURE = 4
"""Samples of the part for each feature: enough for a well-conditioned second moment."""
_LEAST_SAMPLES = 1024
"""Samples of the part, at least."""
_LEAST_RATIO = 8
"""How many times as many samples as the part all of the data must have to make it worthwhile."""
_WORTH = 0.5
"""Largest share that the part may take of the predicted time."""
_ROWS = 1 << 16
"""Tokens whose outputs are looked at together."""
_ROUNDING = 16 * EPS
"""Residuals of this size, relative to the targets, are those of an exact fit."""


def solve(task: Task, sequences: int) -> Solved | NotSafe:
    """Solve the first so many sequences; not safe unless that fits all of the data exactly."""
    problem = task.problem
    assert isinstance(problem, InMemory)
    part = InMemory(problem.samples.part(0, sequences), problem.engine, problem.precision)
    with task.stages.timed("moments"):
        moments = part.moments()
    with task.stages.timed("solve"):
        choice = try_cholesky_of_moments(moments)
        if isinstance(choice, NotSafe):
            return NotSafe("")
        weight = moments.required_weight()
        C = choice.factorisation.solve(moments.cross() / weight).T
    with task.stages.timed("refine"):
        solution = refine_on_data(C, choice, 0.0, weight, part.gradient)
        errors = _error_of_exact_fit(problem, solution)
    if errors is None:
        return NotSafe("")
    error, energy = errors
    return Solved(
        "cholesky",
        problem,
        replace(solution, mean_squared_error=float(error.sum())),
        f"{choice.reason} of the first {sequences:,} of {problem.samples.n_sequences:,} "
        "sequences, whose layer fits all of them to rounding: no loss is below zero",
        condition=choice.factorisation.condition,
        mean_squared_target=float(energy.sum()),
        n_samples=problem.n_samples,
        coefficient_error=None,
    )


def worth_trying(problem: InMemory, memory: int, *, instead_of: str) -> int | None:
    """Number of sequences to try before a solver; None where nothing is to be gained."""
    features, samples, n = problem.features, problem.samples, problem.n_samples
    if problem.engine.on_device:
        return None
    if samples.positions == "all":  # whose Gram costs little more than a look at the data
        return None
    wanted = max(_SAMPLES_PER_FEATURE * features.count, _LEAST_SAMPLES)
    if n < _LEAST_RATIO * wanted:
        return None
    last = samples.positions == "last"
    ends = np.arange(1, n + 1) if last else np.cumsum(samples.tokens.lengths)
    sequences = int(np.searchsorted(ends, wanted)) + 1
    if samples.weights is not None and not (samples.weights[:sequences] > 0).all():
        return None
    if bytes_of(problem)["cholesky"] > memory:
        return None
    part, whole = (
        predict(features, problem.d_out, samples.positions, count, count, proof=False)
        for count in (int(ends[sequences - 1]), n)
    )
    usual = whole.pcg if instead_of == "pcg" else whole.cholesky
    return sequences if part.cholesky <= _WORTH * usual else None


def _error_of_exact_fit(problem: InMemory, solution: Solution) -> tuple[Floats, Floats] | None:
    """Mean w (y - C h)^2 and mean w y^2 of each output, (d_out,); None if more than rounding.

    Some sequences are looked at at a time, so that outputs take little memory and noise is noticed
    in the first of them.
    """
    samples, C = problem.samples, solution.coefficients
    step = max(1, _ROWS * samples.n_sequences // samples.tokens.n_rows)
    parts = list(_cut(samples, step))
    zero = np.zeros(problem.d_out)
    energy = sum((_squares(part, _targets(part)) for part in parts), zero)
    error = zero
    for part in parts:
        found = outputs_of(C, part.features, part.tokens, part.positions, problem.engine)
        error = error + _squares(part, _targets(part) - found)
        if not (error <= _ROUNDING**2 * energy).all():  # of each output; false where not finite
            return None
    return error / samples.total_weight, energy / samples.total_weight


def _cut(samples: Samples, sequences: int) -> Iterator[Samples]:
    for first in range(0, samples.n_sequences, sequences):
        yield samples.part(first, min(first + sequences, samples.n_sequences))


def _targets(part: Samples) -> Floats:
    """Targets of a part, (samples, d_out)."""
    assert part.targets is not None
    return part.targets.rows()


def _squares(part: Samples, rows: Floats) -> Floats:
    """Sum w row^2, (d_out,); every query of a sequence has its weight."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(part.weight_of_each() @ rows.astype(np.float64, copy=False) ** 2)
