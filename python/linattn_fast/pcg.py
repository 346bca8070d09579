"""Preconditioned conjugate gradients on (Lambda + alpha I) C' = mean w h y', without a Gram.

1. Solve in coordinates in which A (x) B + alpha I is the identity (:mod:`linattn_fast.whitening`).
2. Restart from residuals recomputed from the data (:mod:`linattn_fast.refine`): what the passes
   have rounded is found again there, so the result is as exact as that of an orthogonal method.
3. Without a ridge, look whether Lambda is singular in these coordinates. If it is, the solution
   of least norm is the one that plain conjugate gradients find from zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .conjugate_gradients import Iterate, Watch, conjugate_gradients, row_squares
from .device import module_of, put
from .normal_operator import KroneckerFactors, NormalOperator
from .refine import Solution, refine
from .tokens import Floats
from .whitening import Coordinates, PlainCoordinates, Whitening, whiten

TOLERANCE = 1e-9
"""Relative residual of one solve: below sqrt(eps), so that one restart reaches rounding."""
_FLOOR = 1e-15
"""With a ridge: residual relative to that of C = 0, below which there is nothing but rounding, for
condition numbers up to 1e4; beyond, its root counts, because coefficients err that much more."""
_MOST_RESTARTS = 6
_PROBE_TOLERANCE = 1e-4
"""Of the search for null directions: below the share 1/sqrt(p) that one of them has of a random
vector, for every p up to 1e8."""
_NULL = 1e-9
"""A Ritz value of K, whose largest eigenvalues are near one, that counts as zero."""
_LEAST_LIMIT, _MOST_LIMIT = 100, 5000


def iteration_limit(dimension: int) -> int:
    """Most iterations of one solve: conjugate gradients end after p in exact arithmetic."""
    return int(np.clip(2 * dimension, _LEAST_LIMIT, _MOST_LIMIT))


@dataclass(frozen=True)
class PcgSolution:
    """A solution, and how it was found."""

    solution: Solution
    iterations: int
    residual: float
    """Relative residual, in whitened coordinates, of the first solve."""
    condition: float
    """Estimated, of the equilibrated second moment with its ridge."""
    mean_squared_target: float
    reason: str
    factors: KroneckerFactors
    """Of the data, for a certificate."""


class _Solve:
    """Solves with one operator, counting iterations over restarts."""

    def __init__(self, operator: NormalOperator, alpha: float, watch: Watch | None) -> None:
        self.operator = operator
        self.alpha = alpha
        self.watch = watch
        self.iterations = 0
        self.limit = iteration_limit(operator.features.count)
        self.start = np.zeros((operator.d_out, operator.features.count))
        """What the present solve corrects."""
        self.state = Iterate(np.zeros(0))
        self.coordinates: Coordinates | None = None
        self.floor = 0.0
        self.norms = np.ones(operator.d_out)
        """Of the residuals of C = 0, in the coordinates that are solved in."""

    def so_far(self) -> Floats:
        """Coefficients found until now."""
        if self.coordinates is None or self.state.v.size == 0:
            return self.start
        return self.start + self.coordinates.coefficients(self.state.v)

    def gradient(self, C: Floats) -> Floats:
        """Mean w (y - C h) h' - alpha C, from the data."""
        C = module_of(C).ascontiguousarray(C)
        total = self.operator.gradient(C).gradient
        return total / self.operator.total_weight - self.alpha * C

    def correction(self, coordinates: Coordinates, gradient: Floats) -> tuple[Floats, Iterate]:
        """(Lambda + alpha I)^-1 times a gradient (d_out, p)."""
        right = coordinates.transpose(gradient)
        norms = np.sqrt(row_squares(right))
        if not self.start.any():
            self.norms = norms
        share = np.divide(self.norms, norms, out=np.ones(len(norms)), where=norms > 0)
        self.coordinates, self.state = coordinates, Iterate(np.zeros(0))
        conjugate_gradients(
            self.operator,
            coordinates,
            self.alpha,
            right,
            tolerance=np.clip(self.floor * share, TOLERANCE, 0.5),
            limit=self.limit,
            watch=self.watch,
            iterate=self.state,
        )
        self.iterations += self.state.iterations
        return coordinates.coefficients(self.state.v), self.state

    def refined(
        self, coordinates: Coordinates, gradient: Floats
    ) -> tuple[Floats, tuple[float, ...], Iterate]:
        """Solve for the gradient at zero, then correct on the data while that helps."""
        self.start = module_of(gradient).zeros_like(gradient)
        first, state = self.correction(coordinates, gradient)
        if not state.converged:  # nor would the corrections
            return first, (), state

        def again(C: Floats) -> Floats:
            self.start = C
            return self.correction(coordinates, self.gradient(C))[0]

        C, steps = refine(first, again, most_steps=_MOST_RESTARTS, first_step=np.inf)
        self.start, self.coordinates = C, None
        return C, steps, state


