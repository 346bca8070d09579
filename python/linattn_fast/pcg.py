"""Preconditioned conjugate gradients on (Lambda + alpha I) C' = mean w h y', without a Gram.

1. Solve in coordinates in which A (x) B + alpha I is the identity (:mod:`linattn_fast.whitening`).
2. Restart from residuals recomputed from the data (:mod:`linattn_fast.refine`): what the passes
   have rounded is found again there, so the result is as exact as that of an orthogonal method.
3. Without a ridge, look whether Lambda is singular in these coordinates. If it is, the solution
   of least norm is the one that plain conjugate gradients find from zero.

Where an accuracy is asked for (:class:`Pcg`), a solve ends as soon as its coefficients are
estimated to have it, and restarts only if the residual recomputed from the data disagrees.
"""

from __future__ import annotations

import numbers
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
_SINGULAR_FLOOR = 1e-13
"""The same where the second moment is singular: well above rounding."""
_MOST_RESTARTS = 6
_PROBE_TOLERANCE = 1e-4
"""Of the search for null directions: below the share 1/sqrt(p) that one of them has of a random
vector, for every p up to 1e8."""
_NULL = 1e-9
"""A Ritz value of K, whose largest eigenvalues are near one, that counts as zero."""
_LEAST_LIMIT, _MOST_LIMIT = 1000, 5000
_WINDOW = 5
"""Iterations between two looks at the coefficients, where an accuracy is asked for."""
_LEAST_TOLERANCE, _RESIDUAL_OF_ERROR = 1e-12, 1e-3
"""A solve to an accuracy may go on to this residual, or this share of the accuracy: looking at the
coefficients is what should end it."""


@dataclass(frozen=True)
class Pcg:
    """Conjugate gradients without a Gram, to an accuracy: ``la.fit(Z, y, solver=la.Pcg(1e-8))``.

    Parameters
    ----------
    tol
        Relative error of the coefficients (of each output, in the Euclidean norm) at which to
        stop, as estimated from how they change. None goes on to rounding, as ``solver="pcg"``.

    Examples
    --------
    >>> import numpy as np, linattn_fast as la
    >>> Z = np.random.default_rng(0).standard_normal((400, 8, 3))
    >>> exact, near = (la.fit(Z, Z[:, 0], solver=la.Pcg(tol)) for tol in (None, 1e-4))
    >>> error = np.linalg.norm(near.coefficients - exact.coefficients)
    >>> bool(error < 1e-3 * np.linalg.norm(exact.coefficients))
    True
    """

    tol: float | None = None

    def __post_init__(self) -> None:
        tol = self.tol
        if tol is None:
            return
        if isinstance(tol, bool) or not isinstance(tol, numbers.Real):
            raise TypeError(f"tol: a real number or None is needed, got {type(tol).__name__}")
        if not 0 < tol < 1:  # also false for NaN
            raise ValueError(f"tol: must be between 0 and 1, got {tol!r}")


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


class _Accuracy:
    """Whether coefficients have an accuracy, from how they change.

    The error of conjugate gradients falls about geometrically. Where it falls by the factor r in
    one window of iterations, and the coefficients C changed by c in the last one, c r / (1 - r) is
    left. The larger of the last two factors counts.
    """

    def __init__(self, tol: float) -> None:
        self.tol = tol
        self.error = np.inf
        """Estimated, of the output that is worst; relative."""
        self._last: Floats | None = None
        self._changes: list[Floats] = []

    def reached(self, C: Floats) -> bool:
        """Look at the coefficients (d_out, p) after one more window."""
        if self._last is not None:
            size = row_squares(C)
            change = row_squares(C - self._last)
            share = np.divide(change, size, out=np.zeros(len(size)), where=size > 0)
            self._changes = [*self._changes[-2:], np.sqrt(share)]
        self._last = C
        if len(self._changes) < 3:
            return False
        first, second, third = self._changes
        factors = [
            np.divide(b, a, out=np.zeros(len(a)), where=a > 0)
            for a, b in ((first, second), (second, third))
        ]
        r = np.maximum(*factors)
        left = np.divide(third * r, 1 - r, out=np.full(len(r), np.inf), where=r < 1)
        self.error = float(np.where(third == 0, 0.0, left).max())
        return self.error <= self.tol


