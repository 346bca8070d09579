"""L-BFGS on the reduced objective, for layers whose normal matrix would be too large.

The same function of Theta as Levenberg-Marquardt goes down on, with its exact gradient: W is solved
for at every point, so steps see the best values and only Theta is searched. An evaluation costs a
few products of the size of the data, and no matrix with a row for each unknown exists.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np
from scipy.optimize import minimize

from ..arrays.types import Floats
from .levenberg import Descent
from .reduced import Objective, Point

UNKNOWNS = 2000
"""Entries of Theta above which L-BFGS is taken."""
_EXACT = 1e-11
"""A relative training error that is not worth another step."""
_MEMORY = 30
"""Steps that the curvature is estimated from."""
_STALL, _STALLED = 200, 0.97
"""A descent ends where so many evaluations leave so much of the squared error."""
_FTOL = 1e-10
"""Decrease of log f in a step, relative to its size, that ends the iteration."""


class _Done(Exception):  # noqa: N818  # not an error
    """Ends the minimisation where it is."""


class _Evaluations:
    """The objective as the minimiser calls it; keeps the best point."""

    def __init__(self, objective: Objective, shape: tuple[int, ...]) -> None:
        self.objective, self.shape = objective, shape
        self.best: Point | None = None
        self.history: list[float] = []

    def __call__(self, flat: Floats) -> tuple[float, Floats]:
        point = self.objective.at(flat.reshape(self.shape))
        if point.values is None:  # too far: the line search comes back
            return 1e10, np.zeros_like(flat)
        if self.best is None or point.loss < self.best.loss:
            self.best = point
        self.history.append(self.best.loss)
        if self.best.error <= _EXACT or self._stalled():
            raise _Done
        # The logarithm has steps of one size all the way down to an exact fit
        return float(np.log(point.loss)), point.gradient().reshape(-1) / point.loss

    def _stalled(self) -> bool:
        past = self.history
        return len(past) > _STALL and past[-1] > _STALLED * past[-1 - _STALL]


def quasi_newton(objective: Objective, Theta: Floats, *, iterations: int = 4000) -> Descent:
    """Go down from Theta until the fit is exact, no step helps or steps hardly help."""
    evaluations = _Evaluations(objective, Theta.shape)
    with suppress(_Done):
        minimize(
            evaluations,
            Theta.reshape(-1),
            jac=True,
            method="L-BFGS-B",
            options={
                "maxcor": _MEMORY,
                "maxfun": iterations,
                "maxiter": iterations,
                "ftol": _FTOL,
                "gtol": 0.0,
            },
        )
    best = evaluations.best if evaluations.best is not None else objective.at(Theta)
    return Descent(best, len(evaluations.history))
