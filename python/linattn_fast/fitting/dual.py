"""A fit from the kernel of the samples, for fewer samples than features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays.types import Floats
from ..backend.choice import get_backend
from ..certificate.certifying import certificate_from, certifying_factor, counted_on_data
from ..certificate.leverage import may_underflow
from ..exact.modular_features import Reading
from ..problem.in_memory import Problem, on_current_device
from ..problem.streamed import tokens_of
from ..solvers.accuracy import confirmed, squares_underflow
from ..solvers.dual import Kernel, solve_dual
from ..system.machine import as_memory_limit
from ..system.progress import Stages
from .assembling import assemble
from .result import Fit
from .settings import Settings


def fit_dual(
    problem: Problem,
    settings: Settings,
    why: str,
    *,
    progress: bool | Callable[[int, Any], object],
) -> Fit:
    """Fit from the kernel of the samples; only a certificate may need a p x p matrix."""
    n, p = problem.n_samples, problem.features.count
    stages = Stages()
    if problem.backend == "cuda":
        problem = on_current_device(problem)
    with stages.timed("kernel"), np.errstate(over="ignore", invalid="ignore"):
        kernel = Kernel.of(problem.tokens, problem.weights, problem.positions, problem.features)
        kernel.require_finite(problem.tokens)
    y = problem.targets.rows().astype(np.float64)
    with stages.timed("solve"):
        dual = solve_dual(
            kernel,
            y,
            float(settings.alpha),
            _summand_sizes(problem),
            int(problem.tokens.lengths.max()),
        )
    certificate, moments = None, None
    if isinstance(settings.heads, int) or (settings.certify and n >= p):
        with stages.timed("moments"):
            moments = problem.moments(progress)
    if settings.certify:
        with stages.timed("certify"):
            if n < p or moments is None:
                certificate = counted_on_data(
                    problem.tokens, problem.weights, problem.positions, problem.features
                )
            else:
                limit = as_memory_limit(settings.memory_limit)

                def read() -> Reading:
                    return tokens_of(problem)

                factor = certifying_factor(moments, read, limit)
                data = (problem.tokens, problem.weights, problem.positions)
                certificate = certificate_from(moments, factor, read=read, data=data)
    root = kernel.root[:, None] / kernel.root.max()
    error = None
    if not (may_underflow(problem.tokens).any() or squares_underflow(problem.targets)):
        error = confirmed(dual.error, dual.rank, problem.modular)
    unknown = "; the error of the coefficients is unknown" if error is None else ""
    return assemble(
        dual.solution,
        f"{why}; {dual.reason}{unknown}",
        dual.condition,
        "dual",
        certificate,
        settings,
        stages,
        features=problem.features,
        positions=problem.positions,
        n_samples=n,
        mean_squared_target=float(((root * y) ** 2).sum() / (root**2).sum()),
        backend=problem.backend,
        moments=moments,
        coefficient_error=error,
    )


def _summand_sizes(problem: Problem) -> Floats:
    """Sum of w S_jj S_kk z_l^2, (p,)."""
    engine = get_backend(problem.backend, problem.tokens)
    with np.errstate(over="ignore"):
        found = engine.summand_sizes(
            problem.tokens, problem.weights, problem.positions, problem.features
        )
    return found.reshape(-1)
