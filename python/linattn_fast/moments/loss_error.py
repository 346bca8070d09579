"""How far off a mean squared error from moments alone may be.

    W loss(C) = sum_a energy_a - 2 <C_a, cross_a> + <C_a, G C_a>

cancels: its terms are of the size of the targets or, for large C, far larger, and each carries the
rounding of its sum. With gamma and m of :mod:`linattn_fast.certificate.lower_bound`, an entry of G
errs by at most gamma sqrt(m_e m_f), one of the cross moment by gamma sqrt(m_e energy_a) (Cauchy and
Schwarz over the samples), and the energy by gamma times itself. Together

    |error of W loss| <= gamma sum_a (sum_e |C_ae| sqrt(m_e) + sqrt(energy_a))^2

and evaluating the three terms adds as many roundings as their sums have terms. Residuals on the
data have no such error, so where the data is at hand the loss is computed from them.
"""

from __future__ import annotations

from ..arrays.device import module_of, on_device
from ..arrays.floats import gamma
from ..arrays.types import Floats
from .sums import MomentSums


def loss_error(moments: MomentSums, coefficients: Floats) -> float:
    """Bound on the error of ``moments.loss(coefficients)``; infinite where products underflow.

    Parameters
    ----------
    moments
        Sums over the samples.
    coefficients
        C, (d_out, p).
    """
    d_out, p = coefficients.shape
    if moments.accumulation.underflow:
        return float("inf")
    weight = moments.required_weight()
    with on_device(moments.device):
        xp = module_of(coefficients)
        lengths = xp.abs(coefficients) @ xp.sqrt(moments.summand_sizes())  # (d_out,)
        terms = float(((lengths + xp.sqrt(moments.sums.energy)) ** 2).sum())
    # Twice: m and the energy are themselves sums with an error of gamma
    sums = 2 * (moments.relative_errors()[0] + gamma(2 * p + d_out + 8)) * terms / weight
    # W is a sum with roundings, too
    total = gamma(moments.n_samples + moments.accumulation.wide)
    return float(sums + 2 * total * (moments.loss(coefficients) + sums))
