"""Conjugate gradients for several right-hand sides that share their passes over the data.

Solves (Lambda + alpha I) C' = G' for each row of G (m, p) in coordinates C = E(v), those of
:mod:`linattn_fast.solvers.conjugate_gradients.whitening`: that is K v = E'(G) with
K = E' (Lambda + alpha I) E. Rows that have converged leave the passes. The coefficients of the
iteration are those of Lanczos, whose Ritz values estimate the spectrum of K. Vectors are where the
operator's results are; step sizes and residuals, one number a row, are on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy.linalg import eigvalsh_tridiagonal

from ...arrays.device import module_of, to_host
from ...arrays.types import Floats
from ...backend.normal_operator import NormalOperator
from ...linalg.factors import EPS
from ...system.progress import Watch
from .whitening import Coordinates

_FLAT = 16 * EPS
"""Share of the largest curvature seen below which a curvature is rounding, and so are the products
with K that a step along it would be computed from."""


@dataclass
class Iterate:
    """The state of an iteration, which remains when it was stopped from outside."""

    v: Floats
    """The solution so far, (m, r, t)."""
    iterations: int = 0
    residual: float = 1.0
    """Largest relative residual of a row, in the coordinates of v."""
    norms: Floats = field(default_factory=lambda: np.zeros(0))
    """(m,): norms of the residuals, in the coordinates of v."""
    converged: bool = False
    singular: bool = False
    """Whether a direction was met in which K is zero to rounding, with a residual along it."""
    steps: list[float] = field(default_factory=list)
    """Step sizes of the first row, for Ritz values."""
    ratios: list[float] = field(default_factory=list)
    """Ratios of its squared residuals from one step to the next."""

    def ritz_values(self) -> Floats:
        """Estimates of eigenvalues of K, ascending, from the first row; empty without a step."""
        steps, ratios = np.array(self.steps), np.array(self.ratios)
        if len(steps) == 0:
            return steps
        diagonal = 1 / steps
        diagonal[1:] += ratios[: len(steps) - 1] / steps[:-1]
        beside = np.sqrt(ratios[: len(steps) - 1]) / steps[:-1]
        return np.asarray(eigvalsh_tridiagonal(diagonal, beside))


def conjugate_gradients(
    operator: NormalOperator,
    coordinates: Coordinates,
    alpha: float,
    right: Floats,
    *,
    tolerance: float | Floats,
    limit: int,
    watch: Watch | None = None,
    enough: Callable[[Iterate], bool] | None = None,
    iterate: Iterate | None = None,
) -> Iterate:
    """Solve K v = right (m, r, t) from v = 0.

    Parameters
    ----------
    tolerance
        Relative residual at which a row is done; one for all, or one each, (m,).
    limit
        Most iterations.
    enough
        Asked after each iteration whether the caller has seen what it wanted.
    iterate
        Where to keep the state, for callers that want it after an exception.
    """
    xp = module_of(right)
    state = Iterate(np.zeros(0)) if iterate is None else iterate
    state.v = xp.zeros_like(right)
    weight = operator.total_weight
    rest, direction = right.copy(), right.copy()
    squares = row_squares(rest)  # (m,)
    start = squares.copy()
    state.norms = np.sqrt(squares)
    lengths = squares.copy()  # squared, of the directions, to which residuals are orthogonal
    largest = np.zeros(len(start))  # curvature of a direction of length one, so far
    goal = np.broadcast_to(tolerance, start.shape)
    active = np.flatnonzero(start > 0)
    state.residual = 1.0 if len(active) else 0.0
    while len(active) and state.iterations < limit:
        rows = xp.asarray(active)
        C = xp.ascontiguousarray(coordinates.coefficients(direction[rows]))
        product, energy = operator.normal(C)
        curvature = energy / weight + alpha * row_squares(C)  # v' K v
        forward = coordinates.transpose(product / weight + alpha * C)
        of_one = curvature / lengths[active]
        largest[active] = np.maximum(largest[active], of_one)
        # Along a direction that the data does not see nothing is gained, and no step is bounded
        seen = (of_one > _FLAT * largest[active]) & (curvature > 0)
        step = np.divide(squares[active], curvature, out=np.zeros(len(active)), where=seen)
        size = xp.asarray(step[:, None, None])
        state.v[rows] += size * direction[rows]
        rest[rows] -= size * forward
        new = row_squares(rest[rows])
        ratio = new / squares[active]
        direction[rows] = rest[rows] + xp.asarray(ratio[:, None, None]) * direction[rows]
        squares[active] = new
        lengths[active] = new + ratio**2 * lengths[active]
        if active[0] == 0 and step[0] > 0:
            state.steps.append(float(step[0]))
            state.ratios.append(float(ratio[0]))
        state.iterations += 1
        state.norms = np.sqrt(squares)
        relative = np.sqrt(squares[active] / start[active])
        state.residual = float(relative.max())
        slowest = int((relative / goal[active]).argmax())
        if watch is not None:
            watch(state.iterations, float(relative[slowest]), float(goal[active][slowest]))
        state.singular |= not seen.all()
        active = active[(relative > goal[active]) & seen]
        if enough is not None and enough(state):
            break
    state.converged = len(active) == 0 and not state.singular
    return state


def row_squares(rows: Floats) -> Floats:
    """Sum of squares of each row, (m,); on the host, wherever the rows are."""
    flat = rows.reshape(len(rows), -1)
    return to_host(module_of(flat).einsum("ai,ai->a", flat, flat))
