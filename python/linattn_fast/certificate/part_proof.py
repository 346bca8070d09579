"""A verdict from one factorisation, of as few samples as prove it.

Two facts make a positive bound on lambda_min cheap:

1. *A part proves the whole.* The second moment W Lambda = sum w h h' is a sum of positive
   semidefinite matrices, so with G the sum over some of the samples, W Lambda >= G. What is proved
   of about 1.5 p samples holds for all of them.
2. *One factorisation.* :mod:`linattn_fast.certificate.lower_bound` proves a bound near lambda_min,
   for which it must know lambda_min first. Here the shift is fixed in units in which every feature
   has length one: Cholesky runs to completion on

       A = D (Ghat - lost diag(mhat)) D - (t + theta) I

   only if G >= t D^-2, and so lambda_min(Lambda) >= t min(D^-2) / W. The factor L L' = A then serves
   for lambda_min itself: it is the inverse that a few Lanczos steps need.

The bound is below lambda_min by a factor of ten to some thousands; the certificate says so, and
``la.certify`` finds the sharp one.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh, lobpcg

from ..arrays.floats import UNIT, gamma, gradual_underflow, keeps_subnormals
from ..arrays.types import Floats
from ..backend.interface import Backend
from ..features.samples import Samples
from ..linalg.cholesky import cholesky_solve, cholesky_times, equilibrate, largest_eigenvalue
from ..moments.factors import query_groups
from ..moments.sums import MomentSums
from ..problem.interface import Problem
from .certificate import Certificate
from .lower_bound import positive_factor, rounded_down
from .source import Source

_SHIFTS = (2.0**-10, 2.0**-24)
"""Shifts t that are tried, in units in which every feature has length one."""
SAMPLES_PER_FEATURE = 1.5
"""Samples of the part: its smallest eigenvalue is then about a thirtieth of the mean one."""
_DENSE_UP_TO = 96
"""Features up to which all eigenvalues cost less than an iteration."""
_ACCURACY = 1e-3
"""Relative accuracy of the Lanczos iteration for lambda_min."""
_ROUGH = 1e-2
"""Relative accuracy of lambda_max, which is for the condition number alone."""
_STEPS = 12
"""Preconditioned steps that carry lambda_min over from a part to all samples."""


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

    def divide(self, x: Floats) -> Floats:
        """Nearly Lambda^-1 x for x (p,), of the samples of the proof."""
        W = self.moments.required_weight()
        return W * self.scale * cholesky_solve(self.factor, (self.scale * x)[:, None])[:, 0]

    def multiply(self, x: Floats) -> Floats:
        """Nearly Lambda x for x (p,), of the samples of the proof."""
        y = cholesky_times(self.factor, x / self.scale) / self.scale
        return np.asarray(y / self.moments.required_weight())

    def extreme_eigenvalues(self) -> tuple[float, float, Floats]:
        """Estimates of the extreme eigenvalues of Lambda, and the vector of the smallest, (p,).

        Of the samples of the proof; the first is a Rayleigh quotient, an upper bound on lambda_min.
        """
        p = len(self.scale)
        if p <= _DENSE_UP_TO:
            values, vectors = eigh(self.moments.second_moment())
            return float(values[0]), float(values[-1]), vectors[:, 0]
        operator = LinearOperator((p, p), matvec=self.divide, dtype=np.float64)
        start = np.random.default_rng(0).standard_normal(p)
        try:
            _, vectors = eigsh(operator, k=1, which="LA", v0=start, tol=_ACCURACY)
            x = vectors[:, 0]
        except ArpackError:  # many eigenvalues within the tolerance: any of them will do
            x = start
            for _ in range(20):
                x = self.divide(x)
                x /= np.linalg.norm(x)
        product = self.moments.gram_times(x[:, None])[:, 0] / self.moments.required_weight()
        largest = largest_eigenvalue(self.multiply, p, tolerance=_ROUGH)
        return float(x @ product / (x @ x)), largest, x


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
        return PartProof(bound, moments, factor, scale) if bound > 0 else None
    return None


def part_of(samples: Samples, per_feature: float = SAMPLES_PER_FEATURE) -> Samples | None:
    """Evenly spaced sequences of positive weight with so many samples a feature.

    None where that is most of the data, so that the whole costs little more.
    """
    wanted = int(np.ceil(per_feature * samples.features.count))
    if not 1.5 * wanted < samples.n_samples:
        return None
    able = np.arange(samples.n_sequences)
    if samples.weights is not None:
        able = np.flatnonzero(samples.weights > 0)
    last = samples.positions == "last"
    counts = np.ones(len(able)) if last else samples.tokens.lengths[able]
    share = min(1.0, wanted / max(float(counts.sum()), 1.0))
    count = min(len(able), int(np.ceil(share * len(able))))
    chosen = able[np.linspace(0, len(able) - 1, count).astype(np.intp)] if count else able
    return samples.chosen(np.unique(chosen)) if len(chosen) else None


def prove_on_part(samples: Samples, engine: Backend) -> PartProof | None:
    """Prove by the smallest part that proves; None where no part smaller than the whole does."""
    for per_feature in (SAMPLES_PER_FEATURE, 2 * SAMPLES_PER_FEATURE):
        part = part_of(samples, per_feature)
        if part is None:
            return None
        moments = MomentSums.over(part, engine, "float64")
        proof = prove_positive(moments, samples.total_weight, samples.n_samples)
        if proof is not None:
            return proof
    return None


def quick_certificate(problem: Problem, moments: MomentSums | None) -> Certificate | None:
    """Certificate with a bound that one factorisation proves; None where it proves nothing.

    Parameters
    ----------
    problem
        The data.
    moments
        The moments of all of it, where a fit has formed them; else a part of the samples is summed.
    """
    samples = problem.samples
    if moments is not None:
        n, home = moments.n_samples, moments.get()
        proof = prove_positive(home, moments.required_weight(), n)
        largest_weight = moments.accumulation.largest_weight
        noise_samples = moments.required_weight() / largest_weight
    elif samples is None or problem.engine.on_device:
        return None
    else:
        n, noise_samples = samples.n_samples, samples.noise_samples
        proof = prove_on_part(samples, problem.engine)
    if proof is None:
        return None
    smallest, largest, vector = proof.extreme_eigenvalues()
    told = f"one Cholesky factorisation of all {n} samples"
    if moments is None:
        smallest = _smallest_of_all(problem, proof, vector)
        told = f"one Cholesky factorisation, of {proof.moments.n_samples} of the {n} samples"
    smallest = max(smallest, proof.bound)
    return Certificate(
        lambda_min=smallest,
        condition=largest / smallest,
        lower_bound=proof.bound,
        verdict="identifiable",
        rank=problem.features.count,
        dimension=problem.features.count,
        n_samples=n,
        evidence=(
            f"proved: lambda_min of the exact second moment is at least {proof.bound:.4g} ({told}; "
            f"lambda_min itself is estimated, and la.certify proves a bound near it)"
        ),
        features=problem.features,
        positions=problem.positions,
        noise_samples=noise_samples,
        source=Source(problem.features, None if moments is None else moments.fixed(), samples),
    )


def _smallest_of_all(problem: Problem, proof: PartProof, vector: Floats) -> float:
    """Estimate lambda_min of all samples, from above, from the eigenvector of a part.

    LOBPCG with the factorisation of the part as its preconditioner: each step is one pass.
    """
    operator = problem.passes(keep=True).operator
    p, W = len(vector), operator.total_weight

    def times(x: Floats) -> Floats:
        rows = np.ascontiguousarray(x.reshape(p, -1).T)
        return np.asarray((operator.normal(rows).product / W).T.reshape(x.shape))

    def precondition(x: Floats) -> Floats:
        return np.stack([proof.divide(column) for column in x.reshape(p, -1).T], axis=1).reshape(
            x.shape
        )

    shape = (p, p)
    Lambda = LinearOperator(shape, matvec=times, matmat=times, dtype=np.float64)
    inverse = LinearOperator(shape, matvec=precondition, matmat=precondition, dtype=np.float64)
    with warnings.catch_warnings():  # that it has not converged is what "estimate" means
        warnings.simplefilter("ignore")
        values, _ = lobpcg(
            Lambda, vector[:, None], M=inverse, largest=False, maxiter=_STEPS, tol=1e-30
        )
    return float(values[0])
