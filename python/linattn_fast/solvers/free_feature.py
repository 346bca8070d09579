"""The coefficients that a ridge on all features but one has, from those of two ordinary ridges.

    x = c + (e - t) c_0 / t_0        for each output

with c its coefficients by the ordinary ridge, and t those of the feature number 0 as a target,
which :mod:`linattn_fast.problem.constant_target` has made the last of the targets. To first order,
coefficients that err by delta in all rows together, and r = e - t, make x err by at most

    delta (1 + |r| / t_0 + |c_0| / t_0 (1 + |r| / t_0))
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..arrays.device import module_of, to_host
from ..arrays.types import Floats
from ..moments.loss_error import loss_error
from ..moments.sums import MomentSums
from ..problem.constant_target import ConstantTarget
from .accuracy import Solution, norm
from .solved import Solved, Task


def with_free_feature(task: Task, solved: Solved, target: ConstantTarget) -> Solved:
    """The solved problem in which the ridge leaves out a feature."""
    both = solved.solution.coefficients  # (d_out + 1, p)
    C, error = _combined(both, target.feature, target.scale)
    if solved.coefficient_error is not None:
        error *= solved.coefficient_error * norm(both) / norm(C) if C.any() else 0.0
    with task.stages.timed("loss"):
        solution, squared_target = _measured(task, solved, target, C)
    return replace(
        solved,
        solution=solution,
        mean_squared_target=squared_target,
        reason="; ".join(filter(None, (solved.reason, "the constant is not penalised"))),
        coefficient_error=error if solved.coefficient_error is not None and error < 1 else None,
    )


def _combined(both: Floats, feature: int, scale: float) -> tuple[Floats, float]:
    """The coefficients x (d_out, p), and by how much they enlarge the error of those given."""
    xp = module_of(both)
    rest, ratio = -both[-1], both[:-1, feature] / both[-1, feature]  # scale r; c_0 / (scale t_0)
    rest[feature] += scale
    C: Floats = xp.ascontiguousarray(both[:-1] + ratio[:, None] * rest)
    turned = norm(rest) / abs(float(both[-1, feature]))
    return C, 1 + turned + float(np.linalg.norm(to_host(ratio))) * (1 + turned)


def _measured(
    task: Task, solved: Solved, target: ConstantTarget, C: Floats
) -> tuple[Solution, float]:
    """The solution with the errors that it leaves on the data, and the mean squared target."""
    gradient, given = target.original.gradient, solved.solution
    moments = None if task.moments is None else _without_last(task.moments)
    if gradient is None:
        assert moments is not None
        solution = Solution(C, given.refinements, moments.loss(C), loss_error(moments, C))
        return solution, float(moments.sums.energy.sum()) / moments.required_weight()
    weight = _weight(task, solved)
    error = float(gradient(C).squared_error.sum()) / weight
    energy = gradient(0 * C).squared_error if moments is None else moments.sums.energy
    return Solution(C, given.refinements, error), float(energy.sum()) / weight


def _weight(task: Task, solved: Solved) -> float:
    """Total weight of the samples."""
    if task.moments is not None:
        return task.moments.required_weight()
    if solved.passes is not None:
        return solved.passes.operator.total_weight
    samples = solved.problem.samples
    assert samples is not None
    return samples.total_weight


def _without_last(moments: MomentSums) -> MomentSums:
    """Moments of all outputs but the last."""
    totals = moments.sums
    fewer = replace(totals, cross=totals.cross[:-1], energy=totals.energy[:-1])
    d_out = moments.d_out - 1
    return MomentSums(moments.features, moments.positions, d_out, moments.precision, fewer)
