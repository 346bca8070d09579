"""A fit by conjugate gradients: data as an operator, from tokens to the result."""

from __future__ import annotations

from collections.abc import Callable

from .assembling import assemble
from .backend import get_backend
from .certificate import Source
from .certifying import counted_on_data
from .estimated_certificate import estimate_certificate
from .machine import usable_memory
from .memory import as_memory_limit, estimate_memory, kept_samples_bytes
from .pcg import solve_pcg
from .problem import Problem, Settings, Stages
from .progress import IterationBar
from .result import Fit


def fit_pcg(
    problem: Problem,
    settings: Settings,
    reason: str,
    progress: bool | Callable[[int, int], object],
) -> Fit:
    """Fit without a p x p matrix; the samples are kept between passes where memory allows."""
    features, d_out, n = problem.features, problem.targets.d, problem.n_samples
    columns = len(problem.tokens) if problem.positions == "all" else n
    kept = kept_samples_bytes(features, d_out, problem.positions, columns)
    estimate = estimate_memory(
        features.d, d_out, positions=problem.positions, n_samples=n, features=features
    )
    limit = as_memory_limit(settings.memory_limit)
    keep = estimate["pcg"] + kept <= (usable_memory() // 2 if limit is None else limit)
    stages = Stages()
    operator = get_backend(problem.backend).normal_operator(
        problem.tokens, problem.targets, problem.weights, problem.positions, features, keep=keep
    )
    with stages.timed("solve"), IterationBar("conjugate gradients", progress) as watch:
        found = solve_pcg(operator, float(settings.alpha), watch)
    certificate = None
    if settings.certify:
        with stages.timed("certify"):
            # Its weights and its source of single predictions are those of the data
            counted = counted_on_data(problem.tokens, problem.weights, problem.positions, features)
            source = Source(features, None, (problem.tokens, problem.weights, problem.positions))
            certificate = estimate_certificate(
                operator, found.factors, problem.positions, counted.noise_samples, source
            )
    moments = None
    if isinstance(settings.heads, int):
        with stages.timed("moments"):
            moments = problem.moments(False)
    samples = "kept" if keep else "made anew in every pass"
    return assemble(
        found.solution,
        f"{reason}; {found.reason}; samples {samples}",
        found.condition,
        "pcg",
        certificate,
        settings,
        stages,
        features=features,
        positions=problem.positions,
        n_samples=n,
        mean_squared_target=found.mean_squared_target,
        backend=problem.backend,
        moments=moments,
        iterations=found.iterations,
        kept_bytes=kept if keep else 0,
    )
