"""A fit by conjugate gradients: data as an operator, wherever it is, to the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ..arrays.types import Floats, Positions
from ..backend.choice import get_backend
from ..backend.normal_operator import NormalOperator
from ..certificate.certifying import counted_on_data
from ..certificate.estimated import estimate_certificate
from ..certificate.source import Source
from ..data.non_finite import largest_size, underflow_error
from ..exact.modular_features import Reading
from ..features.accumulation import summand_sizes
from ..moments.moments import Moments
from ..problem.in_memory import Problem
from ..problem.streamed import Data, StreamedProblem, tokens_of
from ..problem.summed import streamed_operator
from ..solvers.accuracy import squares_underflow
from ..solvers.conjugate_gradients.pcg import solve_pcg
from ..solvers.memory import estimate_memory, kept_samples_bytes
from ..system.machine import as_memory_limit, usable_memory
from ..system.progress import IterationBar, Stages
from .assembling import assemble
from .result import Fit
from .settings import Settings

_SOME = 256
"""Sequences that show how far features cancel."""
_SMALLEST_TOKEN = float(np.finfo(np.float64).tiny) ** (1 / 6)
"""Features are cubic, and their squares are summed."""


def fit_pcg(
    problem: Data,
    settings: Settings,
    reason: str,
    progress: bool | Callable[[int, Any], object],
    otherwise: Callable[[str], Fit] | None = None,
) -> Fit:
    """Fit without a p x p matrix; ``otherwise`` as for :func:`fit_operator`."""
    operator: NormalOperator
    if isinstance(problem, StreamedProblem):
        operator = streamed = streamed_operator(problem)
        noise_samples, source, kept = streamed.noise_samples, None, 0
        with problem.parts() as parts:
            _require_visible(next(parts))
        reason = f"{reason}; the stream read in every pass"
    else:
        operator, kept = _operator_in_memory(problem, settings)
        # Weights and the source of single predictions are those of the data
        counted = counted_on_data(
            problem.tokens, problem.weights, problem.positions, problem.features
        )
        noise_samples, source = counted.noise_samples, counted.source
        _require_visible(problem)
        reason = f"{reason}; samples {'kept' if kept else 'made anew in every pass'}"
    fit = fit_operator(
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
        otherwise=otherwise,
        larger=_larger_summands(problem) if isinstance(problem, Problem) else None,
    )
    if isinstance(problem, Problem) and squares_underflow(problem.targets):
        reason = f"{fit.info.reason}; squares of targets underflow, so that nothing is known"
        fit = replace(fit, info=replace(fit.info, reason=reason, coefficient_error=None))
    return fit


def _larger_summands(problem: Problem) -> Floats | None:
    """Mean squares of the features' summands over those of the features, (p,), of some sequences.

    None with all features, where the sums of conjugate gradients bound them.
    """
    features, positions = problem.features, problem.positions
    if features.everything or problem.tokens.device is not None:
        return None
    chosen = np.linspace(0, len(problem.tokens) - 1, min(len(problem.tokens), _SOME)).astype(
        np.intp
    )
    some = problem.tokens.chosen(chosen)
    weights = None if problem.weights is None else problem.weights[chosen]
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        summands = summand_sizes(some, weights, positions, features)
        s, z = features.samples(some, positions)
        w = np.ones(len(some)) if weights is None else weights
        squares = (s**2).T @ (
            z**2 * (w if positions == "last" else np.repeat(w, some.lengths))[:, None]
        )
        ratio = np.where(squares > 0, summands / squares, 1.0)
    return np.maximum(ratio, 1.0).reshape(-1)


def _require_visible(problem: Problem) -> None:
    """Raise where no square of a feature is above zero, although there are tokens that are not."""
    most = largest_size(problem.tokens) * float(np.sqrt(problem.tokens.lengths.max()))
    if problem.features.everything and 0 < most < _SMALLEST_TOKEN:
        raise underflow_error(problem.tokens)


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
    otherwise: Callable[[str], Fit] | None = None,
    larger: Floats | None = None,
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
    otherwise
        Another way to fit, taken with the reason where the accuracy of this one is unknown and the
        solution is not known to be of least norm.
    larger
        How far features cancel, see :func:`~linattn_fast.solvers.conjugate_gradients.pcg.solve_pcg`.
    """
    stages = Stages()
    with stages.timed("solve"), IterationBar("conjugate gradients", progress) as watch:
        found = solve_pcg(operator, float(settings.alpha), watch, settings.tol, larger)
    if otherwise is not None and found.error is None and not found.least_norm:
        return otherwise(f"{reason}; conjugate gradients took {found.reason}")
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
        coefficient_error=found.error,
    )
