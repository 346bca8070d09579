"""Conjugate gradients for several right-hand sides that share their passes over the data.

Solves (Lambda + alpha I) C' = G' for each row of G (m, p) in coordinates C = E(v), those of
:mod:`linattn_fast.solvers.conjugate_gradients.whitening`: that is K v = E'(G) with
K = E' (Lambda + alpha I) E. Rows that have converged leave the passes. The coefficients of a row
are those of Lanczos (:mod:`.lanczos`). One more row, a random one, may take part to bound the least
eigenvalue of K (:mod:`.least_eigenvalue`). Vectors are where the operator's results are; step sizes
and residuals, one number a row, are on the host.

With products in float32 (:class:`.narrow.Products`) residuals are replaced by right - K v in
float64 each time that they have become a thousand times smaller, and before a row is done. The
direction goes on, so that nothing is lost of what the iteration has learnt. A random row is left as
it is: what it says is about K + D.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ...arrays.device import module_of, to_host
from ...arrays.types import Floats
from ...backend.normal_operator import NormalOperator, NormalProduct
from ...linalg.factors import EPS
from ...system.progress import Watch
from .lanczos import Lanczos
from .least_eigenvalue import Probe
from .narrow import Products
from .whitening import Coordinates

_FLAT = 16 * EPS
"""Share of the largest curvature seen below which a curvature is rounding, and so are the products
with K that a step along it would be computed from."""
_REPLACED = 1e-3
"""Share that residuals in float32 come down to before they are replaced."""
_LOOK, _LOOK_SHARE = 5, 20
"""Iterations between two looks at Ritz values: this many, or this part of all if that is more."""
_TINY = float(np.finfo(np.float64).tiny)

Rows: TypeAlias = npt.NDArray[np.intp]
"""Numbers of right-hand sides, on the host."""


@dataclass
class Iterate:
    """Where the iteration stands; of use also after it was stopped from outside."""

    v: Floats
    """The iterate, (m, r, t)."""
    rest: Floats = field(default_factory=lambda: np.zeros(0))
    """Its residual right - K v, (m, r, t), as the iteration has it."""
    iterations: int = 0
    residual: float = 1.0
    """Largest relative residual of a row, in the coordinates of v."""
    norms: Floats = field(default_factory=lambda: np.zeros(0))
    """(m,): of the residuals, in the coordinates of v."""
    converged: bool = False
    singular: bool = False
    """Whether a direction was met in which K is zero to rounding, with a residual along it."""
    lanczos: list[Lanczos] = field(default_factory=list)
    """Coefficients of each row."""

    def ritz_values(self) -> Floats:
        """Estimates of eigenvalues of K, ascending, from the first row; empty without a step."""
        return self.lanczos[0].ritz_values() if self.lanczos else np.zeros(0)


def conjugate_gradients(
    operator: NormalOperator,
    coordinates: Coordinates,
    alpha: float,
    right: Floats,
    *,
    tolerance: float | Callable[[], Floats],
    limit: int,
    watch: Watch | None = None,
    enough: Callable[[Iterate], bool] | None = None,
    iterate: Iterate | None = None,
    products: Products | None = None,
    probe: Probe | None = None,
) -> Iterate:
    """Solve K v = right (m, r, t) from v = 0.

    Parameters
    ----------
    tolerance
        Relative residual at which a row is done; or a function that says it of each, (m,), asked
        after each iteration: rows wait beside others, and go on if it has become smaller.
    limit
        Most iterations.
    enough
        Asked after each iteration whether the caller has seen what it wanted.
    iterate
        Where to keep the state, for callers that want it after an exception.
    products
        How to multiply; None is in float64.
    probe
        A random row that takes part until it is done, if need be after all others.
    """
    state = Iterate(np.zeros(0)) if iterate is None else iterate
    multiply = Products(operator) if products is None else products
    run = _Run(operator, coordinates, alpha, right, multiply, state, probe)
    goal = _goals(tolerance, len(right))
    left = run.start[: len(right)] > 0
    active = np.flatnonzero(left)
    state.residual = 1.0 if len(active) else 0.0
    told = (1.0, 1.0)
    while (len(active) or run.probing) and state.iterations < limit:
        seen, anew = run.advance(active, goal[active])
        if anew:
            limit += state.iterations
        state.iterations += 1
        goal = _goals(tolerance, len(right))
        if len(active):
            relative = run.relative(active)
            state.residual = float(relative.max())
            slowest = int((relative / goal[active]).argmax())
            told = float(relative[slowest]), float(goal[active][slowest])
        if watch is not None:
            watch(state.iterations, *told)
        state.singular |= not seen.all()
        left[active] = seen
        active = np.flatnonzero(left)
        active = active[run.relative(active) > goal[active]]
        if enough is not None and enough(state) and (not run.settle(active) or enough(state)):
            break
    state.converged = len(active) == 0 and not state.singular
    return state


def _goals(tolerance: float | Callable[[], Floats], rows: int) -> Floats:
    return tolerance() if callable(tolerance) else np.full(rows, tolerance)


class _Run:
    """The vectors of an iteration, and one step of it. A random row comes after the others."""

    def __init__(
        self,
        operator: NormalOperator,
        coordinates: Coordinates,
        alpha: float,
        right: Floats,
        multiply: Products,
        state: Iterate,
        probe: Probe | None,
    ) -> None:
        self.operator, self.coordinates, self.alpha = operator, coordinates, alpha
        self.right, self.multiply, self.state, self.probe = right, multiply, state, probe
        self.xp = module_of(right)
        rows = right if probe is None else self.xp.concatenate([right, probe.b])
        state.v = self.xp.zeros_like(right)
        self.rest, self.direction = rows.copy(), rows.copy()
        state.rest = self.rest[: len(right)]
        self.squares = row_squares(rows)  # (m,) or (m + 1,), like all that follow
        self.start = self.squares.copy()
        state.norms = np.sqrt(self.squares[: len(right)])
        state.lanczos = [Lanczos() for _ in self.start]
        # squared, of the directions, to which residuals are orthogonal
        self.lengths = self.squares.copy()
        # curvature of a direction of length one, so far
        self.largest = np.zeros(len(self.start))
        self.narrow = multiply.narrow
        self.replaced = self.squares.copy()
        """Squares of residuals when they were last those of v."""
        self.stale = False
        """Whether there were products in float32 since."""

    @property
    def probing(self) -> bool:
        """Whether a random row takes part."""
        return self.probe is not None and not self.probe.done

    def relative(self, rows: Rows) -> Floats:
        """Residuals relative to the first ones."""
        found: Floats = np.sqrt(self.squares[rows] / self.start[rows])
        return found

    def advance(self, active: Rows, goal: Floats) -> tuple[npt.NDArray[np.bool_], bool]:
        """One step of active rows: in which of them K is not zero, and whether it began anew."""
        state, m = self.state, len(active)
        taken = np.append(active, len(self.right)) if self.probing else active
        rows = self.xp.asarray(taken)
        curvature, forward = self._product(taken)
        of_one = curvature / self.lengths[taken]
        self.largest[taken] = np.maximum(self.largest[taken], of_one)
        # A direction that is invisible to the data has nothing to gain, and a step without bound
        seen = (of_one > _FLAT * self.largest[taken]) & (curvature > 0)
        step = np.divide(self.squares[taken], curvature, out=np.zeros(len(taken)), where=seen)
        size = self.xp.asarray(step[:, None, None])
        state.v[rows[:m]] += size[:m] * self.direction[rows[:m]]
        self.rest[rows] -= size * forward
        new = row_squares(self.rest[rows])
        self._look_at_float32()
        if self.stale and m and self._replacement_is_due(active, new[:m], goal):
            new[:m] = self._replace(active)
        ratio = new / self.squares[taken]
        anew = self.narrow and not self.multiply.narrow  # a solve of its own, from here
        if anew:
            self.narrow, ratio = False, np.zeros(len(taken))
            state.lanczos[:] = [Lanczos() for _ in state.lanczos]
        factor = self.xp.asarray(ratio[:, None, None])
        self.direction[rows] = self.rest[rows] + factor * self.direction[rows]
        self.squares[taken] = new
        self.lengths[taken] = new + ratio**2 * self.lengths[taken]
        for row, a, b in zip(taken, step, ratio, strict=True):
            if a > 0 and not anew:
                state.lanczos[row].add(float(a), float(b))
        state.norms = np.sqrt(self.squares[: len(self.right)])
        if self.probe is not None:
            self._look_at_random_row(self.probe, bool(seen[m:].all()), anew)
        return seen[:m], anew

    def _look_at_random_row(self, probe: Probe, seen: bool, anew: bool) -> None:
        """See what the random row says; begin with it anew if that was said of other products."""
        row = len(self.right)
        if anew:
            self.rest[row:], self.direction[row:] = probe.b, probe.b
            self.squares[row] = self.lengths[row] = self.start[row]
            self.largest[row] = 0.0
            probe.begin_anew()
        elif not seen:
            probe.lower, probe.singular, probe.done = 0.0, True, True
        elif not probe.done and _is_time_to_look(self.state.iterations + 1):
            residual = float(self.relative(np.array([row]))[0])
            probe.look(self.state.lanczos[row], residual, self.multiply)

    def _look_at_float32(self) -> None:
        """Leave float32 where Ritz values are not clear of its error."""
        if self.multiply.narrow and _is_time_to_look(self.state.iterations + 1):
            ends = (self.state.lanczos[0], self.state.lanczos[-1])
            least = min((min(row.ritz_values(), default=np.inf) for row in ends), default=np.inf)
            self.multiply.narrow = self.multiply.shows(float(least))

    def _product(self, taken: Rows) -> tuple[Floats, Floats]:
        """v' K v, (m,), and K v, (m, r, t), of the directions."""
        multiply, lengths = self.multiply, self.lengths[taken]
        C = self._coefficients(self.direction, taken)
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
        done = new <= goal**2 * self.start[active]
        smaller = new < _REPLACED**2 * self.replaced[active]
        return not self.multiply.narrow or bool((done | smaller).any())

    def _replace(self, active: Rows) -> Floats:
        """Take the residuals of v, make directions orthogonal to them; return their squares."""
        rows = self.xp.asarray(active)
        C = self._coefficients(self.state.v, active)
        true = self.right[rows] - self._forward(C, self.multiply.exact(C))
        change = np.sqrt(row_squares(true - self.rest[rows]))
        share = change / np.maximum(np.sqrt(row_squares(self.rest[rows])), _TINY)
        for row, part in zip(active, share, strict=True):
            self.state.lanczos[row].replaced += float(part)
        if (share > 1).any():
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
        self.state.norms = np.sqrt(self.squares[: len(self.right)])
        self.state.residual = float(self.relative(active).max())
        return True


def _is_time_to_look(iterations: int) -> bool:
    return iterations % max(_LOOK, iterations // _LOOK_SHARE) == 0


def _row_products(a: Floats, b: Floats) -> Floats:
    """Inner product of each row of a with that of b, (m,); on the host."""
    flat = a.reshape(len(a), -1)
    return to_host(module_of(flat).einsum("ai,ai->a", flat, b.reshape(len(b), -1)))


def row_squares(rows: Floats) -> Floats:
    """Sum of squares of each row, (m,); on the host, wherever the rows are."""
    flat = rows.reshape(len(rows), -1)
    return to_host(module_of(flat).einsum("ai,ai->a", flat, flat))
