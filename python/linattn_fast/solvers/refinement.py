"""Iterative refinement: correct a solution with residuals recomputed from the data.

A factorised Gram solves to about eps times the squared condition number of the features. Residuals
taken from the data do not have that error, so correcting with them, by the same factorisation,
brings the solution to what a backward-stable least-squares method would give. With r = y - C h the
residual of a sample, one pass over the data, wherever that is, is a sum over its parts:

    gradient  sum w r h'        squared error  sum w r^2
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..arrays.device import module_of
from ..arrays.types import Floats
from ..backend.normal_operator import Gradient
from ..linalg.factors import EPS, Choice

_MOST_CORRECTIONS = 4
_FIRST_STEP = 0.5


@dataclass(frozen=True)
class Solution:
    """Coefficients (d_out, p), the corrections they took, and their error on the training data."""

    coefficients: Floats
    refinements: tuple[float, ...]
    mean_squared_error: float
    error_bound: float = 0.0
    """What that may be off by, where it is from moments; 0 where it is from the data."""


def norm(x: Floats) -> float:
    """Frobenius norm without overflow."""
    xp = module_of(x)
    largest = float(xp.abs(x).max()) if x.size else 0.0
    return largest * float(xp.linalg.norm(x / largest)) if largest > 0 else 0.0


def refine(
    solution: Floats, correction: Callable[[Floats], Floats]
) -> tuple[Floats, tuple[float, ...]]:
    """Add ``correction(solution)`` while that helps; return the relative size of each step as well.

    A step leaves about its own square (the factorisation solves to the relative accuracy that the
    step shows), so one below sqrt(eps) is the last. One that is not less than half of the one
    before shows that there is nothing to gain, and is not taken; nor is a first one larger than
    half of the solution.
    """
    steps: list[float] = []
    size = norm(solution)
    while size > 0 and len(steps) < _MOST_CORRECTIONS:
        change = correction(solution)
        step = norm(change) / size
        if not step <= (steps[-1] / 2 if steps else _FIRST_STEP):
            break
        solution = solution + change
        steps.append(step)
        if step < np.sqrt(EPS):
            break
    return solution, tuple(steps)


# ------------------------------------------------------------------------------------ on the data

_MOST_STEPS = 8
_TRUSTED = 1e-3
"""Largest rounding level times condition number of a factorisation whose steps need no check."""
_ROUNDING = 1e-12
"""Rounding of an objective, relative to it."""


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

    which is the error of the answer without another pass over the data, unless it cancels. Where
    the factorisation is too ill-conditioned to be trusted with that, the objective is measured
    after every step, and a step that did not lower it is taken back.
    """
    xp = module_of(coefficients)
    factor = choice.factorisation
    trusted, p = factor.condition * factor.level < _TRUSTED, coefficients.shape[1]
    C, steps, decisive = coefficients, list[float](), list[float]()
    last: tuple[Floats, float, float] | None = None  # C before the last step, its errors
    while True:
        sums = gradient(xp.ascontiguousarray(C))
        error = float(sums.squared_error.sum()) / total_weight
        size = norm(C)
        objective = error + alpha * size * size  # a power would raise where it overflows
        if last is not None and objective > last[2] * (1 + _ROUNDING):
            C, error = last[0], last[1]  # worse than before
            steps.pop()
            break
        g = sums.gradient / total_weight
        change: Floats = factor.solve(g.T - alpha * C.T).T
        own, step = _steps(change, C, factor.scale)
        if len(steps) == _MOST_STEPS or not step <= (decisive[-1] / 2 if decisive else 0.5):
            break
        gain = float((change * g).sum()) + alpha * float((change * (C + change)).sum())
        last, C = (C, error, objective), C + change
        steps.append(own)
        decisive.append(step)
        if step < np.sqrt(EPS) and trusted:
            error = error - gain
            # Where nothing was left out of the factorisation, the identity above errs by this
            doubt = factor.condition * factor.level * abs(gain) if factor.rank == p else np.inf
            if not (error > last[1] / 2 and doubt <= 32 * EPS * error):
                sums = gradient(xp.ascontiguousarray(C))
                error = float(sums.squared_error.sum()) / total_weight
            break
    return Solution(C, tuple(steps), error)


def _steps(change: Floats, C: Floats, scale: Floats) -> tuple[float, float]:
    """Relative size of a change in the caller's units, and in those of A if that is larger."""
    if 0.0 in (size := (norm(C), norm(C / scale))):
        return np.inf, np.inf
    own, equilibrated = norm(change) / size[0], norm(change / scale) / size[1]
    return own, max(own, equilibrated) if np.isfinite(own + equilibrated) else np.inf
