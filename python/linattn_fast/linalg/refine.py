"""Iterative refinement: correct a solution with residuals recomputed from the data.

A factorised Gram solves to about eps times the squared condition number of the features. Residuals
taken from the data do not have that error, so correcting with them, by the same factorisation,
brings the solution to what a backward-stable least-squares method would give.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..arrays.device import module_of
from ..arrays.types import Floats
from .factors import EPS

_MOST_STEPS = 4
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
    while size > 0 and len(steps) < _MOST_STEPS:
        change = correction(solution)
        step = norm(change) / size
        if not step <= (steps[-1] / 2 if steps else _FIRST_STEP):
            break
        solution = solution + change
        steps.append(step)
        if step < np.sqrt(EPS):
            break
    return solution, tuple(steps)
