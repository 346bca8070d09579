"""Levenberg-Marquardt on the reduced objective, with Kaufman's normal matrix.

Each step solves (H + mu D) dTheta = gradient, D = diag(H) + 1e-3 mean diag(H), so that a head
on which the outputs hardly depend still moves by a bounded step. The norm of Theta is not bounded:
heads that attend to a single token have a large one.
"""

from __future__ import annotations

import numpy as np

from ...arrays.types import Floats
from ...linalg.host_algebra import cholesky, cholesky_solve
from .descent import Descent
from .normal_matrix import normal_matrix
from .objective import Objective, Point

_NO_STEP_WORTH = 1e-14
"""Relative training error that is not worth another step."""
_MOST_TRIES = 12
"""Number of dampings that are tried for a step."""
_STALL_STEPS, _STALL_SHARE = 15, 0.97
"""A descent ends where so many steps leave this share of the squared error or more."""
_CONVERGED = 1e-9
"""Relative decrease of the squared error in a hardly damped step that ends the descent."""
_HARDLY_DAMPED = 1e-3
"""Damping mu below which a step is nearly one of Gauss and Newton."""


def levenberg_marquardt(objective: Objective, Theta: Floats, *, iterations: int = 120) -> Descent:
    """Go down from Theta (m, d, d) until the fit is exact, no step helps or steps hardly help."""
    point, mu = objective.at(Theta), 1e-2
    history = [point.loss]
    for iteration in range(iterations):
        if point.error <= _NO_STEP_WORTH:
            return Descent(point, iteration)
        step = _step(point, mu)
        if step is None:
            return Descent(point, iteration)
        better, mu = step
        decrease, quiet = 1 - better.loss / point.loss, mu < _HARDLY_DAMPED
        point = better
        history.append(point.loss)
        converged = decrease < _CONVERGED and quiet
        stalled = (
            len(history) > _STALL_STEPS and history[-1] > _STALL_SHARE * history[-1 - _STALL_STEPS]
        )
        if converged or stalled:
            return Descent(point, iteration + 1)
    return Descent(point, iterations)


def _step(point: Point, mu: float) -> tuple[Point, float] | None:
    """A better point and the damping for the next step; None where none is found."""
    if point.values is None:
        return None
    normal = normal_matrix(point)
    diagonal = np.diag(normal.H).copy()
    if not diagonal.max() > 0:
        return None
    damping = np.maximum(diagonal, 0) + 1e-3 * diagonal.mean()
    energy = point.objective.energy
    for _ in range(_MOST_TRIES):
        damped = normal.H.copy()
        damped.flat[:: len(damped) + 1] += mu * damping
        step = _solution(damped, normal.gradient)
        predicted = 0.0 if step is None else float(step @ normal.gradient) / energy
        if step is None or not predicted > 0:
            mu *= 4
            continue
        trial = point.objective.at(point.Theta + step.reshape(point.Theta.shape))
        if trial.loss < point.loss:
            ratio = (point.loss - trial.loss) / max(predicted, 1e-300)
            return trial, mu * (0.2 if ratio > 0.5 else 1.0 if ratio > 0.1 else 3.0)
        mu *= 4
    return None


def _solution(matrix: Floats, right: Floats) -> Floats | None:
    """Solve for one right-hand side (n,), overwriting the matrix; None where it is not definite."""
    factor, failed = cholesky(matrix)
    return None if failed else cholesky_solve(factor, right[:, None])[:, 0]
