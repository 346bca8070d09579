"""Refinement on the data, wherever that is: in memory, read again from a stream, or on a cluster.

With r = y - C h the residual of a sample, one pass over the data is a sum over its parts:

    gradient  sum w r h'        squared error  sum w r^2
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .backend import get_backend
from .device import module_of
from .normal_operator import Gradient, added
from .problem import Problem
from .refine import Solution, refine
from .solve import Choice
from .streamed_problem import Data
from .tokens import Floats


def refine_on_data(
    coefficients: Floats,
    choice: Choice,
    alpha: float,
    total_weight: float,
    gradient: Callable[[Floats], Gradient],
) -> Solution:
    """Correct C by (Lambda + alpha I)^-1 times the gradient recomputed on the data.

    A step D leaves, with g = mean w r h' and E = mean w r^2 of the C before,

        E - 2 <D, g> + <D, D Lambda> = E - <D, g> - alpha <D, C + D>

    which is the error of the answer without another pass over the data, unless it cancels.
    """
    xp = module_of(coefficients)
    errors: list[tuple[float, float]] = []  # before and after each correction

    def correction(C: Floats) -> Floats:
        sums = gradient(xp.ascontiguousarray(C))
        g = sums.gradient / total_weight
        before = float(sums.squared_error.sum()) / total_weight
        step: Floats = choice.factorisation.solve(g.T - alpha * C.T).T
        gain = float((step * g).sum()) + alpha * float((step * (C + step)).sum())
        errors.append((before, before - gain))
        return step

    refined, steps = refine(coefficients, correction)
    before, after = errors[-1] if errors else (np.nan, np.nan)
    if len(steps) < len(errors):  # the last correction was not taken
        error = before
    elif after > before / 2:
        error = after
    else:
        error = float(gradient(xp.ascontiguousarray(refined)).squared_error.sum()) / total_weight
    return Solution(refined, steps, error)


def gradient_of(problem: Data, C: Floats) -> Gradient:
    """One pass over the data, part by part."""
    with problem.parts() as parts:
        total = _gradient_of_part(next(parts), C)
        for part in parts:
            total = added(total, _gradient_of_part(part, C))
    return total


def _gradient_of_part(part: Problem, C: Floats) -> Gradient:
    engine = get_backend(part.backend, part.tokens)
    operator = engine.normal_operator(
        part.tokens, part.targets, part.weights, part.positions, part.features, keep=False
    )
    return operator.gradient(C)
