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
``la.certify`` finds the sharp one. Where a fit has factorised the Gram itself, its factor tells
lambda_min, and one more factorisation proves a bound close to it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import eigvalsh

from ..arrays.floats import UNIT, gamma, gradual_underflow, keeps_subnormals
from ..arrays.types import Floats, Positions
from ..backend.interface import Backend
from ..features.samples import Samples
from ..linalg.cholesky import cholesky_solve, cholesky_times
from ..moments.factors import query_groups
from ..moments.sums import MomentSums
from ..problem.interface import Passes, Problem
from ..solvers.costs import PART
from .certificate import Certificate
from .determined_range import DeterminedRange
from .lower_bound import Proof, lost_by_rounding, positive_factor, prove, rounded_down
from .ritz import largest_ritz_value, smallest_ritz_value

_SHIFTS = (2.0**-10, 2.0**-24)
"""Shifts t that are tried, in units in which every feature has length one."""
_DENSE_UP_TO = 96
"""Features up to which all eigenvalues cost less than an iteration."""
_FRACTIONS, _OF_MANY, _MANY = (0.999, 0.99, 0.9), (0.9,), 512
"""Fractions of an estimate of lambda_min that are tried as bounds, with many features and with
fewer: the more there are, the closer their eigenvalues lie, and the longer a factorisation takes.
"""
_OF_A_PART = (2.0**-6, 2.0**-10, 2.0**-16)
"""Fractions of an estimate for all samples that are tried of a few."""
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

    def in_words(self, n_samples: int) -> Proof:
        """The bound with what it rests on, of so many samples."""
        own = self.moments.n_samples
        part = "all" if own == n_samples else f"{own} of the"
        return Proof(
            self.bound,
            f"one Cholesky factorisation, of {part} {n_samples} samples; la.certify proves a bound "
            "that is close to lambda_min",
        )

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
    lost = lost_by_rounding(error, of_sizes, moments.dimension)
    sizes = moments.summand_sizes()
    for shift in _SHIFTS:
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite proves nothing
            A, scale, _ = moments.equilibrated_gram()
            taken = lost * (sizes * scale * scale) + shift
            A.reshape(-1)[:: len(A) + 1] -= taken * (1 + 8 * UNIT)
        factor = positive_factor(A)
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


def prove_on_beginning(problem: Problem, total_weight: float, n: int, estimate: float) -> Proof:
    """Prove by the first samples of a stream; nothing where they prove nothing.

    The shifts are fractions of an estimate of lambda_min, and of fewer samples it is less: no
    estimate of theirs is needed, nor their factor, so that half a matrix is held.
    """
    p, weight_error = problem.features.count, gamma(n)
    for per_feature in (PART, 2 * PART):
        part = problem.beginning(int(per_feature * p))
        if part is None or part.n_samples < p:
            break
        moments = MomentSums.over(part, problem.engine, "float64").get()
        share = moments.required_weight() / total_weight
        proof = prove(moments, estimate, _OF_A_PART)
        if proof.bound > 0 and weight_error < 0.5:
            # W of all samples is a sum that has been rounded, and so is that of the part
            bound = rounded_down(proof.bound * share * (1 - 4 * weight_error) * (1 - 8 * UNIT))
            return Proof(
                bound,
                f"one Cholesky factorisation, of the first {part.n_samples} of {n} samples; a "
                "bound close to lambda_min takes the moments of all",
            )
    return Proof(0.0, "")


def _noise_samples(moments: MomentSums) -> float:
    """Total over largest weight: how many samples the noise averages over."""
    return moments.required_weight() / moments.accumulation.largest_weight


def _proved_of_all(
    moments: MomentSums, estimate: tuple[float, float] | None
) -> tuple[Proof, tuple[float, float]] | None:
    """A bound close to lambda_min if an estimate of it allows one, and extreme eigenvalues.

    None where no bound above zero is proved.
    """
    p, n = moments.dimension, moments.n_samples
    fractions = _FRACTIONS if p <= _MANY else _OF_MANY
    if estimate is not None:
        sharp = prove(moments, estimate[0], fractions)
        if sharp.bound > 0:
            return sharp, estimate
    proof = prove_positive(moments, moments.required_weight(), n)
    if proof is None:
        return None
    proved, found = proof.in_words(n), proof.extreme_eigenvalues()
    if estimate is None and p <= _MANY:
        sharp = prove(moments, found[0], fractions)
        proved = sharp if sharp.bound > proved.bound else proved
    return proved, found


def quick_certificate(
    problem: Problem,
    moments: MomentSums | None,
    estimate: tuple[float, float] | None = None,
    passes: Passes | None = None,
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
    passes
        The passes that they are known from, of a stream.
    """
    samples = problem.samples
    if moments is not None:
        n, noise_samples = moments.n_samples, _noise_samples(moments)
        found = _proved_of_all(moments.get(), estimate)
    elif samples is None:
        if passes is None or estimate is None:
            return None
        n, noise_samples = passes.operator.n_samples, passes.noise_samples
        proof = prove_on_beginning(problem, passes.operator.total_weight, n, estimate[0])
        found = (proof, estimate) if proof.bound > 0 else None
    else:
        n, noise_samples = samples.n_samples, samples.noise_samples
        part = prove_on_part(samples, problem.engine)
        found = None if part is None else (part.in_words(n), estimate or part.extreme_eigenvalues())
    if found is None:
        return None
    kept = None if moments is None else moments.fixed()
    determined = DeterminedRange(problem.features, kept, samples)
    made = proved_certificate(*found, n, problem.positions, noise_samples, determined)
    # Of a stream that has been read, nothing is left to answer for single inputs
    return replace(made, determined=None) if kept is None and samples is None else made


def proved_certificate(
    proved: Proof,
    extremes: tuple[float, float],
    n_samples: int,
    positions: Positions,
    noise_samples: float,
    determined: DeterminedRange,
) -> Certificate:
    """Certificate of a bound above zero, with estimates of the extreme eigenvalues of Lambda."""
    features = determined.features
    smallest = max(extremes[0], proved.bound)
    return Certificate(
        lambda_min=smallest,
        condition=extremes[1] / smallest,
        lower_bound=proved.bound,
        verdict="identifiable",
        rank=features.count,
        dimension=features.count,
        n_samples=n_samples,
        evidence=(
            f"proved: lambda_min of the exact second moment is at least {proved.bound:.4g} "
            f"({proved.reason})"
        ),
        features=features,
        positions=positions,
        noise_samples=noise_samples,
        determined=determined,
    )
