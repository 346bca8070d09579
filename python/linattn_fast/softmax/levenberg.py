"""Levenberg-Marquardt on the reduced objective, with the normal matrix of Kaufman.

Each step solves (H + mu D) dTheta = gradient, D = diag(H) + 1e-3 mean diag(H): a head that the
outputs hardly depend on still moves by a bounded step. The norm of Theta is not bounded: heads that
attend to one token alone have a large one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..arrays.types import Floats
from ..linalg.host_algebra import cholesky, cholesky_solve
from .normal_matrix import normal_matrix
from .reduced import Objective, Point

_EXACT = 1e-14
"""A relative training error that is not worth another step."""
_TRIES = 12
"""Of damping, for a step."""
_STALL, _STALLED = 15, 0.97
"""A descent ends where so many steps leave so much of the squared error."""
_CONVERGED = 1e-9
"""Relative decrease of the squared error in a hardly damped step that ends the descent."""


@dataclass(frozen=True)
class Descent:
    """Where a descent ended."""

    point: Point
    iterations: int
    """Steps, or of L-BFGS evaluations."""


def levenberg_marquardt(objective: Objective, Theta: Floats, *, iterations: int = 120) -> Descent:
    """Go down from Theta until the fit is exact, no step helps or steps hardly help."""
    point, mu = objective.at(Theta), 1e-2
    history = [point.loss]
    for iteration in range(iterations):
        if point.error <= _EXACT:
            return Descent(point, iteration)
        step = _step(point, mu)
        if step is None:
            return Descent(point, iteration)
        better, mu = step
        decrease, quiet = 1 - better.loss / point.loss, mu < 1e-3
        point = better
        history.append(point.loss)
        converged = decrease < _CONVERGED and quiet
        stalled = len(history) > _STALL and history[-1] > _STALLED * history[-1 - _STALL]
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
    for _ in range(_TRIES):
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
