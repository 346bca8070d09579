"""How coefficients are made accurate, and how far they may still be from the best ones.

*Refinement.* A factorised Gram solves to about eps times the squared condition number of the
features. Residuals taken from the data do not have that error, so correcting with them, by the same
factorisation, brings the solution to what a backward-stable least-squares method would give. With
r = y - C h the residual of a sample, one pass over the data, wherever that is, is a sum over parts:

    gradient  sum w r h'        squared error  sum w r^2

*What rounding leaves.* In equilibrated coordinates xi = D^-1 C' let kappa^2 be the condition number
of the matrix that was solved with, r the residual with its ridge,
|r|^2 = mean w ||C h - y||^2 + alpha ||C||^2, and u the rounding relative to the data. To first
order (Wedin), |delta xi| is at most

    u kappa^2 (|xi| + |y|)                       from the Gram, whose entries err by u
    u (kappa (|xi| + |y|) + kappa^2 |r|)         from the data, whose features err by u

and |delta C| <= max(D) |delta xi|. Where the rank is short, the shortest C also depends on the
range of the data, which the same errors tilt; in the caller's units, a tilt counts by up to
(max D / min D)^2.

Features that cancel err by u relative to their summands, so u counts as many times as these are
larger than 1 / D. And nothing is known where only rounding makes the rank short, or where products
underflow: the rank is compared with the exact one (:mod:`linattn_fast.exact.exact_rank`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ..arrays.device import module_of, to_host
from ..arrays.types import Floats
from ..backend.normal_operator import Gradient
from ..data.tokens import Tokens
from ..exact.exact_rank import modular_rank
from ..exact.modular_features import ModularData
from ..linalg.cholesky import rounding_level
from ..linalg.factors import EPS, ChosenFactor, Factorisation
from ..moments.factors import rounding_steps_of
from ..moments.sums import MomentSums

_MOST_CORRECTIONS = 4
"""Corrections of one refinement, at most."""
_FIRST_STEP = 0.5
"""Largest first correction that is taken, relative to the solution."""


_PLAIN = 1e-120
"""Norms above this, and below its reciprocal, are those of numbers whose squares are exact enough.
"""


@dataclass(frozen=True)
class Solution:
    """Coefficients (d_out, p), the corrections they took, and their error on the training data."""

    coefficients: Floats
    refinements: tuple[float, ...]
    mean_squared_error: float
    error_bound: float = 0.0
    """Bound on the error of that error, where it is from moments; 0 where it is from the data."""


def norm(x: Floats) -> float:
    """The Frobenius norm, without overflow."""
    xp = module_of(x)
    if xp is np and _PLAIN < (size := math.sqrt(np.vdot(x, x))) < 1 / _PLAIN:
        return size
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
    while size > 0 and len(steps) < _MOST_CORRECTIONS:
        change = correction(solution)
        step = norm(change) / size
        if not step <= (steps[-1] / 2 if steps else _FIRST_STEP):
            break
        solution = solution + change
        steps.append(step)
        if step < np.sqrt(EPS):
            break
    return solution, tuple(steps)


# ------------------------------------------------------------------------------------ on the data

_MOST_STEPS = 8
"""Corrections on the data, at most."""
_TRUSTED = 1e-3
"""Largest rounding level times condition number of a factorisation whose steps need no check."""
_ROUNDING = 1e-12
"""Rounding of an objective, relative to it."""


def refine_on_data(
    coefficients: Floats,
    choice: ChosenFactor,
    alpha: float,
    total_weight: float,
    gradient: Callable[[Floats], Gradient],
) -> Solution:
    """Correct C by (Lambda + alpha I)^-1 times the gradient recomputed on the data.

    A step D leaves, with g = mean w r h' and E = mean w r^2 of the C before,

        E - 2 <D, g> + <D, D Lambda> = E - <D, g> - alpha <D, C + D>

    which is the error of the answer without another pass over the data, unless it cancels. Where
    the factorisation is too ill-conditioned to be trusted with that, the objective is measured
    after every step, and a step that did not lower it is taken back.
    """
    xp = module_of(coefficients)
    factor = choice.factorisation
    trusted, p = factor.condition * factor.level < _TRUSTED, coefficients.shape[1]
    C, steps, decisive = coefficients, list[float](), list[float]()
    last: tuple[Floats, float, float] | None = None  # C before the last step, its errors
    while True:
        sums = gradient(xp.ascontiguousarray(C))
        error = float(sums.squared_error.sum()) / total_weight
        size = norm(C)
        objective = error + alpha * size * size  # a power would raise where it overflows
        if last is not None and objective > last[2] * (1 + _ROUNDING):
            C, error = last[0], last[1]  # worse than before
            steps.pop()
            break
        g = sums.gradient / total_weight
        change: Floats = factor.solve(g.T if alpha == 0 else g.T - alpha * C.T).T
        own, step = _steps(change, C, size, factor.scale)
        if len(steps) == _MOST_STEPS or not step <= (decisive[-1] / 2 if decisive else 0.5):
            break
        last, C = (C, error, objective), C + change
        gain = float(xp.vdot(change, g)) + (alpha * float(xp.vdot(change, C)) if alpha else 0.0)
        steps.append(own)
        decisive.append(step)
        if step < np.sqrt(EPS) and trusted:
            error = error - gain
            # Where nothing was left out of the factorisation, the identity above errs by this
            doubt = factor.condition * factor.level * abs(gain) if factor.rank == p else np.inf
            if not (error > last[1] / 2 and doubt <= 32 * EPS * error):
                sums = gradient(xp.ascontiguousarray(C))
                error = float(sums.squared_error.sum()) / total_weight
            break
    return Solution(C, tuple(steps), error)


def _steps(change: Floats, C: Floats, size: float, scale: Floats) -> tuple[float, float]:
    """Relative size of a change in the caller's units, and in those of A if that is larger.

    ``size`` is the norm of C.
    """
    if 0.0 in (sizes := (size, norm(C / scale))):
        return np.inf, np.inf
    own, equilibrated = norm(change) / sizes[0], norm(change / scale) / sizes[1]
    return own, max(own, equilibrated) if math.isfinite(own + equilibrated) else np.inf


# ------------------------------------------------------------------------ what is left of errors

_WORTH_SAYING = 1e-6
"""Relative error of coefficients from the Gram alone that ``info.reason`` names."""
_CANCELLED = 0.25
"""Root mean square in units of A below which a feature may be rounding alone; others are near 1."""
_SMALLEST_TARGET = 2.0**-480
"""Target above which squares keep all their digits, in sums of any length."""
_CHECK = 2e9
"""Multiply-adds that the exact rank may cost here: some tenths of a second."""
_CONVERGED = 1e-10
"""Relative error at which the corrections of a refinement have done their work."""


def rounding_of_data(n_samples: int, p: int, longest: int) -> float:
    """The rounding u of features summed over ``longest`` tokens and reduced by reflections."""
    return (max(n_samples, p) + longest + 8) * EPS


def bound(
    coefficients: Floats,
    scale: Floats,
    *,
    condition: float,
    rounding: float,
    target: float,
    residual: float | None,
    full_rank: bool,
    ridge: float,
    squares: Floats,
    summands: Floats,
) -> float | None:
    """Bound on the relative error of C (d_out, p) in the Frobenius norm; None without one.

    ``residual`` is |r|, or None for coefficients that come from the Gram alone; ``target`` is |y|.
    ``squares`` are mean squares of the features, (p,), and ``summands`` those of what the features
    are summed from.
    """
    C, D = to_host(coefficients), to_host(scale)
    own, sums = np.maximum(to_host(squares), 0.0), to_host(summands)  # third moments may cancel
    if not (np.sqrt(own + ridge) * D).max() > _CANCELLED:  # nothing but rounding
        return None
    if not (sums >= 0.99 * own).all():  # which is so but for underflow
        return None
    larger = max(1.0, float((np.sqrt(sums) * D).max()))
    if not C.any():
        return 0.0 if target == 0 else None
    if not sums.all():  # a feature that no sample has has no coefficient, exactly
        used = sums > 0
        if not used.any():  # which coefficients deny: everything has underflowed
            return None
        C, D = C[:, used], D[used]
    with np.errstate(over="ignore", invalid="ignore"):
        relative = float(D.max() / norm(C))
        sizes = norm(C / D) + target
        error = moved_by_rounding(rounding, sizes, condition, residual, larger) * relative
        if not full_rank:
            error *= float((D.max() / D.min()) ** 2)
    return error if error < 1 else None


def moved_by_rounding(
    rounding: float, sizes: float, condition: float, residual: float | None, larger: float
) -> float:
    """|delta xi| as said above, to first order, for sizes |xi| + |y|.

    Summands of features are up to so many times ``larger`` than these.
    """
    if residual is None:
        return rounding * larger * larger * condition * sizes
    return rounding * larger * (math.sqrt(condition) * sizes + condition * residual)


def left_after(steps: Sequence[float], rate: float) -> float:
    """Relative error that corrections of these sizes leave: the last one times their rate of fall.

    ``rate`` is the rate that is expected where there is only one correction.
    """
    if not steps:
        return np.inf
    if len(steps) > 1 and steps[-2] > 0:
        return steps[-1] * min(1.0, steps[-1] / steps[-2])
    return steps[-1] * min(0.5, max(rate, steps[-1]))


def squares_underflow(targets: Tokens) -> bool:
    """Whether some output has targets other than zero whose squares are next to nothing."""
    rows = targets.rows()
    most, least = (to_host(x).astype(np.float64) for x in (rows.max(axis=0), rows.min(axis=0)))
    largest = np.maximum(most, -least)
    return bool(((largest > 0) & (largest < _SMALLEST_TARGET)).any())


def confirmed(error: float | None, rank: int, data: ModularData) -> float | None:
    """The bound on the error, or None where the exact rank may be another than the numerical one.

    A rank of all samples or all features leaves no doubt, for singular values that count are far
    above rounding. Otherwise the exact rank is found modulo primes, if that takes no time.
    """
    if error is None or rank == min(data.counts.samples, data.features.count):
        return error
    return error if modular_rank(data, budget=_CHECK) == rank else None


def doubts_of_rank(factor: Factorisation, p: int) -> str:
    """What a factorisation cannot tell about the rank, in words; empty where there is no doubt."""
    if factor.rank == p and factor.name == "cholesky":
        return ""
    said = []
    if factor.name == "eigh" and factor.rank < p:
        lost = np.sqrt(factor.margin)
        said.append(
            f"rank {factor.rank} of {p} in the Gram, where singular values of the features below "
            f"{lost:.0e} of the largest may be lost"
        )
    if factor.uncertain:
        said.append("rank uncertain: a singular value is close to what counts as zero")
    return "; ".join(said)


def error_of_factorised(
    solution: Solution, factor: Factorisation, moments: MomentSums, alpha: float
) -> float | None:
    """Bound on the relative error of C by rounding, as said above; None where there is none."""
    p, n = moments.dimension, moments.n_samples
    if factor.uncertain or (factor.name == "eigh" and factor.rank < p):
        return None
    if moments.accumulation.underflow:
        return None
    weight = moments.required_weight()
    ridge = math.sqrt(alpha) * norm(solution.coefficients) if alpha else 0.0
    estimate = partial(
        bound,
        solution.coefficients,
        factor.scale,
        condition=factor.condition,
        target=math.sqrt(float(moments.sums.energy.sum()) / weight),
        full_rank=factor.rank == p,
        ridge=alpha,
        squares=moments.gram_diagonal() / weight,
        summands=moments.summand_sizes() / weight,
    )
    level = rounding_level(p, rounding_steps_of(moments))
    if factor.name != "qr" and not solution.refinements:
        return estimate(rounding=level, residual=None)
    rounding = rounding_of_data(n, p, moments.accumulation.longest)
    error = estimate(
        rounding=rounding, residual=math.hypot(math.sqrt(solution.mean_squared_error), ridge)
    )
    if error is None or factor.name == "qr":
        return error
    error += left_after(solution.refinements, level * factor.condition)
    return error if error < 1 else None


def doubts_of(
    error: float | None, factor: Factorisation, moments: MomentSums, solution: Solution
) -> str:
    """What the solution may have lost, in words; empty where there is nothing to say."""
    said = doubts_of_rank(factor, moments.dimension)
    if said:
        return said
    if error is None:
        return "the error of the coefficients is unknown: all digits may be lost"
    if factor.name != "qr" and not solution.refinements and error > _WORTH_SAYING:
        return f"forming the Gram may have cost {error:.0e} of the coefficients"
    return ""


def converged(solution: Solution, factor: Factorisation) -> bool:
    """Whether refinement has made up for what the Gram had lost, to rounding."""
    if factor.name == "qr" or not solution.coefficients.any():
        return True
    return left_after(solution.refinements, factor.level * factor.condition) <= _CONVERGED
