"""What rounding in moments does to solutions of (Lambda + alpha I) x = b.

Moments have Lambda with an error of at most delta in norm, and b with one of at most delta_b: with
gamma and m of :mod:`linattn_fast.certificate.lower_bound`, and Cauchy and Schwarz over the samples,

    delta   = gamma sum_e m_e / W  +  what an eigendecomposition of Lambda adds
    delta_b = gamma sqrt(sum_e m_e / W) sqrt(mean |y|^2)  +  what turning b adds

For M = Lambda + s I whose smallest eigenvalue is 1 / mu, and delta mu below 1/8, a row h moves
h'M^-1 b by no more than 2 |M^-1 h| (delta |M^-1 b| + delta_b): the 2 stands for higher orders.

Where Lambda is singular and its exact rank is known, M^-1 is on its range, with mu that of the
smallest eigenvalue there. Rounding tilts the range by delta mu; for h and b in it, that is a matter
of the second order, (delta mu)^2 |h| |M^-1 b|.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..arrays.floats import gamma
from ..arrays.types import Floats
from ..linalg.factors import EPS, MARGIN
from .sums import MomentSums

MOST = 1 / 8
"""Largest delta mu for which twice the first-order bounds hold."""
_LOST = 1e-300
"""A mean square far above what underflow takes from one."""


@dataclass(frozen=True)
class MomentRounding:
    """Bounds on the rounding of moments, from which bounds on solutions follow."""

    second_moment: float
    """delta, the bound on the error of Lambda in norm."""
    cross: float
    """delta_b, the bound on the error of b in norm."""
    weight: float
    """Relative error of W and of sums of weights."""

    @classmethod
    def of(cls, moments: MomentSums, largest: float, scale: Floats | None = None) -> MomentRounding:
        """Bound the rounding of moments, for features times ``scale``, (p,).

        ``largest`` is the largest eigenvalue of Lambda in these units.
        """
        W, p = moments.required_weight(), moments.dimension
        if moments.accumulation.underflow:
            return cls(np.inf, np.inf, np.inf)
        with np.errstate(over="ignore"):
            sizes = moments.summand_sizes() / W * (1.0 if scale is None else scale**2)
            size = float(sizes.sum())
            total = gamma(moments.n_samples + moments.accumulation.wide)
            error = 2 * (moments.relative_errors()[0] + total)
            target = np.sqrt(float(moments.sums.energy.sum()) / W + _LOST)
            return cls(
                error * size + MARGIN * p * EPS * largest,
                (error + MARGIN * p * EPS) * np.sqrt(size) * target,
                total,
            )

    def coefficients(self, C: Floats, smallest: float) -> float | None:
        """Bound on the relative error of C (d_out, p); None where there is none below one.

        ``smallest`` is the smallest eigenvalue of M, 1 / mu.
        """
        with np.errstate(over="ignore"):
            size = float(np.linalg.norm(C))
        if not np.isfinite(size):
            return None
        if not (smallest > 0 and self.second_moment <= MOST * smallest and size > 0):
            return None
        error = 2 * (self.second_moment + self.cross / size) / smallest + gamma(2 * C.size + 8)
        return float(error) if error < 1 else None
