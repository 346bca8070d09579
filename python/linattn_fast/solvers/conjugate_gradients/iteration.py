"""Conjugate gradients for several right-hand sides that share their passes over the data.

Solves (Lambda + alpha I) C' = G' for each row of G (m, p) in coordinates C = E(v)
(:mod:`linattn_fast.solvers.conjugate_gradients.whitening`), that is K v = E'(G) with K = E' (Lambda + alpha I) E. Rows that
have converged leave the passes. The coefficients of the iteration are those of Lanczos, whose Ritz
values estimate the spectrum of K. Vectors are where the operator's results are; step sizes and
residuals, one number a row, are on the host.

With products in float32 (:class:`~linattn_fast.solvers.conjugate_gradients.narrow.Products`) residuals are replaced by
right - K v in float64 each time that they have become a thousand times smaller, and before a row is
done. The direction goes on, so that nothing is lost of what the iteration has learnt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigvalsh_tridiagonal

from ...arrays.device import module_of, to_host
from ...arrays.types import Array, Floats
from ...backend.normal_operator import NormalOperator, NormalProduct
from ...linalg.factors import EPS
from .narrow import Products
from .whitening import Coordinates

_FLAT = 16 * EPS
"""A curvature below this share of the largest one seen is rounding: so are the products with K
that a step along it would be taken from."""
_REPLACED = 1e-3
"""Residuals in float32 are replaced when they have come down to this share."""
_LOOK = 10
"""Iterations in float32 between two looks at Ritz values."""

Watch: TypeAlias = Callable[[int, float, float], object]
"""Called after each iteration with its number in this solve, the relative residual and the
tolerance; may raise to stop."""


@dataclass
class Iterate:
    """Where the iteration stands; of use also after it was stopped from outside."""

    v: Floats
    """(m, r, t)."""
    iterations: int = 0
    residual: float = 1.0
    """Largest relative residual of a row, in the coordinates of v."""
    norms: Floats = field(default_factory=lambda: np.zeros(0))
    """(m,): of the residuals, in the coordinates of v."""
    converged: bool = False
    singular: bool = False
    """Whether a direction was met in which K is zero to rounding, with a residual along it."""
    steps: list[float] = field(default_factory=list)
    """Of the first row, for Ritz values."""
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
    xp = module_of(right)
    multiply = Products(operator) if products is None else products
    state = Iterate(np.zeros(0)) if iterate is None else iterate
    state.v = xp.zeros_like(right)
    rest, direction = right.copy(), right.copy()
    squares = row_squares(rest)  # (m,)
    start = squares.copy()
    state.norms = np.sqrt(squares)
    lengths = squares.copy()  # squared, of the directions, to which residuals are orthogonal
    largest = np.zeros(len(start))  # curvature of a direction of length one, so far
    goal = np.broadcast_to(tolerance, start.shape)
    active = np.flatnonzero(start > 0)
    state.residual = 1.0 if len(active) else 0.0
    replaced = squares.copy()  # when residuals were last those of v
    stale = False  # whether there were products in float32 since
    narrow = multiply.narrow

    def replace(rows: Array, active: npt.NDArray[np.intp]) -> None:
        """Take the residuals of v, and make directions orthogonal to them again."""
        C = xp.ascontiguousarray(coordinates.coefficients(state.v[rows]))
        true = right[rows] - _forward(C, multiply.exact(C), operator, coordinates, alpha)
        if (row_squares(true - rest[rows]) > row_squares(rest[rows])).any():
            multiply.narrow = False  # nothing that they say is known any more
        rest[rows] = true
        squared = row_squares(true)
        along = _row_products(direction[rows], true)
        share = np.divide(along, squared, out=np.zeros(len(active)), where=squared > 0)
        direction[rows] -= xp.asarray(share[:, None, None]) * true
        replaced[active] = squared

    while len(active) and state.iterations < limit:
        rows = xp.asarray(active)
        C = xp.ascontiguousarray(coordinates.coefficients(direction[rows]))
        found = multiply(C)
        if multiply.narrow and multiply.off is None:
            found, rough = multiply.exact(C), found
            D = coordinates.transpose(rough.product - found.product) / operator.total_weight
            multiply.off = float(np.sqrt(row_squares(D) / lengths[active]).max())
        curvature = _curvature(C, found, operator, alpha)
        of_one = curvature / lengths[active]
        if not multiply.shows(float(of_one.min())):
            multiply.narrow = False
            found = multiply(C)
            curvature = _curvature(C, found, operator, alpha)
            of_one = curvature / lengths[active]
        stale |= multiply.narrow
        forward = _forward(C, found, operator, coordinates, alpha)
        largest[active] = np.maximum(largest[active], of_one)
        # A direction that is invisible to the data has nothing to gain, and a step without bound
        seen = (of_one > _FLAT * largest[active]) & (curvature > 0)
        step = np.divide(squares[active], curvature, out=np.zeros(len(active)), where=seen)
        size = xp.asarray(step[:, None, None])
        state.v[rows] += size * direction[rows]
        rest[rows] -= size * forward
        new = row_squares(rest[rows])
        done = new <= goal[active] ** 2 * start[active]
        if state.iterations % _LOOK == _LOOK - 1 and multiply.narrow:
            multiply.narrow = multiply.shows(float(min(state.ritz_values(), default=np.inf)))
        smaller = new < _REPLACED**2 * replaced[active]
        if stale and (not multiply.narrow or (done | smaller).any()):
            replace(rows, active)
            stale, new = False, row_squares(rest[rows])
        ratio = new / squares[active]
        anew = narrow and not multiply.narrow  # a solve of its own, from here
        if anew:
            narrow, limit = False, limit + state.iterations
            state.steps, state.ratios, ratio = [], [], np.zeros(len(active))
        direction[rows] = rest[rows] + xp.asarray(ratio[:, None, None]) * direction[rows]
        squares[active] = new
        lengths[active] = new + ratio**2 * lengths[active]
        if active[0] == 0 and step[0] > 0 and not anew:
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
            if not stale or not len(active):
                break
            rows = xp.asarray(active)
            replace(rows, active)
            stale = False
            # It held the residual that was, which orthogonality has taken out
            direction[rows] = direction[rows] + rest[rows]
            squares[active] = row_squares(rest[rows])
            state.norms = np.sqrt(squares)
            state.residual = float(np.sqrt(squares[active] / start[active]).max())
            if enough(state):
                break
    state.converged = len(active) == 0 and not state.singular
    return state


def _curvature(C: Floats, found: NormalProduct, operator: NormalOperator, alpha: float) -> Floats:
    """v' K v of each row, (m,), with C = E(v)."""
    return found.energy / operator.total_weight + alpha * row_squares(C)


def _forward(
    C: Floats,
    found: NormalProduct,
    operator: NormalOperator,
    coordinates: Coordinates,
    alpha: float,
) -> Floats:
    """K v, (m, r, t), with C = E(v)."""
    return coordinates.transpose(found.product / operator.total_weight + alpha * C)


def _row_products(a: Floats, b: Floats) -> Floats:
    """Inner product of each row of a with that of b, (m,); on the host."""
    flat = a.reshape(len(a), -1)
    return to_host(module_of(flat).einsum("ai,ai->a", flat, b.reshape(len(b), -1)))


def row_squares(rows: Floats) -> Floats:
    """Sum of squares of each row, (m,); on the host, wherever the rows are."""
    flat = rows.reshape(len(rows), -1)
    return to_host(module_of(flat).einsum("ai,ai->a", flat, flat))
