"""L-BFGS on the reduced objective, for layers whose normal matrix would be too large.

It goes down on the same function of Theta as Levenberg-Marquardt, with its exact gradient: W is
solved for at every point, so only Theta is searched. An evaluation costs a few products of the size
of the data, and no matrix with a row for each unknown exists.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np
from scipy.optimize import minimize

from ...arrays.types import Floats
from .descent import Descent
from .objective import Objective, Point

LARGE_THETA = 2000
"""Number of entries of Theta above which L-BFGS is taken."""
_NO_STEP_WORTH = 1e-11
"""Relative training error that is not worth another step."""
_REMEMBERED = 30
"""Number of steps from which the curvature is estimated."""
_STALL_EVALUATIONS, _STALL_SHARE = 200, 0.97
"""A descent ends where so many evaluations leave this share of the squared error or more."""
_CONVERGED = 1e-10
"""Decrease of log f in a step, relative to its size, that ends the descent."""
_TOO_FAR = 1e10
"""Value of log f where the logits overflow, above every other, so that the line search turns."""


class _Done(Exception):  # noqa: N818  # not an error
    """Signal that ends the minimisation."""


class _Evaluations:
    """The objective as the minimiser calls it, which keeps the best point."""

    def __init__(self, objective: Objective, shape: tuple[int, ...]) -> None:
        self.objective, self.shape = objective, shape
        self.best: Point | None = None
        self.history: list[float] = []

    def __call__(self, flat: Floats) -> tuple[float, Floats]:
        point = self.objective.at(flat.reshape(self.shape))
        if point.values is None:
            return _TOO_FAR, np.zeros_like(flat)
        if self.best is None or point.loss < self.best.loss:
            self.best = point
        self.history.append(self.best.loss)
        if self.best.error <= _NO_STEP_WORTH or self._stalled():
            raise _Done
        # Steps on the logarithm have one size all the way down to an exact fit
        return float(np.log(point.loss)), point.gradient().reshape(-1) / point.loss

    def _stalled(self) -> bool:
        past = self.history
        return (
            len(past) > _STALL_EVALUATIONS
            and past[-1] > _STALL_SHARE * past[-1 - _STALL_EVALUATIONS]
        )


def quasi_newton(objective: Objective, Theta: Floats, *, iterations: int = 4000) -> Descent:
    """Go down from Theta (m, d, d), as :func:`.levenberg_marquardt` does."""
    evaluations = _Evaluations(objective, Theta.shape)
    with suppress(_Done):
        minimize(
            evaluations,
            Theta.reshape(-1),
            jac=True,
            method="L-BFGS-B",
            options={
                "maxcor": _REMEMBERED,
                "maxfun": iterations,
                "maxiter": iterations,
                "ftol": _CONVERGED,
                "gtol": 0.0,
            },
        )
    best = evaluations.best if evaluations.best is not None else objective.at(Theta)
    return Descent(best, len(evaluations.history))
