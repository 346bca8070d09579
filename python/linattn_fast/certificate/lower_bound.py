"""A proved lower bound on lambda_min of the exact second moment.

Exact arithmetic on the data as given would form G = sum w h h'. The computed sum is Ghat = G + E.
Two steps lead from Ghat to a bound on lambda_min(G); docs/certificate.md derives both.

1. *Rounding while forming Ghat.* With u = 2^-53, k the roundings a summand goes through and
   gamma = k u / (1 - k u), every entry obeys |E| <= gamma M, where M is the same sum over the
   magnitudes of its summands: M = sum w g g' with g = |z_l| sum_t |z_tj z_tk|. Since
   sum_t |z_tj z_tk| <= sqrt(S_jj S_kk), its diagonal is at most another entry of the Gram itself,

       m[(j,k),l] = sum w S_jj S_kk z_l^2 = G[((j,j),l), ((k,k),l)],

   a sum without cancellation. M is positive semidefinite, so |x'Ex| <= gamma p sum_e m_e x_e^2. The
   computed mhat is at least (1 - gamma_m) m, where gamma_m counts the roundings of m itself:

       G >= Ghat - gamma p diag(mhat) / (1 - gamma_m)

2. *Rounding in the factorisation.* If Cholesky runs to completion on a matrix A with positive
   diagonal, then A >= -c tr(A) I, with c = gamma / (1 - gamma) for k = 2 p + 10. So for D = diag of
   powers of two and theta = c tr + a few u, success on

       A = D (Ghat - lost diag(mhat) - tau I) D - theta I,    lost = gamma p / (1 - gamma_m)

   proves G >= tau I, and lambda_min(G / W) >= tau / W.

Where Ghat is block diagonal (:mod:`linattn_fast.moments.factors`), so is the matrix of step 2, and
Cholesky runs on its blocks. Where compiled code reads the Gram, it forms and factorises that matrix
in one call (``csrc/core/shifted_gram.hpp``); what bounds the roundings is made here either way.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..arrays.floats import UNIT, gamma, gradual_underflow, keeps_subnormals
from ..arrays.types import Floats
from ..linalg.cholesky import cholesky_in_place
from ..moments.factors import moments_of, query_groups
from ..moments.sums import MomentSums

_FRACTIONS = (0.999, 0.99, 0.9, 0.5, 0.1, 0.01)
"""Shifts tau that are tried until one is proved, as fractions of the estimate of lambda_min."""
LITTLE = 1 + 8 * UNIT
"""What a shift is multiplied with, for its own roundings."""
MARGIN = 32 * UNIT
"""What is subtracted from a diagonal in [1/2, 2] for its roundings, half of it for the caller's."""


@dataclass(frozen=True)
class Proof:
    """What was proved, and why not more."""

    bound: float
    """Lower bound on lambda_min; 0 when nothing was proved."""
    reason: str


def rounded_down(bound: float) -> float:
    """Lower the computed ``bound`` below the exact product or quotient that was rounded to it."""
    bound *= 1 - 8 * UNIT
    # Below the smallest normal number a rounding errs by up to half the distance to the next.
    return bound if bound >= sys.float_info.min else max(math.nextafter(bound, -1.0), 0.0)


def lost_by_rounding(error: float, of_sizes: float, p: int) -> float:
    """The factor of step 1, for relative errors of the Gram and of the sizes of its summands.

    It covers the roundings of this line and of gamma. p counts all features, not those of a block,
    since E need not be zero where Ghat is.
    """
    return error / (1 - of_sizes) * (1 + 32 * UNIT) * p


def bound_on_mean(tau: float, weight: float, weight_error: float) -> float:
    """The bound on lambda_min of Lambda = G / W that G >= tau I proves.

    W itself is a sum of roundings; more weight makes the mean smaller.
    """
    return rounded_down(tau / (weight * (1 + 2 * weight_error)))


def backward(p: int) -> float:
    """The factor c of step 2, with room for its own roundings and those of a trace."""
    error = gamma(2 * p + 10)
    return 1.01 * error / (1 - error)


def positive_factor(matrix: Floats) -> Floats | None:
    """L (p, p), where Cholesky proves a symmetric matrix positive semidefinite; overwrites it.

    The caller has scaled the diagonal into [1/2, 2] and subtracted from it.
    """
    p = len(matrix)
    diagonal = matrix.reshape(-1)[:: p + 1]
    if not diagonal.min() > 0:  # also false for NaN
        return None
    diagonal -= backward(p) * float(diagonal.sum()) + MARGIN
    if not diagonal.min() > 0:
        return None
    factor, failed = cholesky_in_place(matrix)
    # Some libraries run on past a pivot that is not a number.
    return factor if failed == 0 and factor.diagonal().max() < np.inf else None


@gradual_underflow()
def prove(moments: MomentSums, estimate: float, fractions: Sequence[float] = _FRACTIONS) -> Proof:
    """Search for the largest bound that can be proved, starting from an estimate of lambda_min."""
    if moments.accumulation.underflow or not keeps_subnormals():
        return Proof(0.0, "products of the tokens underflow (or may), so errors are not bounded")
    if not estimate > 0:
        return Proof(0.0, "lambda_min is zero to rounding")
    error, of_sizes = moments.relative_errors()
    weight_error = gamma(moments.n_samples + moments.accumulation.wide)
    if not (error < 0.5 and weight_error < 0.5):
        return Proof(0.0, "too many roundings for a bound")
    weight, groups = moments.required_weight(), query_groups(moments)
    lost = lost_by_rounding(error, of_sizes, moments.dimension)
    for fraction in fractions:
        tau = fraction * estimate * weight
        # Ghat - gamma p diag(m) - tau I is positive when each of its diagonal blocks is.
        if all(_exceeds(moments_of(moments, group), tau, lost) for group in groups):
            return Proof(bound_on_mean(tau, weight, weight_error), shifted_by(fraction))
    return Proof(0.0, "rounding in the Gram is as large as lambda_min")


def shifted_by(fraction: float) -> str:
    """What a proof rests on, in words."""
    return f"Cholesky factorisation with a shift of {fraction:g} lambda_min"


def _exceeds(moments: MomentSums, tau: float, lost: float) -> bool:
    """Whether Ghat - lost diag(m) - tau I is proved to be positive."""
    known = moments.gram_exceeds((lost, tau, LITTLE, backward(moments.dimension), MARGIN))
    if known is not None:
        return known
    with np.errstate(over="ignore", invalid="ignore"):  # infinities and NaN prove nothing
        A, scale, _ = moments.equilibrated_gram()
        # Scaled first, so that m is about one or more: otherwise lost m could be subnormal.
        shift = lost * (moments.summand_sizes() * scale * scale) + tau * scale * scale
        A.reshape(-1)[:: len(A) + 1] -= shift * LITTLE
    return positive_factor(A) is not None
