"""How far coefficients may be from the best ones: what rounding does to a least-squares problem.

In equilibrated coordinates xi = D^-1 C' let kappa^2 be the condition number of the matrix that was
solved with, r the residual with its ridge, |r|^2 = mean w ||C h - y||^2 + alpha ||C||^2, and u the
rounding relative to the data. To first order (Wedin), |delta xi| is at most

    u kappa^2 (|xi| + |y|)                       from the Gram, whose entries err by u
    u (kappa (|xi| + |y|) + kappa^2 |r|)         from the data, whose features err by u

and |delta C| <= max(D) |delta xi|. Of short rank, the shortest C depends on the range of the data
too, which the same errors tilt; in the caller's units, a tilt counts by up to (max D / min D)^2.

Features that cancel err by u relative to their summands, so u counts by as much as these are larger
than 1 / D. And nothing is known where only rounding makes the rank short, or where products
underflow: the rank is compared with the exact one (:mod:`linattn_fast.exact.exact_rank`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from ..arrays.device import to_host
from ..arrays.types import Floats
from ..data.tokens import Tokens
from ..exact.exact_rank import modular_rank
from ..exact.modular_features import ModularData
from ..linalg.cholesky import rounding_level
from ..linalg.factors import EPS, Factorisation
from ..moments.factors import rounding_steps_of
from ..moments.sums import MomentSums
from .refinement import Solution, norm

_WORTH_SAYING = 1e-6
"""Relative error of coefficients from the Gram alone that ``info.reason`` names."""
_CANCELLED = 0.25
"""In units of A every feature is near one, but for those that may be rounding alone."""
_SMALLEST_TARGET = 2.0**-480
"""Squares of larger targets have all their digits, in sums of any length."""
_CHECK = 2e9
"""Multiply-adds that the exact rank may cost here: some tenths of a second."""
_CONVERGED = 1e-10
"""Relative error at which the corrections of a refinement have done their work."""


def rounding_of_data(n_samples: int, p: int, longest: int) -> float:
    """u of features that are summed over ``longest`` tokens and reduced by reflections."""
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
    """Relative error of C (d_out, p) in the Frobenius norm; None where nothing is known.

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
    used = sums > 0  # a feature that no sample has has no coefficient, exactly
    if not used.any():  # which coefficients deny: everything has underflowed
        return None
    C, D = C[:, used], D[used]
    with np.errstate(over="ignore", invalid="ignore"):
        sizes = norm(C / D) + target
        kappa = np.sqrt(condition)
        rounding *= larger**2 if residual is None else larger
        moved = condition * sizes if residual is None else kappa * sizes + condition * residual
        error = rounding * moved * (D.max() / norm(C))
        if not full_rank:
            error *= (D.max() / D.min()) ** 2
    return float(error) if error < 1 else None


def left_after(steps: Sequence[float], rate: float) -> float:
    """Relative error that corrections of these sizes leave: the last one times how fast they fall.

    ``rate`` is how fast they are expected to fall where there is but one.
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
    if error is None or rank == min(data.n_samples, data.features.count):
        return error
    return error if modular_rank(data, budget=_CHECK) == rank else None


def doubts_of_rank(factor: Factorisation, p: int) -> str:
    """What a factorisation cannot tell, for ``info.reason``; empty where it leaves no doubt."""
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
    """Bound on the relative error of C, :mod:`linattn_fast.solvers.accuracy`; None where there is none."""
    p, n = moments.dimension, moments.n_samples
    if factor.uncertain or (factor.name == "eigh" and factor.rank < p):
        return None
    if moments.accumulation.underflow:
        return None
    energy = float(moments.sums.energy.sum()) / moments.required_weight()
    ridge = np.sqrt(alpha) * norm(solution.coefficients)
    estimate = partial(
        bound,
        solution.coefficients,
        factor.scale,
        condition=factor.condition,
        target=float(np.sqrt(energy)),
        full_rank=factor.rank == p,
        ridge=alpha,
        squares=moments.gram_diagonal() / moments.required_weight(),
        summands=moments.summand_sizes() / moments.required_weight(),
    )
    level = rounding_level(p, rounding_steps_of(moments))
    if factor.name != "qr" and not solution.refinements:
        return estimate(rounding=level, residual=None)
    rounding = rounding_of_data(n, p, moments.accumulation.longest)
    error = estimate(
        rounding=rounding, residual=float(np.hypot(np.sqrt(solution.mean_squared_error), ridge))
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
    """Whether refinement left no more than rounding of what a Gram has lost."""
    if factor.name == "qr" or not solution.coefficients.any():
        return True
    return left_after(solution.refinements, factor.level * factor.condition) <= _CONVERGED
