"""Small problems, from tokens to coefficients and a proof in one call of compiled code.

Many experiments are thousands of fits of some dozens of features, where arithmetic takes less time
than the calls around it. ``csrc/core/small_fit.hpp`` does for them what
:mod:`linattn_fast.solvers.cholesky`, :mod:`linattn_fast.solvers.accuracy` and
:mod:`linattn_fast.certificate.part_proof` do, on the calling thread. Bounds on roundings are made
here, from the same functions. Whatever is not safe there (a rank that is short, an underflow,
corrections that do not converge, a bound that is not proved) is left to the usual plan, as if
nothing had been tried.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from ..arrays.compiled import core
from ..arrays.floats import gamma
from ..certificate.determined_range import DeterminedRange
from ..certificate.lower_bound import (
    LITTLE,
    MARGIN,
    Proof,
    backward,
    bound_on_mean,
    lost_by_rounding,
    shifted_by,
)
from ..certificate.part_proof import proved_certificate
from ..data.states import States
from ..linalg.cholesky import rounding_level
from ..linalg.factors import MOST_CONDITION, NotSafe
from ..moments.sums import rounding_of_feature
from ..problem.in_memory import InMemory
from ..problem.interface import Problem
from ..solvers.accuracy import Solution, left_after, moved_by_rounding, rounding_of_data
from ..solvers.solved import Solved, Task

if TYPE_CHECKING:
    from ..certificate.certificate import Certificate
    from .plan import Settings

_MOST_FEATURES = 128
"""Features up to which matrices stay in the cache, and rows one by one are factorised fastest."""
_MOST_SAMPLES = 2048
"""Samples up to which one thread is about as fast as several, and all are kept."""
_MOST_NUMBERS = 1 << 18
"""Coordinates of tokens up to which that is so."""
_MATRICES = 5
"""Matrices of all features that are formed."""


def is_small(problem: Problem, settings: Settings) -> bool:
    """Whether a fit with default arguments, but for alpha and certify, is tried in one call."""
    if not isinstance(problem, InMemory) or problem.features.count > _MOST_FEATURES:
        return False
    samples, n = problem.samples, problem.n_samples
    return (
        problem.features.count <= n <= _MOST_SAMPLES
        and problem.engine.name == "cpu"
        and problem.precision == "float64"
        and problem.positions != "all"
        and problem.features.everything
        and settings.solver == "auto"
        and settings.memory_limit is None
        and not isinstance(settings.heads, int)
        and settings.certify != "sharp"
        and not isinstance(samples.tokens, States)
        and samples.tokens.n_rows * problem.features.d <= _MOST_NUMBERS
    )


def bytes_of_small(problem: Problem) -> int:
    """Estimate the bytes that a small problem takes."""
    n, features = problem.n_samples or 0, problem.features
    rows = 2 * (features.n_pairs + features.d) + 3 * problem.d_out
    return 8 * (_MATRICES * features.count**2 + rows * n)


class _Limits(NamedTuple):
    """Bounds on roundings for problems of some sizes."""

    limits: core.SmallLimits
    level: float
    """Of a solution from the Gram."""
    of_data: float
    """Of features."""
    of_weight: float
    """Of the total weight."""


@lru_cache(maxsize=64)
def _limits(p: int, n_samples: int, longest: int) -> _Limits | None:
    """The bounds; None where there are too many roundings for any."""
    wide = core.roundings_of_rows(n_samples)
    # S has longest + 2 roundings, three times, as in MomentSums.relative_errors
    error, of_weight = gamma(3 * (longest + 2) + wide), gamma(n_samples + wide)
    if not (error < 0.5 and of_weight < 0.5):
        return None
    level = rounding_level(p, wide)
    limits = core.SmallLimits(
        level=level,
        cancelled=rounding_of_feature(longest) ** 2,
        ridge=MOST_CONDITION,
        lost=lost_by_rounding(error, error, p),
        rounding=LITTLE,
        backward=backward(p),
        margin=MARGIN,
    )
    return _Limits(limits, level, rounding_of_data(n_samples, p, longest), of_weight)


_NOT_SAFE = NotSafe("")


def solve(task: Task) -> Solved | NotSafe:
    """Solve and certify a small problem, or say nothing where that is not safe."""
    problem, alpha = task.problem, task.alpha
    assert isinstance(problem, InMemory)
    samples, n = problem.samples, problem.n_samples
    bounds = _limits(problem.features.count, n, samples.longest)
    weight = samples.total_weight
    if bounds is None:
        return _NOT_SAFE
    found = core.fit_small(samples.compiled, weight, alpha, bounds.limits, task.certify)
    if found is None:
        return _NOT_SAFE
    C, condition, target, error, steps, larger, size, scaled, scale, *proof, seconds = found
    # The same as error_of_factorised, from sizes that are known
    residual = math.hypot(math.sqrt(error), math.sqrt(alpha) * size)
    sizes = scaled + math.sqrt(target)
    moved = moved_by_rounding(bounds.of_data, sizes, condition, residual, max(1.0, larger))
    left = moved * scale / size + left_after(steps, bounds.level * condition)
    if not left < 1:
        return _NOT_SAFE
    for name, spent in zip(("moments", "solve", "refine", "certify"), seconds, strict=True):
        task.stages[name] = spent
    return Solved(
        "cholesky",
        problem,
        Solution(C, steps, error),
        "well-conditioned Gram",
        condition=condition,
        mean_squared_target=target,
        n_samples=n,
        coefficient_error=left,
        certificate=_certificate(problem, bounds.of_weight, *proof) if task.certify else None,
    )


def _certificate(
    problem: InMemory,
    weight_error: float,
    smallest: float,
    largest: float,
    tau: float,
    fraction: float,
) -> Certificate:
    """Certificate of G >= tau I, with moments that are summed when a question needs them."""
    samples = problem.samples
    bound = bound_on_mean(tau, samples.total_weight, weight_error)
    return proved_certificate(
        Proof(bound, shifted_by(fraction)),
        (smallest, largest),
        problem.n_samples,
        problem.positions,
        samples.noise_samples,
        DeterminedRange(problem.features, None, samples),
    )
