"""Preconditioned conjugate gradients on (Lambda + alpha I) C' = mean w h y', without a Gram.

1. Solve in coordinates in which A (x) B + alpha I is the identity (``whitening.py``), or better
   ones that also know what rotations do to the features (``rotations.py``).
2. Restart from residuals recomputed from the data: what the passes have rounded is found again
   there, so the result is as exact as that of an orthogonal method. A correction is taken only
   where it helps on the data, output by output.
3. Bound the error of the coefficients (``coefficient_error.py``) with a lower bound on the least
   eigenvalue in these coordinates (``least_eigenvalue.py``).
4. Without a ridge, if Lambda is singular in these coordinates, look for the solution of least norm,
   which is the one that plain conjugate gradients find from zero, and check that it is.

Where an accuracy is asked for (:class:`Pcg`), a solve ends as soon as the bound is below it.
"""

from __future__ import annotations

import numbers
from dataclasses import dataclass

import numpy as np

from ...arrays.device import module_of, to_host
from ...arrays.types import Floats
from ...backend.normal_operator import KroneckerFactors, NormalOperator
from ...linalg.factors import EPS
from ...system.progress import Watch
from ..accuracy import Solution
from .coefficient_error import Point, norms
from .expected import FASTEST, expected_iterations, more_would_be_faster
from .iteration import Iterate
from .restarts import RestartedSolve
from .whitening import Coordinates, PlainCoordinates, Whitening, whiten, whiten_all

_FLOOR = 1e-15
"""With a ridge: residual, relative to that of C = 0, below which there is nothing but rounding. It
holds for condition numbers up to 1e4; beyond, it falls with their root: coefficients err more."""
_LARGEST_STEP = 0.5
"""Where Lambda is singular, corrections larger than this share of the solution are refused: what
the residual of a solution of least norm justifies is small."""
_LEAST_NORM = 1e-6
"""Largest share of null directions in a solution that is said to be of least norm."""
_CHECK = 0.1
"""Share of the accuracy that is stated to which a check must confirm it."""
_HIDDEN = 100.0
"""Outputs, in units of rounding, below which the data does not see a direction."""
_MORE = 5
"""Iterations after a first solve that settles nothing, in multiples of its own."""
_GOOD = 1e-6
"""Bound on the error by the ridge alone up to which no better one is looked for."""


