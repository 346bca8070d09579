"""How many iterations random samples would take.

The second moment of N whitened samples of p features has, for r = N / p > 1, eigenvalues between
(1 - r^-1/2)^2 and (1 + r^-1/2)^2 (Marchenko and Pastur), so that conjugate gradients reach a
relative residual eps after about

    sqrt(kappa) / 2  ln(2 / eps)          sqrt(kappa) = (sqrt(r) + 1) / (sqrt(r) - 1)

iterations, each of which passes over N samples. Iterations times N are least at
sqrt(r) = (1 + sqrt(5)) / 2: with fewer samples, more of them would be faster.
"""

from __future__ import annotations

import math

FASTEST = ((1 + math.sqrt(5)) / 2) ** 2
"""Samples a feature, 2.6, at which a solve takes the least time."""
_LARGEST_ROOT = 50.0
"""Largest root of the condition number that is reckoned with: few samples a feature."""
_SLOWER = 1.3
"""Times the least that a solve takes from which on it is worth saying."""


def root_condition(n_samples: int, dimension: int) -> float:
    """sqrt(kappa), at most 50."""
    root = math.sqrt(n_samples / dimension)
    return min((root + 1) / (root - 1), _LARGEST_ROOT) if root > 1 else _LARGEST_ROOT


def expected_iterations(n_samples: int, dimension: int, residual: float) -> int:
    """Iterations to a relative residual."""
    return math.ceil(0.5 * root_condition(n_samples, dimension) * math.log(2 / residual))


def more_would_be_faster(n_samples: int, dimension: int) -> bool:
    """Whether a solve with more samples would take clearly less time; with N > p."""
    if not dimension < n_samples < FASTEST * dimension:
        return False
    best = math.ceil(FASTEST * dimension)
    time, least = (n * root_condition(n, dimension) for n in (n_samples, best))
    return time > _SLOWER * least