class _Solve:
    """Solves with one operator, counting iterations over restarts."""

    def __init__(
        self, operator: NormalOperator, alpha: float, watch: Watch | None, tol: float | None
    ) -> None:
        self.operator = operator
        self.alpha = alpha
        self.watch = watch
        self.tol = tol
        self.error: float | None = None
        """Of the coefficients, relative, where the last solve ended because it is below tol."""
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
        accuracy = None if self.tol is None else _Accuracy(self.tol)
        tolerance = np.clip(self.floor * share, self._tolerance(), 0.5)

        def accurate(state: Iterate) -> bool:
            if accuracy is None or state.iterations % _WINDOW != 0:
                return False
            return accuracy.reached(self.so_far())

        conjugate_gradients(
            self.operator,
            coordinates,
            self.alpha,
            right,
            tolerance=tolerance,
            limit=self.limit,
            watch=self.watch,
            enough=accurate,
            iterate=self.state,
        )
        self.iterations += self.state.iterations
        self.error = None
        if accuracy is not None and accuracy.error <= accuracy.tol:
            self.error, self.state.converged = accuracy.error, True
        return coordinates.coefficients(self.state.v), self.state

    def first(self, coordinates: Coordinates, gradient: Floats) -> tuple[Floats, Iterate]:
        """Solve for the gradient at zero."""
        self.start = module_of(gradient).zeros_like(gradient)
        return self.correction(coordinates, gradient)

    def refined(
        self, coordinates: Coordinates, first: Floats, state: Iterate
    ) -> tuple[Floats, tuple[float, ...]]:
        """Correct the first solution on the data while that helps."""
        if not state.converged:  # nor would the corrections
            return first, ()
        # The gradient that confirms an accuracy is also that of the first correction
        at_first = self.gradient(first)
        if self.error is not None and self._confirmed(coordinates, at_first, state):
            return first, ()

        def again(C: Floats) -> Floats:
            self.start = C
            return self.correction(coordinates, at_first if C is first else self.gradient(C))[0]

        C, steps = refine(first, again, most_steps=_MOST_RESTARTS, first_step=np.inf)
        self.start, self.coordinates = C, None
        return C, steps

    def _tolerance(self) -> float:
        """Relative residual that ends a solve."""
        if self.tol is None:
            return TOLERANCE
        return min(TOLERANCE, max(_RESIDUAL_OF_ERROR * self.tol, _LEAST_TOLERANCE))

    def _confirmed(self, coordinates: Coordinates, gradient: Floats, state: Iterate) -> bool:
        """Whether the residual of the data is the one that the iteration believes in."""
        norms = np.sqrt(row_squares(coordinates.transpose(gradient)))
        return bool((norms <= 2 * max(state.residual, self._tolerance()) * self.norms).all())


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


def solve_pcg(
    operator: NormalOperator,
    alpha: float,
    watch: Watch | None = None,
    tol: float | None = None,
) -> PcgSolution:
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
    tol
        See :class:`Pcg`.
    """
    solve = _Solve(operator, alpha, watch, tol)
    try:
        return _solved(solve)
    except BaseException as stop:
        # an attribute of ours on whatever exception stopped it, which no class declares
        stop.iterate = solve.so_far()  # type: ignore[attr-defined]
        raise


def _solved(solve: _Solve) -> PcgSolution:
    operator, alpha = solve.operator, solve.alpha
    weight = operator.total_weight
    factors = operator.kronecker_factors()
    whitening = whiten(factors, weight, alpha, operator.features)
    if alpha > 0:
        solve.floor = _FLOOR * min(1.0, 1e2 / np.sqrt(whitening.condition))
    zero = operator.gradient(np.zeros((operator.d_out, operator.features.count)))
    gradient = zero.gradient / weight
    C, state = solve.first(whitening, gradient)
    reasons = [f"{state.iterations} iterations to a relative residual of {state.residual:.1e}"]
    if not state.converged:
        reasons.append(f"stopped by the limit of {solve.limit} iterations")
    ritz = state.ritz_values()
    if alpha == 0 and C.any() and _is_singular(solve, whitening):
        C, steps = _of_least_norm(solve, whitening, gradient, factors, C, reasons)
    else:
        C, steps = solve.refined(whitening, C, state)
        if alpha == 0:  # of features that are always zero, no data speaks
            C = _seen(C, factors)
    if solve.error is not None:
        reasons.append(f"coefficients estimated to err by {solve.error:.1e}")
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


def _is_singular(solve: _Solve, whitening: Whitening) -> bool:
    """Whether the whitened second moment has null directions."""
    least, spent = _least_ritz_value(
        solve.operator, whitening, solve.watch, solve.limit, whitening.left
    )
    solve.iterations += spent
    return least < _NULL


def _of_least_norm(
    solve: _Solve,
    whitening: Whitening,
    gradient: Floats,
    factors: KroneckerFactors,
    C: Floats,
    reasons: list[str],
) -> tuple[Floats, tuple[float, ...]]:
    """The solution of least norm where the second moment is singular, else C.

    What rounding adds to a gradient in null directions is as large as it was for C = 0, and no
    iteration makes it smaller: to go on below it is to divide it by zero. Hence the floor, and no
    corrections of the first solution.
    """
    plain = PlainCoordinates(len(whitening.left), len(whitening.right))
    solve.floor = _SINGULAR_FLOOR
    first, state = solve.first(plain, gradient)
    if state.converged:
        reasons.append("singular second moment, solution of least norm from plain iterations")
        return solve.refined(plain, first, state)
    reasons.append("singular second moment; the solution is one of many, not that of least norm")
    return _seen(C, factors), ()


def _seen(C: Floats, factors: KroneckerFactors) -> Floats:
    """C with zeros for features that are zero in every sample."""
    seen: Floats = module_of(C).where(factors.diagonal.ravel() == 0, 0.0, C)
    return seen
