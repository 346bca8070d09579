"""Refinement on the data, wherever that is: in memory, read again from a stream, or on a cluster.

With r = y - C h the residual of a sample, one pass over the data is a sum over its parts:

    gradient  sum w r h'        squared error  sum w r^2
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..arrays.device import module_of
from ..arrays.types import Floats
from ..backend.normal_operator import Gradient
from ..linalg.factors import EPS, Choice
from ..linalg.refine import Solution, norm

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
