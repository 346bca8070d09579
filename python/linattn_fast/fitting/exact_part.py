"""Data that a layer fits exactly is learned from a part of it.

No loss is below zero. Where a few sequences determine a layer (a safe Cholesky factorisation of
their second moment) and that layer fits *all* sequences to rounding, it is a best fit of all of
them, found without the Gram of the others; and because more data never determines less, the only
one. Noise shows in the residuals of the first sequences that are looked at, and the data is then
fitted as if nothing had been tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from ..arrays.types import Floats
from ..backend.choice import get_backend
from ..data.tokens import total_weight
from ..heads.chosen_layer import outputs_of
from ..linalg.factors import EPS, Choice
from ..linalg.refine import Solution
from ..moments.factors import try_cholesky_of_moments
from ..problem.in_memory import Problem
from ..solvers.costs import predict
from ..solvers.memory import estimate_memory
from ..solvers.residuals import gradient_of, refine_on_data
from ..system.machine import as_memory_limit, usable_memory
from ..system.progress import Stages
from .assembling import assemble
from .result import Fit
from .settings import Settings

_SAMPLES_PER_FEATURE = 4
"""Of the part: enough for a well-conditioned second moment of features that vary freely."""
_LEAST_SAMPLES = 1024
_LEAST_RATIO = 8
"""How many times as many samples all of the data must have: less is not worth the look."""
_WORTH = 0.5
"""Largest share that the part may take of the predicted time."""
_ROWS = 1 << 16
"""Tokens whose outputs are looked at together."""
_ROUNDING = 16 * EPS
"""Residuals of this size, relative to the targets, are those of an exact fit."""


def fit_exact_part(problem: Problem, settings: Settings) -> Fit | None:
    """Fit a part of the data; None unless it is worth trying and fits all of the data exactly."""
    sequences = _part(problem, settings)
    if sequences is None:
        return None
    stages = Stages()
    part = _some(problem, 0, sequences)
    with stages.timed("moments"):
        moments = part.moments(False)
    with stages.timed("solve"):
        choice = try_cholesky_of_moments(moments)
        if not isinstance(choice, Choice):
            return None
        weight = moments.required_weight()
        C = choice.factorisation.solve(moments.cross() / weight).T
    with stages.timed("refine"):
        solution = refine_on_data(C, choice, 0.0, weight, partial(gradient_of, part))
        errors = _error_of_exact_fit(problem, solution)
    if errors is None:
        return None
    error, energy = errors
    return assemble(
        replace(solution, mean_squared_error=float(error.sum())),
        f"{choice.reason} of the first {sequences:,} of {len(problem.tokens):,} sequences, whose "
        "layer fits all of them to rounding: no loss is below zero",
        choice.factorisation.condition,
        "cholesky",
        None,
        settings,
        stages,
        features=problem.features,
        positions=problem.positions,
        n_samples=problem.n_samples,
        mean_squared_target=float(energy.sum()),
        backend=(engine := get_backend(problem.backend, problem.tokens)).name,
        path=engine.path(problem.precision),
        moments=None,
    )


def _part(problem: Problem, settings: Settings) -> int | None:
    """How many sequences to try; None where nothing is to be gained."""
    features, positions, n = problem.features, problem.positions, problem.n_samples
    exact = settings.alpha == 0 and not settings.certify and not isinstance(settings.heads, int)
    if not exact or settings.solver not in ("auto", "pcg") or problem.backend == "cuda":
        return None
    if positions == "all":  # whose Gram costs little more than a look at the data
        return None
    wanted = max(_SAMPLES_PER_FEATURE * features.count, _LEAST_SAMPLES)
    if n < _LEAST_RATIO * wanted:
        return None
    ends = np.cumsum(problem.tokens.lengths) if positions != "last" else np.arange(1, n + 1)
    sequences = int(np.searchsorted(ends, wanted)) + 1
    if problem.weights is not None and not (problem.weights[:sequences] > 0).all():
        return None
    memory = estimate_memory(
        features.d, problem.d_out, positions=positions, n_samples=n, features=features
    )["cholesky"]
    limit = as_memory_limit(settings.memory_limit)
    if memory > (usable_memory() if limit is None else limit):
        return None
    part, whole = (
        predict(features, problem.d_out, positions, samples, samples, proof=False)
        for samples in (int(ends[sequences - 1]), n)
    )
    usual = whole.pcg if settings.solver == "pcg" else whole.cholesky
    return sequences if part.cholesky <= _WORTH * usual else None


def _error_of_exact_fit(problem: Problem, solution: Solution) -> tuple[Floats, Floats] | None:
    """Mean w (y - C h)^2 and mean w y^2 of each output, (d_out,); None if more than rounding.

    A part of the sequences at a time, so that outputs take no memory to speak of and noise is
    noticed in the first of them.
    """
    engine = get_backend(problem.backend, problem.tokens)
    weight = total_weight(problem.tokens, problem.weights, problem.positions)
    parts = list(_cut(problem, max(1, _ROWS * len(problem.tokens) // problem.tokens.n_rows)))
    energy = sum((_squares(part, part.targets.rows()) for part in parts), np.zeros(problem.d_out))
    error = np.zeros(problem.d_out)
    for part in parts:
        C = solution.coefficients
        found = outputs_of(C, part.features, part.tokens, part.positions, engine)
        error += _squares(part, part.targets.rows() - found)
        if not (error <= _ROUNDING**2 * energy).all():  # of each output; false where not finite
            return None
    return error / weight, energy / weight


def _cut(problem: Problem, sequences: int) -> Iterator[Problem]:
    for first in range(0, len(problem.tokens), sequences):
        yield _some(problem, first, min(first + sequences, len(problem.tokens)))


def _some(problem: Problem, first: int, last: int) -> Problem:
    """Sequences first, .., last - 1 of the problem."""
    weights = None if problem.weights is None else problem.weights[first:last]
    tokens, targets = problem.tokens.part(first, last), problem.targets.part(first, last)
    return replace(problem, tokens=tokens, targets=targets, weights=weights)


def _squares(part: Problem, rows: Floats) -> Floats:
    """Sum w row^2, (d_out,); every query of a sequence has its weight."""
    w = np.ones(len(part.tokens)) if part.weights is None else part.weights
    if part.positions != "last":
        w = np.repeat(w, part.tokens.lengths)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(w @ rows.astype(np.float64, copy=False) ** 2)
