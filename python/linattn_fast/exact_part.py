"""Data that a layer fits exactly is learned from a part of it.

No loss is below zero. Where a few sequences determine a layer (a safe Cholesky factorisation of
their second moment) and that layer fits *all* sequences to rounding, it is a best fit of all of
them, found without the Gram of the others; and because more data never determines less, the only
one. Data with noise shows in the residuals of the first look at it, one pass that costs a few
hundredths of a Gram, and is then fitted as if nothing had been tried.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from .assembling import assemble
from .backend import get_backend
from .block_factors import try_cholesky_of_moments
from .choosing import predict
from .machine import usable_memory
from .memory import as_memory_limit, estimate_memory
from .problem import Problem, Settings, Stages
from .refine import Solution
from .residuals import gradient_of, refine_on_data
from .result import Fit
from .solve import EPS, Choice
from .tokens import Floats

_SAMPLES_PER_FEATURE = 4
"""Of the part: enough for a well-conditioned second moment of features that vary freely."""
_LEAST_SAMPLES = 1024
_LEAST_RATIO = 8
"""How many times as many samples all of the data must have: less is not worth the look."""
_WORTH = 0.5
"""Largest share that the part may take of the predicted time."""
_ROUNDING = 16 * EPS
"""Residuals of this size, relative to the targets, are those of an exact fit."""


def fit_exact_part(problem: Problem, settings: Settings) -> Fit | None:
    """Fit a part of the data; None unless it is worth trying and fits all of the data exactly."""
    sequences = _part(problem, settings)
    if sequences is None:
        return None
    stages = Stages()
    part = replace(
        problem,
        tokens=problem.tokens.part(0, sequences),
        targets=problem.targets.part(0, sequences),
        weights=None if problem.weights is None else problem.weights[:sequences],
    )
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
        error, energy = _mean_squares(problem, solution)
    if not (error <= _ROUNDING**2 * energy).all():  # of each output; false where not finite
        return None
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


def _mean_squares(problem: Problem, solution: Solution) -> tuple[Floats, Floats]:
    """Mean w (y - C h)^2 and mean w y^2 over all samples, of each output: (d_out,)."""
    engine = get_backend(problem.backend, problem.tokens)
    full = np.ascontiguousarray(problem.features.expand(solution.coefficients))
    y = problem.targets.rows().astype(np.float64, copy=False)
    w = np.ones(len(problem.tokens)) if problem.weights is None else problem.weights
    if problem.positions != "last":
        w = np.repeat(w, problem.tokens.lengths)
    with np.errstate(over="ignore", invalid="ignore"):
        rest = y - np.asarray(engine.coefficients(full, problem.tokens, problem.positions))
        return w @ rest**2 / w.sum(), w @ y**2 / w.sum()
