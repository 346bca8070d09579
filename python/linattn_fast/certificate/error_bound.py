"""How far predictions can be apart at an input, given its leverage.

    two layers whose mean squared training errors are at most eps differ, in each output, by
    at most  2 sqrt(eps leverage)

    with independent noise of at most b on the targets, the least-squares prediction errs with
    probability 1 - delta by at most  b sqrt(2 log(2 / delta) leverage w_max / W)     (Hoeffding)

Both are sqrt(leverage) times a factor that does not depend on the input.
"""

from __future__ import annotations

import numpy as np

from ..arrays.device import module_of
from ..arrays.types import Floats


def factor_for_errors(eps: float) -> float:
    """The factor 2 sqrt(eps) for layers with mean squared training errors of at most eps."""
    return float(2 * np.sqrt(_checked(eps, "eps")))


def factor_for_noise(noise: float, confidence: float, noise_samples: float) -> float:
    """The factor b sqrt(2 log(2 / delta) w_max / W), with ``noise_samples`` = W / w_max."""
    size = _checked(noise, "noise")
    return float(size * np.sqrt(2 * np.log(2 / (1 - confidence)) / noise_samples))


def _checked(size: object, name: str) -> float:
    if not (isinstance(size, int | float | np.number) and 0 <= float(size) < np.inf):
        raise ValueError(f"{name}: a finite number that is not negative is needed, got {size!r}")
    return float(size)


def bounded_by(leverage: Floats, factor: float, n_samples: int) -> Floats:
    """The bound factor sqrt(leverage), rounded up, (rows,); infinite where the leverage is.

    W is a sum of ``n_samples`` weights, and the formulas have a few roundings of their own.
    """
    xp = module_of(leverage)
    factor *= 1 + (n_samples + 16) * float(np.finfo(np.float64).eps)
    # Layers that agree exactly on the data still disagree where it says nothing: no 0 times inf.
    nothing = xp.isinf(leverage)
    bound: Floats = xp.where(nothing, np.inf, factor * xp.sqrt(xp.where(nothing, 0.0, leverage)))
    return bound
