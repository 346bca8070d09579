"""A fit by conjugate gradients: data as an operator, wherever it is, to the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .assembling import assemble
from .backend import get_backend
from .certificate_source import Source
from .certifying import counted_on_data
from .estimated_certificate import estimate_certificate
from .machine import usable_memory
from .memory import as_memory_limit, estimate_memory, kept_samples_bytes
from .modular_features import Reading
from .moments import Moments
from .normal_operator import NormalOperator
from .pcg import solve_pcg
from .problem import Problem, Settings, Stages
from .progress import IterationBar
from .result import Fit
from .streamed_problem import Data, StreamedProblem, tokens_of
from .summed_operator import streamed_operator
from .tokens import Positions


def fit_pcg(
    problem: Data,
    settings: Settings,
    reason: str,
    progress: bool | Callable[[int, Any], object],
) -> Fit:
    """Fit without a p x p matrix."""
    operator: NormalOperator
    if isinstance(problem, StreamedProblem):
        operator = streamed = streamed_operator(problem)
        noise_samples, source, kept = streamed.noise_samples, None, 0
        reason = f"{reason}; the stream read in every pass"
    else:
        operator, kept = _operator_in_memory(problem, settings)
        # Weights and the source of single predictions are those of the data
        counted = counted_on_data(
            problem.tokens, problem.weights, problem.positions, problem.features
        )
        noise_samples, source = counted.noise_samples, counted.source
        reason = f"{reason}; samples {'kept' if kept else 'made anew in every pass'}"
    return fit_operator(
        operator,
        settings,
        reason,
        progress,
        positions=problem.positions,
        backend=problem.backend,
        noise_samples=noise_samples,
        source=source,
        moments=lambda: problem.moments(False),
        kept_bytes=kept,
        read=lambda: tokens_of(problem),
    )


def _operator_in_memory(problem: Problem, settings: Settings) -> tuple[NormalOperator, int]:
    """The data as an operator, and the bytes of its samples if memory allows to keep them."""
    features, d_out, n = problem.features, problem.d_out, problem.n_samples
    columns = len(problem.tokens) if problem.positions == "all" else n
    kept = kept_samples_bytes(features, d_out, problem.positions, columns)
    estimate = estimate_memory(
        features.d, d_out, positions=problem.positions, n_samples=n, features=features
    )
    limit = as_memory_limit(settings.memory_limit)
    keep = estimate["pcg"] + kept <= (usable_memory() // 2 if limit is None else limit)
    operator = get_backend(problem.backend, problem.tokens).normal_operator(
        problem.tokens, problem.targets, problem.weights, problem.positions, features, keep=keep
    )
    return operator, kept if keep else 0


def fit_operator(
    operator: NormalOperator,
    settings: Settings,
    reason: str,
    progress: bool | Callable[[int, Any], object],
    *,
    positions: Positions,
    backend: str,
    noise_samples: float,
    source: Source | None,
    moments: Callable[[], Moments],
    kept_bytes: int = 0,
    read: Callable[[], Reading] | None = None,
) -> Fit:
    """Fit to data that is known as an operator.

    Parameters
    ----------
    noise_samples, source
        For the certificate: total weight over the largest, and what answers for single inputs.
    moments
        Makes the moments, if a number of heads is asked for.
    kept_bytes
        Of samples kept between passes, for ``info``.
    read
        Reads the data, for proofs about its exact rank.
    """
    stages = Stages()
    with stages.timed("solve"), IterationBar("conjugate gradients", progress) as watch:
        found = solve_pcg(operator, float(settings.alpha), watch, settings.tol)
    certificate = None
    if settings.certify:
        with stages.timed("certify"):
            known = Source(operator.features, None) if source is None else source
            certificate = estimate_certificate(
                operator, found.factors, positions, noise_samples, known, read
            )
            certificate = replace(certificate, source=source)
    sums = None
    if isinstance(settings.heads, int):
        with stages.timed("moments"):
            sums = moments()
    return assemble(
        found.solution,
        f"{reason}; {found.reason}",
        found.condition,
        "pcg",
        certificate,
        settings,
        stages,
        features=operator.features,
        positions=positions,
        n_samples=operator.n_samples,
        mean_squared_target=found.mean_squared_target,
        backend=backend,
        moments=sums,
        iterations=found.iterations,
        kept_bytes=kept_bytes,
    )
