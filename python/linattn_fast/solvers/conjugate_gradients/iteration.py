"""Conjugate gradients for several right-hand sides that share their passes over the data.

Solves (Lambda + alpha I) C' = G' for each row of G (m, p) in coordinates C = E(v), those of
:mod:`linattn_fast.solvers.conjugate_gradients.whitening`: that is K v = E'(G) with
K = E' (Lambda + alpha I) E. Rows that have converged leave the passes. The coefficients of the
iteration are those of Lanczos, whose Ritz values estimate the spectrum of K. Vectors are where the
operator's results are; step sizes and residuals, one number a row, are on the host.

With products in float32 (:class:`.narrow.Products`) residuals are replaced by right - K v in
float64 each time that they have become a thousand times smaller, and before a row is done. The
direction goes on, so that nothing is lost of what the iteration has learnt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigvalsh_tridiagonal

from ...arrays.device import module_of, to_host
from ...arrays.types import Floats
from ...backend.normal_operator import NormalOperator, NormalProduct
from ...linalg.factors import EPS
from ...system.progress import Watch
from .narrow import Products
from .whitening import Coordinates

_FLAT = 16 * EPS
"""Share of the largest curvature seen below which a curvature is rounding, and so are the products
with K that a step along it would be computed from."""
_REPLACED = 1e-3
"""Share that residuals in float32 come down to before they are replaced."""
_LOOK = 10
"""Iterations in float32 between two looks at Ritz values."""

Rows: TypeAlias = npt.NDArray[np.intp]
"""Numbers of right-hand sides, on the host."""


@dataclass
class Iterate:
    """Where the iteration stands; of use also after it was stopped from outside."""

    v: Floats
    """The iterate, (m, r, t)."""
    iterations: int = 0
    residual: float = 1.0
    """Largest relative residual of a row, in the coordinates of v."""
    norms: Floats = field(default_factory=lambda: np.zeros(0))
    """(m,): of the residuals, in the coordinates of v."""
    converged: bool = False
    singular: bool = False
    """Whether a direction was met in which K is zero to rounding, with a residual along it."""
    steps: list[float] = field(default_factory=list)
    """Step sizes of the first row, for Ritz values."""
    ratios: list[float] = field(default_factory=list)

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
    products: Products | None = None,
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
    products
        How to multiply; None is in float64.
    """
    state = Iterate(np.zeros(0)) if iterate is None else iterate
    multiply = Products(operator) if products is None else products
    run = _Run(operator, coordinates, alpha, right, multiply, state)
    goal = np.broadcast_to(tolerance, run.start.shape)
    active = np.flatnonzero(run.start > 0)
    state.residual = 1.0 if len(active) else 0.0
    while len(active) and state.iterations < limit:
        seen, anew = run.advance(active, goal[active])
        if anew:
            limit += state.iterations
        state.iterations += 1
        relative = run.relative(active)
        state.residual = float(relative.max())
        slowest = int((relative / goal[active]).argmax())
        if watch is not None:
            watch(state.iterations, float(relative[slowest]), float(goal[active][slowest]))
        state.singular |= not seen.all()
        active = active[(relative > goal[active]) & seen]
        if enough is not None and enough(state) and (not run.settle(active) or enough(state)):
            break
    state.converged = len(active) == 0 and not state.singular
    return state


