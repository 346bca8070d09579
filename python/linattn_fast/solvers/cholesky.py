"""Fits from the Gram: Cholesky where that is safe, eigenvectors for the solution of least norm.

    (Lambda + alpha I) C' = mean w h y'

Where the data can be read again, the solution is corrected by residuals recomputed from it
(:mod:`linattn_fast.solvers.accuracy`); from moments alone, what forming the Gram has lost stays
lost, and the loss has a bound of its own.
"""

from __future__ import annotations

from dataclasses import replace

from ..linalg.factors import ChosenFactor, NotSafe
from ..moments.factors import decompose_moments, factorise_moments, try_cholesky_of_moments
from ..moments.loss_error import loss_error
from ..moments.sums import MomentSums
from .accuracy import Solution, confirmed, converged, doubts_of, error_of_factorised, refine_on_data
from .solved import Solved, Task


def accumulated(task: Task) -> MomentSums:
    """Moments of the data of a task, made when they are first asked for and kept."""
    if task.moments is None:
        with task.stages.timed("moments"):
            task.moments = task.problem.moments(task.progress)
    return task.moments


def solve(task: Task) -> Solved:
    """Solve by Cholesky, as asked for; raises where the Gram has no Cholesky factorisation."""
    return _solved(task, _chosen(task, "cholesky"))


def solve_by_eigenvectors(task: Task) -> Solved:
    """Solve by eigenvectors of the Gram, as asked for: the solution of least norm."""
    return _solved(task, _chosen(task, "eigh"))


def solve_for_least_norm(task: Task) -> Solved:
    """Solve by eigenvectors after Cholesky was seen not to be safe."""
    moments = accumulated(task)
    with task.stages.timed("solve"):
        choice = decompose_moments(moments, task.alpha)
    return _solved(task, choice)


def solve_if_safe(task: Task) -> Solved | NotSafe:
    """Solve by Cholesky if that is safe, and if corrections on the data then converge."""
    moments = accumulated(task)
    n, p = moments.n_samples, moments.dimension
    if task.problem.n_samples is None and n < p:  # of a stream, known only now
        return NotSafe(f"{n} samples are fewer than the {p} features")
    with task.stages.timed("solve"):
        choice = try_cholesky_of_moments(moments, task.alpha)
    if isinstance(choice, NotSafe):
        return choice
    solution = _refined(task, moments, choice)
    if task.problem.gradient is not None and not converged(solution, choice.factorisation):
        return NotSafe("corrections on the data do not bring what the Gram has lost")
    return _solved(task, choice, solution)


def _chosen(task: Task, solver: str) -> ChosenFactor:
    moments = accumulated(task)
    with task.stages.timed("solve"):
        choice = factorise_moments(moments, task.alpha, solver)
    return replace(choice, reason=choice.reason.removeprefix("asked for").removeprefix("; "))


def _refined(task: Task, moments: MomentSums, choice: ChosenFactor) -> Solution:
    """Solve for C (d_out, p), and correct it on the data where that is at hand."""
    with task.stages.timed("solve"):
        C = choice.factorisation.solve(moments.cross() / moments.required_weight()).T
    if task.problem.gradient is None:
        with task.stages.timed("loss"):
            return Solution(C, (), moments.loss(C), loss_error(moments, C))
    with task.stages.timed("refine"):
        weight = moments.required_weight()
        return refine_on_data(C, choice, task.alpha, weight, task.problem.gradient)


def _solved(task: Task, choice: ChosenFactor, solution: Solution | None = None) -> Solved:
    """The solved problem of a factorisation of the Gram."""
    moments = accumulated(task)
    if solution is None:
        solution = _refined(task, moments, choice)
    return solved_by_factor(task, choice, solution)


def solved_by_factor(task: Task, choice: ChosenFactor, solution: Solution) -> Solved:
    """The solved problem of a factorisation of Lambda + alpha I, with the error of its solution."""
    moments, factor, problem = accumulated(task), choice.factorisation, task.problem
    error = error_of_factorised(solution, factor, moments, task.alpha)
    if factor.rank < moments.dimension:
        known = None if problem.samples is None else problem.modular
        error = None if known is None else confirmed(error, factor.rank, known)
    reasons = choice.reason, doubts_of(error, factor, moments, solution)
    return Solved(
        factor.name,
        problem,
        solution,
        "; ".join(filter(None, reasons)),
        condition=factor.condition,
        mean_squared_target=float(moments.sums.energy.sum()) / moments.required_weight(),
        n_samples=moments.n_samples,
        coefficient_error=error,
        factor=factor,
    )
