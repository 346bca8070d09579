"""What every method of descent takes and returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ...arrays.types import Floats
from .objective import Objective, Point


@dataclass(frozen=True, eq=False)
class Descent:
    """Where a descent ended."""

    point: Point
    """The best point on the way."""
    iterations: int
    """Number of steps of Levenberg-Marquardt, or of evaluations of L-BFGS."""


class Method(Protocol):
    """A way to go down from Theta (m, d, d): Levenberg-Marquardt or L-BFGS."""

    def __call__(self, objective: Objective, Theta: Floats, *, iterations: int = ...) -> Descent:
        """Go down, in so many iterations at most."""
        ...