class _Run:
    """The vectors of an iteration, and one step of it."""

    def __init__(
        self,
        operator: NormalOperator,
        coordinates: Coordinates,
        alpha: float,
        right: Floats,
        multiply: Products,
        state: Iterate,
    ) -> None:
        self.operator, self.coordinates, self.alpha = operator, coordinates, alpha
        self.right, self.multiply, self.state = right, multiply, state
        self.xp = module_of(right)
        state.v = self.xp.zeros_like(right)
        self.rest, self.direction = right.copy(), right.copy()
        self.squares = row_squares(right)  # (m,)
        self.start = self.squares.copy()
        state.norms = np.sqrt(self.squares)
        # squared, of the directions, to which residuals are orthogonal
        self.lengths = self.squares.copy()
        # curvature of a direction of length one, so far
        self.largest = np.zeros(len(self.start))
        self.narrow = multiply.narrow
        self.replaced = self.squares.copy()
        """Squares of residuals when they were last those of v."""
        self.stale = False
        """Whether there were products in float32 since."""

    def relative(self, active: Rows) -> Floats:
        """Residuals relative to the first ones."""
        found: Floats = np.sqrt(self.squares[active] / self.start[active])
        return found

    def advance(self, active: Rows, goal: Floats) -> tuple[npt.NDArray[np.bool_], bool]:
        """One step of active rows: in which of them K is not zero, and whether it began anew."""
        state, rows = self.state, self.xp.asarray(active)
        curvature, forward = self._product(active)
        of_one = curvature / self.lengths[active]
        self.largest[active] = np.maximum(self.largest[active], of_one)
        # A direction that is invisible to the data has nothing to gain, and a step without bound
        seen = (of_one > _FLAT * self.largest[active]) & (curvature > 0)
        step = np.divide(self.squares[active], curvature, out=np.zeros(len(active)), where=seen)
        size = self.xp.asarray(step[:, None, None])
        state.v[rows] += size * self.direction[rows]
        self.rest[rows] -= size * forward
        new = row_squares(self.rest[rows])
        if self.stale and self._replacement_is_due(active, new, goal):
            new = self._replace(active)
        ratio = new / self.squares[active]
        anew = self.narrow and not self.multiply.narrow  # a solve of its own, from here
        if anew:
            self.narrow, ratio = False, np.zeros(len(active))
            state.steps, state.ratios = [], []
        factor = self.xp.asarray(ratio[:, None, None])
        self.direction[rows] = self.rest[rows] + factor * self.direction[rows]
        self.squares[active] = new
        self.lengths[active] = new + ratio**2 * self.lengths[active]
        if active[0] == 0 and step[0] > 0 and not anew:
            state.steps.append(float(step[0]))
            state.ratios.append(float(ratio[0]))
        state.norms = np.sqrt(self.squares)
        return seen, anew

    def _product(self, active: Rows) -> tuple[Floats, Floats]:
        """v' K v, (m,), and K v, (m, r, t), of the directions."""
        multiply, lengths = self.multiply, self.lengths[active]
        C = self._coefficients(self.direction, active)
        found = multiply(C)
        if multiply.narrow and multiply.off is None:
            found, rough = multiply.exact(C), found
            D = self.coordinates.transpose(rough.product - found.product)
            multiply.off = float(np.sqrt(row_squares(D / self._weight) / lengths).max())
        curvature = found.energy / self._weight + self.alpha * row_squares(C)
        if not multiply.shows(float((curvature / lengths).min())):
            multiply.narrow = False
            found = multiply(C)
            curvature = found.energy / self._weight + self.alpha * row_squares(C)
        self.stale |= multiply.narrow
        return curvature, self._forward(C, found)

    @property
    def _weight(self) -> float:
        return self.operator.total_weight

    def _coefficients(self, v: Floats, active: Rows) -> Floats:
        rows = self.xp.asarray(active)
        C: Floats = self.xp.ascontiguousarray(self.coordinates.coefficients(v[rows]))
        return C

    def _forward(self, C: Floats, found: NormalProduct) -> Floats:
        return self.coordinates.transpose(found.product / self._weight + self.alpha * C)

    def _replacement_is_due(self, active: Rows, new: Floats, goal: Floats) -> bool:
        """Whether rows seem done, are much smaller than they were, or float32 is to be left."""
        multiply = self.multiply
        if self.state.iterations % _LOOK == _LOOK - 1 and multiply.narrow:
            multiply.narrow = multiply.shows(float(min(self.state.ritz_values(), default=np.inf)))
        done = new <= goal**2 * self.start[active]
        smaller = new < _REPLACED**2 * self.replaced[active]
        return not multiply.narrow or bool((done | smaller).any())

    def _replace(self, active: Rows) -> Floats:
        """Take the residuals of v, make directions orthogonal to them; return their squares."""
        rows = self.xp.asarray(active)
        C = self._coefficients(self.state.v, active)
        true = self.right[rows] - self._forward(C, self.multiply.exact(C))
        if (row_squares(true - self.rest[rows]) > row_squares(self.rest[rows])).any():
            self.multiply.narrow = False  # nothing that they say is known any more
        self.rest[rows] = true
        squares = row_squares(true)
        along = _row_products(self.direction[rows], true)
        share = np.divide(along, squares, out=np.zeros(len(active)), where=squares > 0)
        self.direction[rows] -= self.xp.asarray(share[:, None, None]) * true
        self.replaced[active] = squares
        self.stale = False
        return squares

    def settle(self, active: Rows) -> bool:
        """Between two steps, make the residuals those of v; return whether they were not."""
        if not self.stale or not len(active):
            return False
        rows = self.xp.asarray(active)
        self.squares[active] = self._replace(active)
        # The directions held the residuals that were, which orthogonality has taken out
        self.direction[rows] += self.rest[rows]
        self.state.norms = np.sqrt(self.squares)
        self.state.residual = float(self.relative(active).max())
        return True


def _row_products(a: Floats, b: Floats) -> Floats:
    """Inner product of each row of a with that of b, (m,); on the host."""
    flat = a.reshape(len(a), -1)
    return to_host(module_of(flat).einsum("ai,ai->a", flat, b.reshape(len(b), -1)))


def row_squares(rows: Floats) -> Floats:
    """Sum of squares of each row, (m,); on the host, wherever the rows are."""
    flat = rows.reshape(len(rows), -1)
    return to_host(module_of(flat).einsum("ai,ai->a", flat, flat))
