"""From a solution to the result of a fit: heads, and how it all went."""

from __future__ import annotations

import numpy as np

from .certificate import Certificate
from .features import Features
from .few_heads import heads_of_fit
from .memory import estimate_memory
from .moments import Moments
from .problem import Settings, Stages
from .refine import Solution
from .result import Fit, FitInfo
from .tokens import Positions


def assemble(
    solution: Solution,
    reason: str,
    condition: float,
    solver: str,
    certificate: Certificate | None,
    settings: Settings,
    stages: Stages,
    *,
    features: Features,
    positions: Positions,
    n_samples: int,
    mean_squared_target: float,
    backend: str,
    moments: Moments | None,
    iterations: int = 0,
    kept_bytes: int = 0,
) -> Fit:
    """Recover heads and put everything together."""
    heads = None
    if settings.heads is not None:
        with stages.timed("heads"):
            solution, heads = heads_of_fit(
                solution,
                settings.heads,
                features,
                condition=condition,
                alpha=float(settings.alpha),
                mean_squared_target=mean_squared_target,
                moments=moments,
            )
    coefficients = np.ascontiguousarray(solution.coefficients)
    coefficients.setflags(write=False)
    estimate = estimate_memory(
        features.d, len(coefficients), positions=positions, n_samples=n_samples, features=features
    )
    info = FitInfo(
        solver=solver,
        reason=reason,
        condition=condition,
        mean_squared_error=solution.mean_squared_error,
        mean_squared_target=mean_squared_target,
        refinements=solution.refinements,
        iterations=iterations,
        backend=backend,
        n_samples=n_samples,
        dimension=features.count,
        seconds=dict(stages),
        bytes=estimate[solver] + kept_bytes,
        heads="" if heads is None else f"{len(heads)}, {heads.recovery}",
    )
    return Fit(coefficients, features, heads, certificate, info, positions)
