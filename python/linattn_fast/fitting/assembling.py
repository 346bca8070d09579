"""From a solution to the result of a fit: heads, and how it all went."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..arrays.device import frozen, module_of, put, to_host
from ..arrays.types import Positions
from ..certificate.certificate import Certificate
from ..features.features import Features
from ..heads.recovery import heads_of_fit
from ..linalg.refine import Solution
from ..moments.moments import Moments
from ..solvers.memory import estimate_memory
from ..system.stages import Stages
from .result import Fit, FitInfo
from .settings import Settings


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
    path: str = "",
    iterations: int = 0,
    kept_bytes: int = 0,
    coefficient_error: float | None = None,
) -> Fit:
    """Recover heads and put everything together.

    Raises
    ------
    ValueError
        The coefficients, or the errors that they leave, are beyond float64.
    """
    _require_finite(solution, mean_squared_target)
    heads = None
    place = solution.coefficients
    if settings.heads is not None:
        with stages.timed("heads"):  # a search on the host, wherever the coefficients are
            solution, heads = heads_of_fit(
                replace(solution, coefficients=to_host(place)),
                settings.heads,
                features,
                condition=condition,
                alpha=float(settings.alpha),
                mean_squared_target=mean_squared_target,
                moments=None if moments is None else moments.get(),
            )
            heads = heads.put(place)
    coefficients = frozen(module_of(place).ascontiguousarray(put(solution.coefficients, place)))
    estimate = estimate_memory(
        features.d, len(coefficients), positions=positions, n_samples=n_samples, features=features
    )
    info = FitInfo(
        solver=solver,
        reason=reason,
        condition=condition,
        mean_squared_error=solution.mean_squared_error,
        mean_squared_error_bound=solution.error_bound,
        mean_squared_target=mean_squared_target,
        refinements=solution.refinements,
        iterations=iterations,
        backend=backend,
        path=path,
        n_samples=n_samples,
        dimension=features.count,
        seconds=dict(stages),
        bytes=estimate.get(solver, 0) + kept_bytes,  # "blocks" has its own
        # A number of heads changes the coefficients
        coefficient_error=None if isinstance(settings.heads, int) else coefficient_error,
        heads="" if heads is None else f"{len(heads)}, {heads.recovery}",
    )
    return Fit(coefficients, features, heads, certificate, info, positions)


def _require_finite(solution: Solution, mean_squared_target: float) -> None:
    C = solution.coefficients
    if not np.isfinite(mean_squared_target):
        raise ValueError("y: squares of the targets overflow float64; rescale y")
    if not module_of(C).isfinite(C).all():
        raise ValueError(
            f"y: targets of mean square {mean_squared_target:.3g} have coefficients that overflow "
            "float64, for the size of the tokens; rescale Z or y"
        )
    if not np.isfinite(solution.mean_squared_error):
        raise ValueError(
            "Z: products of tokens and coefficients overflow float64; rescale the tokens"
        )