@dataclass(frozen=True)
class Pcg:
    """Conjugate gradients without a Gram, to an accuracy: ``la.fit(Z, y, solver=la.Pcg(1e-8))``.

    Parameters
    ----------
    tol
        Relative error of the coefficients (of each output, in the Euclidean norm) at which to
        stop: a bound on it, which ``fit.info.coefficient_error`` has. Where the data or rounding
        do not allow it, ``fit.info.reason`` says so. None goes on to rounding, as
        ``solver="pcg"``.

    Examples
    --------
    >>> import numpy as np, linattn_fast as la
    >>> Z = np.random.default_rng(0).standard_normal((400, 8, 3))
    >>> exact, near = (la.fit(Z, Z[:, 0], solver=la.Pcg(tol)) for tol in (None, 1e-4))
    >>> error = np.linalg.norm(near.coefficients - exact.coefficients)
    >>> bool(error < 1e-4 * np.linalg.norm(exact.coefficients))
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


@dataclass(frozen=True)
class PcgSolution:
    """A solution, and how it was found."""

    solution: Solution
    iterations: int
    residual: float
    """Relative residual, in whitened coordinates, of the first solve."""
    condition: float
    """Estimated condition number of the equilibrated second moment with its ridge."""
    mean_squared_target: float
    reason: str
    factors: KroneckerFactors
    """The Kronecker factors of the data, which a certificate uses."""
    error: float | None
    """Bound on the relative error of the coefficients of the worst output; None where there is
    none."""
    least_norm: bool
    """Whether Lambda is singular, and the solution was seen to be the one of least norm."""
    narrow_passes: int
    """Passes with products in float32."""


def solve_pcg(
    operator: NormalOperator,
    alpha: float,
    watch: Watch | None = None,
    tol: float | None = None,
    larger: Floats | None = None,
    narrow: bool = False,
) -> PcgSolution:
    """Solve for the coefficients, all outputs at once.

    Parameters
    ----------
    operator
        The data.
    alpha
        Ridge.
    watch
        Called after each iteration, see :data:`~linattn_fast.system.progress.Watch`. An
        exception that it or a pass raises, KeyboardInterrupt included, leaves with an attribute
        ``iterate``: the coefficients (d_out, p) found so far.
    tol
        See :class:`Pcg`.
    larger
        Mean squares of the features' summands over those of the features, (p,), where they are
        known; with all features they are bounded in any case.
    narrow
        Whether passes may be in float32 (:mod:`.narrow`): whether there is memory for the samples
        in it.
    """
    solve = RestartedSolve(operator, alpha, watch, tol, larger, narrow)
    try:
        with np.errstate(all="ignore"):  # what is not finite is refused later
            return _solved(solve)
    except BaseException as stop:
        # an attribute of ours on whatever exception stopped it, which no class declares
        stop.iterate = solve.so_far()  # type: ignore[attr-defined]
        raise


def _solved(solve: RestartedSolve) -> PcgSolution:
    operator, alpha, factors = solve.operator, solve.alpha, solve.factors
    weight = operator.total_weight
    whitening = whiten(factors, weight, alpha, operator.features)
    seen = not whitening.full and _left_out_is_seen(solve, whitening)
    coordinates = whitening if seen else solve.aware_of_rotations(whitening)
    floor = np.zeros(operator.d_out)
    if alpha > 0:
        lowest = _FLOOR * min(1.0, 1e2 / np.sqrt(whitening.condition))
        floor = lowest * norms(coordinates.transpose(solve.zero.gradient))
    probing = not seen and (alpha == 0 or solve.tol is not None)
    point, state = solve.first(coordinates, floor, probing=probing)
    ritz = state.ritz_values()
    reasons = _counted(solve, state)
    if not state.converged and not state.singular:
        reasons.append(f"stopped by the limit of {solve.limit} iterations")
    if not whitening.full:
        (a, b), (q, d) = whitening.shape, (len(whitening.left), len(whitening.right))
        reasons.append(f"{a} of {q} pair and {b} of {d} query directions are not zero to rounding")
    steps: tuple[float, ...] = ()
    least_norm = False
    singular = state.singular or solve.has_null_directions
    if seen:
        reasons.append("the data sees the others as well")
        point, _ = solve.refined(whitening, point, floor)
        whitening = coordinates = whiten_all(factors, weight, operator.features)
        solve.limit = min(solve.limit, _MORE * solve.iterations)
        singular = solve.probe(whitening)
    if alpha == 0 and singular:
        error, unknown = np.inf, "the second moment is singular to rounding"
        point, steps, least_norm = _one_of_many(solve, whitening, point, seen, reasons)
    else:
        if state.converged or seen:
            point, steps = solve.refined(coordinates, point, floor)
        error = _error(solve, coordinates, point) + whitening.tilt
        unknown = "the least eigenvalue is not known"
        if whitening.shape != _directions(factors):
            error, unknown = np.inf, "directions count as zero that may be very small"
    if solve.narrow_passes:
        reasons.append(f"{solve.narrow_passes} passes in float32")
    if alpha == 0:  # no data speaks of features that are always zero
        point = _seen(point, factors)
    reasons.append(_in_words(error, solve.tol, unknown))
    spread = float(ritz[-1] / max(ritz[0], 1e-300)) if len(ritz) else 1.0
    C = module_of(point.C).ascontiguousarray(point.C)
    return PcgSolution(
        Solution(C, steps, float(point.squared_error.sum())),
        solve.iterations,
        state.residual,
        whitening.condition * spread,
        float(solve.zero.squared_error.sum()),
        "; ".join(reasons),
        factors,
        error if error < 1 else None,
        least_norm,
        solve.narrow_passes,
    )


def _counted(solve: RestartedSolve, state: Iterate) -> list[str]:
    """Iterations of the first solve, and what random samples would take."""
    n, p = solve.operator.n_samples, solve.operator.features.count
    told = f"{state.iterations} iterations to a relative residual of {state.residual:.1e}"
    if n > p and 0 < state.residual < 1:
        told += f" ({expected_iterations(n, p, state.residual)} for whitened random samples)"
    reasons = [told]
    if more_would_be_faster(n, p):
        reasons.append(
            f"iterations times samples would be least with about {int(FASTEST * p):,} samples"
        )
    return reasons


def _directions(factors: KroneckerFactors) -> tuple[int, int]:
    """Number of pairs, and of queries, that are not zero in every sample."""
    pairs, queries = (int((part.diagonal() > 0).sum()) for part in factors[:2])
    return pairs, queries


def _in_words(error: float, tol: float | None, unknown: str) -> str:
    """The accuracy of the coefficients in words."""
    if not error < 1:
        return f"accuracy of the coefficients unknown: {unknown}"
    text = f"coefficients estimated to err by {error:.1e} at most"
    return text if tol is None or error <= tol else f"{text}, not the {tol:.1e} asked for"


def _error(solve: RestartedSolve, coordinates: Coordinates, point: Point) -> float:
    """Bound on the relative error of the coefficients."""
    error = solve.error(point, coordinates)
    if solve.kappa > 0 or error <= _GOOD:
        return error
    solve.limit = min(solve.limit, _MORE * solve.iterations)
    solve.probe(coordinates)  # because the ridge alone is not enough
    return solve.error(point, coordinates)


def _one_of_many(
    solve: RestartedSolve, whitening: Whitening, point: Point, seen: bool, reasons: list[str]
) -> tuple[Point, tuple[float, ...], bool]:
    """The solution of least norm where the second moment is singular, else the best one found.

    Returned with it are the corrections it took, and whether it is the one of least norm.

    What rounding adds to a gradient in null directions is as large as it was for C = 0, and no
    iteration makes it smaller: to go on below it is to divide it by zero. Hence the floors. Where
    the data has ``seen`` directions at the level of rounding, null directions are not known well
    enough to be left out.
    """
    found = None if seen else _of_least_norm(solve, whitening, point)
    if found is not None:
        reasons.append(
            "second moment singular to rounding, solution of least norm from plain iterations "
            f"(checked to {_LEAST_NORM:.0e})"
        )
        return *found, True
    reasons.append(
        "second moment singular to rounding; the solution is one of many, not that of least norm"
    )
    floor = solve.rounding.of_gradient(point, whitening)
    return *solve.refined(whitening, point, floor, _LARGEST_STEP), False


def _of_least_norm(
    solve: RestartedSolve, whitening: Whitening, point: Point
) -> tuple[Point, tuple[float, ...]] | None:
    """The solution that plain iterations find from zero, if it is as good, and of least norm."""
    plain = PlainCoordinates(len(whitening.left), len(whitening.right))
    found, state = solve.first(plain, solve.rounding.of_gradient(solve.zero, plain))
    if not state.converged:
        return None
    floor = solve.rounding.of_gradient(found, plain)
    found, steps = solve.refined(plain, found, floor, _LARGEST_STEP)
    if not solve.no_worse(found, point).all() or not _is_of_least_norm(solve, plain, found):
        return None
    return found, steps


def _is_of_least_norm(solve: RestartedSolve, plain: PlainCoordinates, point: Point) -> bool:
    """Whether coefficients are what plain iterations make of Lambda C, so without null directions.

    These find the part of C that is orthogonal to the null directions, in another way than C was
    found; the difference is C's share in them and the error of both ways.
    """
    product = solve.operator.normal(module_of(point.C).ascontiguousarray(point.C)).product
    # The gradient at zero for targets C h
    target = Point(solve.zero.C, product / solve.operator.total_weight, solve.zero.squared_error)
    again = solve.correction(plain, target, solve.rounding.of_gradient(point, plain))
    return bool((norms(again - point.C) <= _CHECK * _LEAST_NORM * norms(point.C)).all())


def _seen(point: Point, factors: KroneckerFactors) -> Point:
    """The point with zeros for features that are zero in every sample."""
    C = module_of(point.C).where(factors.diagonal.ravel() == 0, 0.0, point.C)
    return Point(C, point.gradient, point.squared_error)


def _left_out_is_seen(solve: RestartedSolve, whitening: Whitening) -> bool:
    """Whether the data sees directions D that count as zero in A and B, by more than rounding.

    A and B are Grams, in which singular values of the features below sqrt(eps) are lost. Outputs
    D h are sums, and lose nothing: D is random among those directions, and so long that rounding
    in D h is 1e-2 of the targets, which then hide what is not seen.
    """
    xp, zero = module_of(whitening.left), solve.zero
    q, k = len(whitening.left), len(whitening.right)
    sizes = xp.sqrt(solve.rounding.mean_squares)  # (p,)
    random = np.random.default_rng(1).standard_normal((len(zero.C), q * k))
    random = xp.asarray(random) / xp.where(sizes > 0, sizes, np.inf)
    maps = random.reshape(-1, q, k)
    left, right = (xp.linalg.qr(x)[0] for x in (whitening.left, whitening.right))
    D = (maps - left @ (left.T @ maps @ right) @ right.T).reshape(len(maps), -1)
    D = D * (sizes > 0)
    outputs = to_host(xp.abs(D) @ sizes)  # more than D h, if nothing cancels
    target = np.where(zero.squared_error > 0, np.sqrt(zero.squared_error), 1.0)
    long = np.divide(target, _HIDDEN * EPS * outputs, out=np.zeros(len(D)), where=outputs > 0)
    found = solve.at(xp.asarray(long)[:, None] * D)
    return bool((found.squared_error > (2 * target) ** 2).any())
