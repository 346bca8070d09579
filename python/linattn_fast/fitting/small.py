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
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from ..arrays.compiled import core
from ..arrays.floats import gamma
from ..arrays.types import Floats
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
from ..features.samples import Samples
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

MOST_FEATURES = 128
"""Features up to which matrices stay in the cache, and rows one by one are factorised fastest."""
MOST_SAMPLES = 2048
"""Samples up to which one thread is about as fast as several, and all are kept."""
MOST_NUMBERS = 1 << 18
"""Coordinates of tokens up to which that is so."""
WHY = "a small problem"
"""Why it is tried, in ``info.reason``."""
_MATRICES = 5
"""Matrices of all features that are formed."""


def is_small(problem: Problem, settings: Settings) -> bool:
    """Whether a fit with default arguments, but for alpha and certify, is tried in one call."""
    if not isinstance(problem, InMemory) or problem.features.count > MOST_FEATURES:
        return False
    samples, n = problem.samples, problem.n_samples
    return (
        problem.features.count <= n <= MOST_SAMPLES
        and problem.engine.name == "cpu"
        and problem.precision == "float64"
        and problem.positions != "all"
        and problem.features.everything
        and settings.solver == "auto"
        and settings.memory_limit is None
        and not isinstance(settings.heads, int)
        and settings.certify != "sharp"
        and not isinstance(samples.tokens, States)
        and samples.tokens.n_rows * problem.features.d <= MOST_NUMBERS
    )


def bytes_of_small(problem: Problem) -> int:
    """Estimate the bytes that a small problem takes: its matrices, and its samples as rows."""
    n, features = problem.n_samples or 0, problem.features
    rows = 2 * (features.n_pairs + features.d) + 3 * problem.d_out
    return 8 * (_MATRICES * features.count**2 + rows * n)


class Limits(NamedTuple):
    """Bounds on roundings for problems of some sizes."""

    limits: core.SmallLimits
    level: float
    """Rounding of a solution from the Gram, times its condition number at most."""
    of_data: float
    """Rounding of features."""
    of_weight: float
    """Rounding of the total weight."""


@lru_cache(maxsize=64)
def limits_of(p: int, n_samples: int, longest: int) -> Limits | None:
    """The bounds for some sizes; None where there are too many roundings for any."""
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
    return Limits(limits, level, rounding_of_data(n_samples, p, longest), of_weight)


class SmallFit(NamedTuple):
    """What ``core.fit_small`` returns, by name."""

    coefficients: Floats
    """Coefficients C, (d_out, p)."""
    condition: float
    mean_target: float
    mean_error: float
    steps: tuple[float, ...]
    """Relative sizes of the corrections."""
    largest_summand: float
    """Root mean square of what a feature is summed from, relative to the feature's own."""
    size: float
    """Frobenius norm of C."""
    scaled_size: float
    """Norm of C / D."""
    largest_scale: float
    """Largest entry of D."""
    smallest: float
    """Smallest eigenvalue of Lambda."""
    largest: float
    """Largest eigenvalue of Lambda."""
    tau: float
    """A number with G >= tau I, proved."""
    fraction: float
    """What part of an estimate of lambda_min that is."""
    spent: tuple[float, float, float, float]
    """Seconds, stage by stage."""

    def coefficient_error(self, alpha: float, bounds: Limits) -> float:
        """The bound of ``error_of_factorised`` (solvers/accuracy.py), from sizes that are known."""
        residual = math.hypot(math.sqrt(self.mean_error), math.sqrt(alpha) * self.size)
        sizes, larger = self.scaled_size + math.sqrt(self.mean_target), self.largest_summand
        moved = moved_by_rounding(bounds.of_data, sizes, self.condition, residual, max(1.0, larger))
        left = left_after(self.steps, bounds.level * self.condition)
        return moved * self.largest_scale / self.size + left

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of each stage."""
        return dict(zip(("moments", "solve", "refine", "certify"), self.spent, strict=True))

    def solved(self, problem: Problem, alpha: float, bounds: Limits) -> Solved:
        """The solved problem, without its certificate."""
        return Solved(
            "cholesky",
            problem,
            Solution(self.coefficients, self.steps, self.mean_error),
            "well-conditioned Gram",
            condition=self.condition,
            mean_squared_target=self.mean_target,
            n_samples=problem.n_samples or 0,
            coefficient_error=self.coefficient_error(alpha, bounds),
        )

    def certificate(self, samples: Samples, bounds: Limits) -> Certificate:
        """Certificate of G >= tau I, with moments that are summed when a question needs them."""
        bound = bound_on_mean(self.tau, samples.total_weight, bounds.of_weight)
        return proved_certificate(
            Proof(bound, shifted_by(self.fraction)),
            (self.smallest, self.largest),
            samples.n_samples,
            samples.positions,
            samples.noise_samples,
            DeterminedRange(samples.features, None, samples),
        )


_NOT_SAFE = NotSafe("")


def solve(task: Task) -> Solved | NotSafe:
    """Solve and certify a small problem, or say nothing where that is not safe."""
    problem, alpha = task.problem, task.alpha
    assert isinstance(problem, InMemory)
    samples = problem.samples
    bounds = limits_of(problem.features.count, problem.n_samples, samples.longest)
    if bounds is None:
        return _NOT_SAFE
    numbers = core.fit_small(
        samples.compiled, samples.total_weight, alpha, bounds.limits, task.certify
    )
    if numbers is None:
        return _NOT_SAFE
    found = SmallFit(*numbers)
    if not found.coefficient_error(alpha, bounds) < 1:
        return _NOT_SAFE
    task.stages.update(found.seconds)
    solved = found.solved(problem, alpha, bounds)
    if not task.certify:
        return solved
    return replace(solved, certificate=found.certificate(samples, bounds))
