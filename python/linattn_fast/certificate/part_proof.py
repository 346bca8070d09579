"""A verdict from one factorisation, of as few samples as prove it.

Two facts make a positive bound on lambda_min cheap:

1. *A part proves the whole.* The second moment W Lambda = sum w h h' is a sum of positive
   semidefinite matrices, so with G the sum over some of the samples, W Lambda >= G. What is proved
   of about 1.5 p samples holds for all of them.
2. *One factorisation.* :mod:`linattn_fast.certificate.lower_bound` proves a bound near lambda_min,
   for which it must know lambda_min first. Here the shift is fixed in units in which every feature
   has length one: Cholesky runs to completion on

       A = D (Ghat - lost diag(mhat)) D - (t + theta) I

   only if G >= t D^-2, and so lambda_min(Lambda) >= t min(D^-2) / W. The factor L L' = A then
   serves for lambda_min itself: it preconditions a few steps of Davidson's method.

The bound is below lambda_min by a factor of ten to some thousands; the certificate says so, and
``la.certify`` finds the sharp one. Of few features, where it costs next to nothing, a fit does too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigvalsh

from ..arrays.floats import UNIT, gamma, gradual_underflow, keeps_subnormals
from ..arrays.types import Floats
from ..backend.interface import Backend
from ..features.samples import Samples
from ..linalg.cholesky import cholesky_solve, cholesky_times, equilibrate
from ..moments.factors import query_groups
from ..moments.sums import MomentSums
from ..problem.interface import Problem
from ..solvers.costs import PART
from .certificate import Certificate
from .determined_range import DeterminedRange
from .lower_bound import Proof, positive_factor, prove, rounded_down
from .ritz import largest_ritz_value, smallest_ritz_value

_SHIFTS = (2.0**-10, 2.0**-24)
"""Shifts t that are tried, in units in which every feature has length one."""
_DENSE_UP_TO = 96
"""Features up to which all eigenvalues cost less than an iteration."""
_SHARP_UP_TO = 512
"""Features up to which a second factorisation, for a sharp bound, costs next to nothing."""
STEPS = 16
"""Products that lambda_min is estimated with, at most."""


@dataclass(frozen=True)
class PartProof:
    """A proved bound, and the factorisation that proved it."""

    bound: float
    """lambda_min of the second moment of all samples is at least this, above zero."""
    moments: MomentSums
    """Sums over the samples of the proof."""
    factor: Floats
    """L with L L' = A, (p, p) in C order."""
    scale: Floats
    """Diagonal of D, (p,)."""
    taken: Floats
    """What A lacks on its diagonal, (p,), but for theta."""

    def extreme_eigenvalues(self) -> tuple[float, float]:
        """Estimates of the extreme eigenvalues of Lambda, of the samples of the proof."""
        p, weight = len(self.scale), self.moments.required_weight()
        if p <= _DENSE_UP_TO:
            values = eigvalsh(self.moments.second_moment())
            return float(values[0]), float(values[-1])

        def times(x: Floats) -> Floats:
            y = x / self.scale
            return np.asarray((cholesky_times(self.factor, y) + self.taken * y) / self.scale)

        def divide(x: Floats) -> Floats:
            return self.scale * cholesky_solve(self.factor, (self.scale * x)[:, None])[:, 0]

        start = divide(divide(np.random.default_rng(0).standard_normal(p)))
        smallest, _ = smallest_ritz_value(times, divide, start, steps=STEPS)
        return smallest / weight, largest_ritz_value(times, p, steps=STEPS // 2) / weight


@gradual_underflow()
def prove_positive(moments: MomentSums, total_weight: float, n_samples: int) -> PartProof | None:
    """Prove that the second moment of n samples of weight W is positive; None where that fails.

    ``moments`` are those of all samples, or of some of them, on the host.
    """
    how = moments.accumulation
    if how.underflow or not keeps_subnormals() or len(query_groups(moments)) > 1:
        return None
    error, of_sizes = moments.relative_errors()
    weight_error = gamma(n_samples + how.wide)  # W is a sum that has been rounded
    if not (error < 0.5 and weight_error < 0.5):
        return None
    lost = error / (1 - of_sizes) * (1 + 32 * UNIT) * moments.dimension
    sizes = moments.summand_sizes()
    for shift in _SHIFTS:
        gram = moments.gram()
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite proves nothing
            scale = equilibrate(gram)
            taken = lost * (sizes * scale * scale) + shift
        gram[np.diag_indices(len(gram))] -= taken * (1 + 8 * UNIT)
        factor = positive_factor(gram)
        if factor is None:
            continue
        smallest = float((1 / (scale * scale)).min())  # powers of two, so without rounding
        bound = rounded_down(shift * smallest / (total_weight * (1 + 4 * weight_error)))
        return PartProof(bound, moments, factor, scale, taken) if bound > 0 else None
    return None


def part_of(samples: Samples, per_feature: float) -> Samples:
    """Evenly spaced sequences with about so many samples a feature; nothing is copied."""
    step = int(samples.n_samples // (per_feature * samples.features.count))
    return samples.every(max(1, step))


def prove_on_part(samples: Samples, engine: Backend) -> PartProof | None:
    """Prove by a small part of the samples, by twice as many, or by all of them; else None.

    With 1.5 samples a feature, the smallest eigenvalue is about a thirtieth of the mean one.
    """
    tried = 0
    for per_feature in (PART, 2 * PART, 1.0 * samples.n_samples):
        part = part_of(samples, per_feature)
        if part.n_samples == tried:
            continue
        tried = part.n_samples
        moments = MomentSums.over(part, engine, "float64").get()
        proof = prove_positive(moments, samples.total_weight, samples.n_samples)
        if proof is not None:
            return proof
    return None


def quick_certificate(
    problem: Problem,
    moments: MomentSums | None,
    estimate: tuple[float, float] | None = None,
) -> Certificate | None:
    """Certificate with a bound that one factorisation proves; None where it proves nothing.

    Parameters
    ----------
    problem
        The data.
    moments
        The moments of all of it, where a fit has formed them; else a part of the samples is summed.
    estimate
        Extreme eigenvalues of Lambda, where they are known; else the factorisation estimates them.
    """
    samples, p = problem.samples, problem.features.count
    if moments is not None:
        n, weight = moments.n_samples, moments.required_weight()
        noise_samples, home = weight / moments.accumulation.largest_weight, moments.get()
        proof = prove_positive(home, weight, n)
    elif samples is None:
        return None
    else:
        n, noise_samples, home = samples.n_samples, samples.noise_samples, None
        proof = prove_on_part(samples, problem.engine)
    if proof is None:
        return None
    smallest, largest = proof.extreme_eigenvalues() if estimate is None else estimate
    part = "all" if proof.moments.n_samples == n else f"{proof.moments.n_samples} of the"
    proved = Proof(
        proof.bound,
        f"one Cholesky factorisation, of {part} {n} samples; la.certify proves a bound that is "
        "close to lambda_min",
    )
    if home is not None and p <= _SHARP_UP_TO:
        sharp = prove(home, smallest, (0.999, 0.99, 0.9))
        proved = sharp if sharp.bound > proved.bound else proved
    smallest = max(smallest, proved.bound)
    return Certificate(
        lambda_min=smallest,
        condition=largest / smallest,
        lower_bound=proved.bound,
        verdict="identifiable",
        rank=p,
        dimension=p,
        n_samples=n,
        evidence=(
            f"proved: lambda_min of the exact second moment is at least {proved.bound:.4g} "
            f"({proved.reason})"
        ),
        features=problem.features,
        positions=problem.positions,
        noise_samples=noise_samples,
        determined=DeterminedRange(
            problem.features, None if moments is None else moments.fixed(), samples
        ),
    )
