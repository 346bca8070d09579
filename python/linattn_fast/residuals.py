"""Refinement on the data, wherever that is: in memory, read again from a stream, or on a cluster.

With r = y - C h the residual of a sample, one pass over the data is a sum over its parts:

    gradient  sum w r h'        squared error  sum w r^2
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .backend import get_backend
from .chosen_layer import outputs_of
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
    """Correct C by (Lambda + alpha I)^-1 times the gradient recomputed on the data."""
    xp = module_of(coefficients)

    def correction(C: Floats) -> Floats:
        mean = gradient(xp.ascontiguousarray(C)).gradient.T / total_weight
        return choice.factorisation.solve(mean - alpha * C.T).T

    refined, steps = refine(coefficients, correction)
    errors = gradient(xp.ascontiguousarray(refined)).squared_error
    return Solution(refined, steps, float(errors.sum()) / total_weight)


def gradient_of(problem: Data, C: Floats) -> Gradient:
    """One pass over the data, part by part."""
    with problem.parts() as parts:
        total = _gradient_of_part(next(parts), C)
        for part in parts:
            total = added(total, _gradient_of_part(part, C))
    return total


def _gradient_of_part(part: Problem, C: Floats) -> Gradient:
    engine = get_backend(part.backend, part.tokens)
    if engine.name == "cuda":  # in one pass, without outputs of its own
        operator = engine.normal_operator(
            part.tokens, part.targets, part.weights, part.positions, part.features, keep=False
        )
        return operator.gradient(C)
    outputs = outputs_of(C, part.features, part.tokens, part.positions, engine)
    rest = np.asarray(part.targets.rows() - outputs)  # y - C h, (samples, d_out)
    sums = engine.moments(
        part.tokens,
        part.targets.with_rows(rest),
        part.weights,
        part.positions,
        features=part.features,
        with_gram=False,
    )
    gradient = sums.cross.transpose(0, 2, 1).reshape(len(C), -1)  # (a, l, u) -> (a, u l)
    return Gradient(gradient, sums.energy)
