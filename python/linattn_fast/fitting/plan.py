"""The solver that "auto" takes for the data of a fit, and why."""

from __future__ import annotations

from dataclasses import replace

from ..problem.streamed import Data, StreamedProblem
from ..solvers.costs import PATIENCE, choose_solver, predict_orthogonal
from ..solvers.memory import estimate_memory
from ..system.machine import as_memory_limit, in_words, usable_memory
from .settings import Settings


def chosen_by_auto(settings: Settings, problem: Data) -> tuple[Settings, str]:
    """Settings with the solver that "auto" takes, and why; "auto" stays for Cholesky's chain."""
    n, features = problem.n_samples, problem.features
    limit = as_memory_limit(settings.memory_limit)
    if isinstance(settings.heads, int):
        if n is not None and n < features.count:
            why = f"{n} samples are fewer than the {features.count} features"
            return replace(settings, solver="dual"), why
        return settings, "a number of heads needs the Gram in any case"
    if isinstance(problem, StreamedProblem):
        return _chosen_for_stream(settings, problem, limit)
    name, why = choose_solver(
        features,
        problem.d_out,
        problem.positions,
        problem.n_samples,
        len(problem.tokens) if problem.positions == "all" else problem.n_samples,
        certify=settings.certify,
        memory_limit=limit,
    )
    if name == "cholesky":
        return settings, why
    return replace(settings, solver="dual" if name == "dual" else "pcg"), why


def may_factorise(settings: Settings, problem: Data) -> bool:
    """Whether a Gram and orthogonal transformations fit in memory, and in PATIENCE seconds."""
    n, features, limit = problem.n_samples, problem.features, as_memory_limit(settings.memory_limit)
    if isinstance(problem, StreamedProblem) or n is None:
        return False
    estimate = estimate_memory(
        features.d, problem.d_out, positions=problem.positions, n_samples=n, features=features
    )
    available = usable_memory() if limit is None else limit
    fits = max(estimate["cholesky"], estimate["qr"]) <= available
    return fits and predict_orthogonal(features, n) <= PATIENCE


def _chosen_for_stream(
    settings: Settings, problem: StreamedProblem, limit: int | None
) -> tuple[Settings, str]:
    """Cholesky, which reads the data least often, or for few samples the dual; else PCG."""
    n, features = problem.n_samples, problem.features
    estimate = estimate_memory(
        problem.d, problem.d_out, positions=problem.positions, n_samples=n, features=features
    )
    available = usable_memory() if limit is None else limit
    few = n is not None and n < features.count
    if few and estimate["dual"] + problem.bytes_to_load <= available:
        why = f"{n} samples are fewer than the {features.count} features"
        return replace(settings, solver="dual"), why
    if estimate["cholesky"] <= available:
        return settings, "a stream, which Cholesky reads least often"
    size = in_words(estimate["cholesky"])
    why = f"Cholesky needs {size}, more than the {in_words(available)} that may be used"
    return replace(settings, solver="pcg"), why
