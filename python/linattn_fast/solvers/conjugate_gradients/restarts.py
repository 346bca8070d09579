"""Conjugate gradients, restarted from residuals that are recomputed from the data.

What the passes have rounded is found again in those residuals, so that the result is as exact as
that of an orthogonal method. A correction is taken only where it helps on the data, output by
output.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...arrays.device import module_of, to_host
from ...arrays.types import Floats
from ...backend.normal_operator import KroneckerFactors, NormalOperator
from ...linalg.factors import EPS
from ...system.progress import Watch
from .coefficient_error import KnownPart, Point, Rounding, mean_summands, norms, relative
from .iteration import Iterate, conjugate_gradients, row_squares
from .least_eigenvalue import Probe
from .narrow import Products, products_for
from .rotations import Rotations, aware_of_rotations
from .whitening import Coordinates, Whitening

_SMALLEST = float(np.finfo(np.float64).tiny / EPS)
"""A Gram whose largest entry is below this has lost digits to underflow."""
TOLERANCE = 1e-9
"""Relative residual of one solve: below sqrt(eps), so that one restart reaches rounding."""
_MOST_RESTARTS = 6
"""Corrections from recomputed residuals, at most."""
_LEAST_LIMIT, _MOST_LIMIT = 1000, 5000
"""Bounds of the largest number of iterations of one solve."""
_WINDOW = 5
"""Iterations between two looks at the coefficients, where an accuracy is asked for."""
_LEAST_TOLERANCE, _RESIDUAL_OF_ERROR = 1e-13, 1e-2
"""A solve to an accuracy may go on to this residual, or this share of the accuracy times the least
eigenvalue: looking at the coefficients is what should end it, because a restart begins anew."""
_ENOUGH = 0.8
"""Share of the accuracy asked for at which a solve ends; the rest is for rounding in the data."""


def iteration_limit(dimension: int) -> int:
    """Most iterations of one solve: conjugate gradients end after p in exact arithmetic."""
    return int(np.clip(2 * dimension, _LEAST_LIMIT, _MOST_LIMIT))


class RestartedSolve:
    """A solve by conjugate gradients and restarts, with what it has found so far."""

    def __init__(
        self,
        operator: NormalOperator,
        alpha: float,
        watch: Watch | None,
        tol: float | None,
        larger: Floats | None = None,
        narrow: bool = False,
    ) -> None:
        self.operator = operator
        self.alpha = alpha
        self.watch = watch
        self.tol = tol
        self.iterations = 0
        """Number of iterations so far, over all restarts."""
        self._narrow = narrow
        self._products: tuple[Coordinates, Products] | None = None
        self._narrow_passes = 0
        self.limit = iteration_limit(operator.features.count)
        self.factors = operator.kronecker_factors()
        _require_visible(self.factors, operator)
        self.start = np.zeros((operator.d_out, operator.features.count))
        """The coefficients that the present solve corrects."""
        self.state = Iterate(np.zeros(0))
        self.coordinates: Coordinates | None = None
        self.unit = np.ones(operator.d_out)
        """Powers of two that the residuals of the present solve were divided by."""
        self.zero = self.at(self.start)
        self.start = self.zero.C
        self.rounding = Rounding(
            mean_summands(self.factors, operator, larger), self.zero.squared_error
        )
        self.random_row: Probe | None = None
        """What bounds the least eigenvalue in the coordinates of a solve; None before."""

    @property
    def kappa(self) -> float:
        """Lower bound on the least eigenvalue in whitened coordinates; 0 while it is unknown."""
        return 0.0 if self.random_row is None else self.random_row.lower

    @property
    def has_null_directions(self) -> bool:
        """Whether a random row has met directions in which the second moment is zero."""
        return self.random_row is not None and self.random_row.singular

    def products(self, coordinates: Coordinates) -> Products:
        """Products in these coordinates; in float32 where they are allowed, and safe so far."""
        if self._products is None or self._products[0] is not coordinates:
            whole = isinstance(coordinates, Whitening) and coordinates.full
            allowed = self._narrow and (whole or isinstance(coordinates, Rotations))
            self._narrow_passes = self.narrow_passes
            self._products = (
                coordinates,
                products_for(self.operator, coordinates.condition, allowed),
            )
        return self._products[1]

    @property
    def narrow_passes(self) -> int:
        """Passes with products in float32, until now."""
        present = 0 if self._products is None else self._products[1].passes
        return self._narrow_passes + present

    def so_far(self) -> Floats:
        """The coefficients found so far."""
        if self.coordinates is None or self.state.v.size == 0:
            return self.start
        unit = module_of(self.start).asarray(self.unit)
        found: Floats = self.start + unit[:, None] * self.coordinates.coefficients(self.state.v)
        return found

    def at(self, C: Floats) -> Point:
        """Coefficients with their gradient and squared error, from the data."""
        weight = self.operator.total_weight
        gradient, squared_error = self.operator.gradient(module_of(C).ascontiguousarray(C))
        if module_of(gradient) is not module_of(C):
            C = module_of(gradient).asarray(C)
        return Point(C, gradient / weight - self.alpha * C, to_host(squared_error) / weight)

    def objective(self, point: Point) -> Floats:
        """The objective of each output: mean squared error + alpha ||C||^2."""
        return point.squared_error + self.alpha * row_squares(point.C)

    def no_worse(self, new: Point, old: Point) -> npt.NDArray[np.bool_]:
        """For each output, whether the objective did not rise by more than rounding."""
        before = 2 * self.rounding.of_objective(old)
        # What is not known about the new one counts against it
        doubt = np.maximum(self.rounding.of_objective(new) - before, 0.0)
        rise = self.objective(new) + doubt - self.objective(old)
        no_worse: npt.NDArray[np.bool_] = rise <= before + EPS * self.objective(old)
        return no_worse

    def better_of(self, new: Point, old: Point) -> Point:
        """The new point, but for outputs for which it is worse."""
        take = self.no_worse(new, old)
        if take.all():
            return new
        xp = module_of(new.C)
        rows = xp.asarray(take)[:, None]
        return Point(
            xp.where(rows, new.C, old.C),
            xp.where(rows, new.gradient, old.gradient),
            np.where(take, new.squared_error, old.squared_error),
        )

    def error(self, point: Point, coordinates: Coordinates) -> float:
        """Bound on the relative error of the output that is worst."""
        known = None
        if self.coordinates is coordinates and self.state.rest.size and self.kappa > 0:
            unit = module_of(self.state.rest).asarray(self.unit)[:, None, None]
            known = KnownPart(unit * self.state.rest, self._inverse_energies())
        found = self.rounding.error(point, coordinates, self.alpha, self.kappa, known)
        return float(found.max())

    def _inverse_energies(self) -> Floats:
        """For each output, g with r' K^-1 r <= g ||r||^2 for the residual of the present solve."""
        rows = self.state.lanczos[: len(self.unit)]
        return np.array([row.inverse_energy(self.kappa) for row in rows])

    def correction(
        self, coordinates: Coordinates, point: Point, floor: Floats, *, probing: bool = False
    ) -> Floats:
        """The correction (Lambda + alpha I)^-1 times the gradient at a point.

        ``floor``, (d_out,), are residuals in these coordinates below which there is nothing but
        rounding: no solve goes below them, and without a ridge, which would bound what a step
        makes of rounding, outputs that are there already are left alone. ``probing`` lets a random
        row take part, which bounds the least eigenvalue.
        """
        right = coordinates.transpose(point.gradient)
        xp = module_of(right)
        sizes = norms(right)
        self.start, self.coordinates, self.state = point.C, coordinates, Iterate(np.zeros(0))
        self.unit = np.exp2(np.floor(np.log2(np.where(sizes > 0, sizes, 1.0))))
        solved = (sizes > floor) | (self.alpha > 0)
        right = right * xp.asarray(solved / self.unit)[:, None, None]
        share = np.divide(floor, sizes, out=np.zeros(len(sizes)), where=sizes > 0)
        if probing:
            self.random_row = Probe.random(coordinates, right)
        conjugate_gradients(
            self.operator,
            coordinates,
            self.alpha,
            right,
            tolerance=lambda: np.clip(share, self._tolerance(), 0.5),
            limit=self.limit,
            watch=self.watch,
            enough=lambda state: self._accurate(state, coordinates),
            iterate=self.state,
            products=self.products(coordinates),
            probe=self.random_row if probing else None,
        )
        self.state.converged |= self._accurate(self.state, coordinates)
        self.iterations += self.state.iterations
        change: Floats = self.so_far() - self.start
        return change

    def first(
        self, coordinates: Coordinates, floor: Floats, *, probing: bool = False
    ) -> tuple[Point, Iterate]:
        """Solve from zero; the result is never worse than zero."""
        C = self.correction(coordinates, self.zero, floor, probing=probing)
        return self.better_of(self.at(C), self.zero), self.state

    def refined(
        self, coordinates: Coordinates, point: Point, floor: Floats, largest_step: float = np.inf
    ) -> tuple[Point, tuple[float, ...]]:
        """Correct a solution with residuals from the data while that is seen to help.

        A correction leaves about its own square, so one below sqrt(eps) is the last. One that is
        not less than half of the one before shows that there is nothing to gain.
        """
        steps: list[float] = []
        while point.C.any() and len(steps) < _MOST_RESTARTS:
            if self.tol is not None and self.error(point, coordinates) <= self.tol:
                break
            change = self.correction(coordinates, point, floor)
            step = _size(change) / _size(point.C)
            if not 0 < step <= (steps[-1] / 2 if steps else largest_step):
                break
            point = self.better_of(self.at(point.C + change), point)
            steps.append(step)
            if step < np.sqrt(EPS):
                break
        self.start, self.state.v = point.C, np.zeros(0)
        return point, tuple(steps)

    def aware_of_rotations(self, whitening: Whitening) -> Coordinates:
        """Better coordinates than these where there are some, found in one pass."""
        found = aware_of_rotations(self.operator, self.factors, self.alpha, whitening)
        if found is None:
            return whitening
        self.iterations += 1
        return found

    def probe(self, coordinates: Coordinates) -> bool:
        """Bound the least eigenvalue by passes of their own; whether there are null directions."""
        self.random_row = Probe.random(coordinates, self.zero.gradient)
        state = conjugate_gradients(
            self.operator,
            coordinates,
            self.alpha,
            self.random_row.b[:0],
            tolerance=1.0,
            limit=self.limit,
            watch=self.watch,
            probe=self.random_row,
        )
        self.iterations += state.iterations
        return self.random_row.singular

    def _tolerance(self) -> float:
        """Relative residual that ends a solve."""
        if self.tol is None or self.kappa == 0:  # a smaller one would bound nothing
            return TOLERANCE
        wanted = _RESIDUAL_OF_ERROR * self.tol * min(self.kappa, 1.0)
        return min(TOLERANCE, max(wanted, _LEAST_TOLERANCE))

    def _accurate(self, state: Iterate, coordinates: Coordinates) -> bool:
        """Whether the residuals of the iteration bound the error by what is asked for."""
        if self.tol is None or self.kappa == 0 or state.iterations % _WINDOW != 0:
            return False
        mu = max(self.alpha, self.kappa / coordinates.norm / coordinates.norm)
        left = self.unit * state.norms * np.sqrt(self._inverse_energies() / mu)
        return float(relative(left, self.so_far()).max()) <= _ENOUGH * self.tol


def _require_visible(factors: KroneckerFactors, operator: NormalOperator) -> None:
    """Raise where squares of features underflow although queries do not."""
    largest, query = (float(x.max()) for x in (factors.diagonal, factors.queries.diagonal()))
    features = operator.features
    if largest < _SMALLEST and query > 0 and features.everything and features.sums_cancel:
        size = np.sqrt(query / operator.total_weight)
        raise ValueError(
            f"Z: values of a root mean square of at most {size:.3g} underflow float64 in the "
            "squares of the cubic features; rescale the tokens"
        )


def _size(rows: Floats) -> float:
    return float(norms(rows.reshape(1, -1))[0])
