"""What the coefficients of conjugate gradients tell about the spectrum, without a pass of its own.

The steps a_j and ratios b_j = ||r_j+1||^2 / ||r_j||^2 of a row, with residuals r_j = q_j(K) r_0,
are those of Lanczos: they hold the orthogonal polynomials of the measure that r_0 has on the
spectrum of K, and with them the three things asked for here.

Ritz values, the zeros of q_k, lie inside the spectrum.

How much of r_0 may lie along one eigenvector. For every polynomial P of degree k, the weight w that
the measure has at an eigenvalue x satisfies w P(x)^2 <= ||P(K) r_0||^2 / ||r_0||^2, and the best of
all P gives (Christoffel)

    w <= 1 / sum_j q_j(x)^2 ||r_0||^2 / ||r_j||^2        j = 0 .. k

Energy of the error. With mu <= lambda_min(K), the rule of Gauss and Radau with a node at mu gives
(Golub and Meurant; the recurrence is of Meurant and Tichy)

    r_k' K^-1 r_k  <=  g_k ||r_k||^2,    g_0 = 1 / mu,  g_j+1 = (g_j - a_j) / (mu (g_j - a_j) + b_j)
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.linalg import eigvalsh_tridiagonal

from ...arrays.types import Floats

_GRID = 64
"""Points at which a search for a place looks at once."""
_ROUNDS = 3
"""Searches, each within one interval of the last: 64^3 places."""
_TRUSTED = 0.1
"""Share of residuals that may have been replaced before nothing follows from how they fell."""


@dataclass
class Lanczos:
    """The coefficients of one row, from a residual r_0 on."""

    steps: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    replaced: float = 0.0
    """Sum of the shares of a residual that replacements have changed."""
    _rule: tuple[float, int, float] = (0.0, 0, 0.0)
    """Node mu, number of steps taken and g, of the last :meth:`inverse_energy`."""

    def add(self, step: float, ratio: float) -> None:
        """Take the next coefficients."""
        self.steps.append(step)
        self.ratios.append(ratio)

    def ritz_values(self) -> Floats:
        """Estimates of eigenvalues of K, ascending; empty without a step."""
        steps, ratios = np.array(self.steps), np.array(self.ratios)
        if len(steps) == 0:
            return steps
        diagonal = 1 / steps
        diagonal[1:] += ratios[:-1] / steps[:-1]
        beside = np.sqrt(ratios[:-1]) / steps[:-1]
        return np.asarray(eigvalsh_tridiagonal(diagonal, beside))

    def inverse_energy(self, mu: float) -> float:
        """The number g for which r' K^-1 r <= g ||r||^2, r the last residual; at most 1 / mu."""
        if self.replaced > _TRUSTED:
            return 1 / mu
        node, taken, g = self._rule
        if node != mu or taken > len(self.steps):
            taken, g = 0, 1 / mu
        for step, ratio in zip(self.steps[taken:], self.ratios[taken:], strict=True):
            left = g - step
            # Rounding alone makes it negative; then nothing but mu is known of what follows
            g = min(left / (mu * left + ratio), 1 / mu) if left > 0 else 1 / mu
        self._rule = mu, len(self.steps), g
        return g

    def least_eigenvalue(self, weight: float) -> float:
        """The least eigenvalue that can have at least this weight; 0 where any can."""
        low, high = 0.0, 1 / self.steps[0] if self.steps else 0.0
        for _ in range(_ROUNDS):
            places = np.linspace(low, high, _GRID)
            excluded = self._weights(places) < weight
            if not excluded[0]:
                return low
            last = int(np.argmin(excluded)) - 1 if not excluded.all() else _GRID - 1
            low, high = float(places[last]), float(places[min(last + 1, _GRID - 1)])
        return low

    def _weights(self, x: Floats) -> Floats:
        """Largest weight that an eigenvalue can have at x, as far as x is below all Ritz values.

        Beyond them it is infinite, because lambda_min is not there.
        """
        q, direction = np.ones_like(x), np.ones_like(x)
        total, size, below = np.ones_like(x), 1.0, np.ones(len(x), bool)
        for step, ratio in zip(self.steps, self.ratios, strict=True):
            q = q - step * x * direction
            size *= ratio
            below &= q > 0
            if size > 0:
                total += q**2 / size
            direction = q + ratio * direction
        found: Floats = np.where(below, 1 / total, np.inf)
        return found
