"""Refinement on the data, whether in memory or read again from a stream.

With r = y - C h the residual of a sample, each pass over the data is a sum over its parts:

    gradient  sum w r h'        squared error  sum w ||r||^2
"""

from __future__ import annotations

import numpy as np

from .backend import get_backend
from .moments import Moments
from .problem import Problem
from .refine import Solution, refine
from .solve import Choice
from .streamed_problem import Data, sum_over_parts
from .tokens import Floats


def refine_on_data(
    coefficients: Floats, choice: Choice, alpha: float, moments: Moments, problem: Data
) -> Solution:
    """Correct C by (Lambda + alpha I)^-1 times the gradient recomputed on the data."""
    total = moments.required_weight()

    def correction(C: Floats) -> Floats:
        cross = sum_over_parts(problem, lambda part: _gradient(C, part))
        mean = cross.transpose(2, 1, 0).reshape(-1, len(C)) / total  # (a, l, u) -> (u, l, a)
        return choice.factorisation.solve(mean - alpha * C.T).T

    refined, steps = refine(coefficients, correction)
    errors = sum_over_parts(problem, lambda part: _squared_error(refined, part))
    return Solution(refined, steps, float(errors) / total)


def _residual(C: Floats, part: Problem) -> Floats:
    """y - C h, (samples, d_out)."""
    full = np.ascontiguousarray(part.features.expand(C))
    outputs = get_backend(part.backend).coefficients(full, part.tokens, part.positions)
    return np.asarray(part.targets.rows() - outputs)


def _gradient(C: Floats, part: Problem) -> Floats:
    """Sum of w (y - C h) h', (d_out, n_queries, n_pairs)."""
    left = part.targets.with_rows(_residual(C, part))
    engine = get_backend(part.backend)
    return engine.moments(
        part.tokens,
        left,
        part.weights,
        part.positions,
        features=part.features,
        with_gram=False,
    ).cross


def _squared_error(C: Floats, part: Problem) -> Floats:
    """Sum of w ||y - C h||^2."""
    errors = (_residual(C, part) ** 2).sum(axis=1)
    if part.weights is not None:
        lengths = 1 if part.positions == "last" else part.tokens.lengths
        errors *= np.repeat(part.weights, lengths)
    return np.asarray(errors.sum())