def _least_ritz_value(
    operator: NormalOperator,
    coordinates: Coordinates,
    watch: Watch | None,
    limit: int,
    place: Floats,
) -> tuple[float, int]:
    """Estimate of lambda_min(K) from above, by Lanczos from a fixed random vector; iterations."""

    def is_null(state: Iterate) -> bool:
        return state.iterations % 10 == 0 and float(state.ritz_values()[0]) < _NULL

    state = conjugate_gradients(
        operator,
        coordinates,
        0.0,
        put(np.random.default_rng(0).standard_normal((1, *coordinates.shape)), like=place),
        tolerance=_PROBE_TOLERANCE,
        limit=limit,
        watch=watch,
        enough=is_null,
    )
    values = state.ritz_values()
    return (float(values[0]) if len(values) else 0.0), state.iterations


def solve_pcg(operator: NormalOperator, alpha: float, watch: Watch | None = None) -> PcgSolution:
    """Solve for the coefficients, all outputs at once.

    Parameters
    ----------
    operator
        The data.
    alpha
        Ridge.
    watch
        Called after each iteration, see :data:`~linattn_fast.conjugate_gradients.Watch`. An
        exception that it or a pass raises, KeyboardInterrupt included, leaves with an attribute
        ``iterate``: the coefficients (d_out, p) found so far.
    """
    solve = _Solve(operator, alpha, watch)
    try:
        return _solved(solve)
    except BaseException as stop:
        stop.iterate = solve.so_far()  # type: ignore[attr-defined]
        raise


def _solved(solve: _Solve) -> PcgSolution:
    operator, alpha = solve.operator, solve.alpha
    weight = operator.total_weight
    factors = operator.kronecker_factors()
    whitening = whiten(factors, weight, alpha)
    if alpha > 0:
        solve.floor = _FLOOR * min(1.0, 1e2 / np.sqrt(whitening.condition))
    zero = operator.gradient(np.zeros((operator.d_out, operator.features.count)))
    gradient = zero.gradient / weight
    C, steps, state = solve.refined(whitening, gradient)
    reasons = [f"{state.iterations} iterations to a relative residual of {state.residual:.1e}"]
    if not state.converged:
        reasons.append(f"stopped by the limit of {solve.limit} iterations")
    ritz = state.ritz_values()
    if alpha == 0 and C.any():
        C, steps = _of_least_norm(solve, whitening, gradient, factors, C, steps, reasons)
    if not whitening.full:
        (a, b), (q, d) = whitening.shape, (len(whitening.left), len(whitening.right))
        reasons.append(f"{a} of {q} pair and {b} of {d} query directions are not zero to rounding")
    C = module_of(C).ascontiguousarray(C)
    error = float(operator.gradient(C).squared_error.sum()) / weight
    spread = float(ritz[-1] / max(ritz[0], 1e-300)) if len(ritz) else 1.0
    return PcgSolution(
        Solution(C, steps, error),
        solve.iterations,
        state.residual,
        whitening.condition * spread,
        float(zero.squared_error.sum()) / weight,
        "; ".join(reasons),
        factors,
    )


def _of_least_norm(
    solve: _Solve,
    whitening: Whitening,
    gradient: Floats,
    factors: KroneckerFactors,
    C: Floats,
    steps: tuple[float, ...],
    reasons: list[str],
) -> tuple[Floats, tuple[float, ...]]:
    """The solution of least norm; what was found already, unless Lambda is singular."""
    least, spent = _least_ritz_value(solve.operator, whitening, solve.watch, solve.limit, C)
    solve.iterations += spent
    zeros = factors.diagonal.ravel() == 0
    if zeros.any():  # no data speaks about them
        C = module_of(C).where(zeros, 0.0, C)
    if least >= _NULL:
        return C, steps
    plain = PlainCoordinates(len(whitening.left), len(whitening.right))
    shortest, shortest_steps, state = solve.refined(plain, gradient)
    if state.converged:
        reasons.append("singular second moment, solution of least norm from plain iterations")
        return shortest, shortest_steps
    reasons.append("singular second moment; the solution is one of many, not that of least norm")
    return C, steps
