"""How a certificate is made: from data or from moments, by counting or by a factorisation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..arrays.types import Positions
from ..exact.exact_rank import ExactRank, counting, exact_rank, unseen_features
from ..exact.modular_features import Reading
from ..features.features import Features
from ..features.samples import Samples
from ..linalg.algebra import algebra_of
from ..linalg.cholesky import CholeskyFactor, extreme_eigenvalues, ritz_values
from ..linalg.factors import ChosenFactor, Factorisation
from ..linalg.spectral import SpectralFactor
from ..moments.factors import factorise_moments, try_cholesky_of_moments
from ..moments.sums import MomentSums
from ..problem.interface import Problem
from ..solvers.cholesky import accumulated
from ..solvers.costs import estimate_memory
from ..solvers.orthogonal import solve_on_data
from ..solvers.solved import Solved, Task
from ..system.machine import in_words, require_memory
from .certificate import Certificate, Verdict
from .determined_range import DeterminedRange
from .lower_bound import Proof, prove
from .part_proof import quick_certificate


def judge(
    factor: Factorisation, p: int, proof: Proof, exact: Callable[[], ExactRank]
) -> tuple[Verdict, str]:
    """Apply the three rules of :mod:`linattn_fast.certificate.certificate`.

    ``exact`` is asked where no positive bound on lambda_min is proved.
    """
    if proof.bound > 0:
        return "identifiable", (
            f"proved: lambda_min of the exact second moment is at least {proof.bound:.4g} "
            f"({proof.reason})"
        )
    rank = exact()
    if rank.at_most < p:
        return "not identifiable", rank.reason
    ratio, level, margin = factor.smallest, factor.level, factor.margin
    what = "smallest over largest eigenvalue of the equilibrated second moment"
    if factor.name == "cholesky":
        what = "the equilibrated second moment has a Cholesky factorisation; reciprocal condition"
    if factor.name == "qr":
        ratio, level, margin = (float(np.sqrt(max(x, 0.0))) for x in (ratio, level, margin))
        what = "smallest over largest singular value of the equilibrated features"
    if ratio <= level:
        where = f"at the rounding level {level:.2g}"
    else:
        side = "above" if ratio > margin else "below"
        where = f"{side} the margin {margin:.2g} that numerical rank goes by"
    unproved = f"no positive bound on lambda_min is proved: {proof.reason}"
    return "undecided", (
        f"numerically: rank {factor.rank} of {p}; {what}: {ratio:.2g}, {where}; {rank.reason}; "
        f"{unproved}"
    )


def exact_rank_of_moments(moments: MomentSums) -> ExactRank:
    """What moments alone prove about the exact rank: features that are zero in every sample.

    The sum of w S_jj S_kk z_l^2 is zero, with nothing lost below the smallest number, only if the
    feature is zero in every sample. A mean square of zero is not enough, because it is formed from
    a rounded S_jk.
    """
    p = moments.dimension
    if not moments.accumulation.underflow:
        zeros = int((moments.summand_sizes() == 0).sum())
        if zeros:
            return ExactRank(0, p - zeros, unseen_features(zeros, p, exactly=False))
    lost = int((moments.gram_diagonal() == 0).sum())
    found = f"{lost} features have a mean square of zero as computed, but " if lost else ""
    return ExactRank(0, p, f"{found}moments alone cannot tell what is small from what is zero")


def certificate_by_counting(
    n_samples: int, positions: Positions, noise_samples: float, determined: DeterminedRange
) -> Certificate:
    """Certificate of fewer samples than features, which needs no factorisation."""
    p = determined.features.count
    return Certificate(
        lambda_min=0.0,
        condition=float("inf"),
        lower_bound=0.0,
        verdict="not identifiable",
        rank=n_samples,
        dimension=p,
        n_samples=n_samples,
        evidence=counting(n_samples, p, f"{n_samples} samples"),
        features=determined.features,
        positions=positions,
        noise_samples=noise_samples,
        determined=determined,
    )


def counted_on_data(samples: Samples) -> Certificate:
    """Certificate of data at hand that has fewer samples than features."""
    n, weights, p = samples.n_samples, samples.weights, samples.features.count
    determined = DeterminedRange(samples.features, None, samples)
    counted = certificate_by_counting(n, samples.given_positions, samples.noise_samples, determined)
    if weights is None or (weights > 0).all():
        return counted
    count = int((samples.weight_of_each() > 0).sum())
    said = counting(count, p, f"{count} of {n} samples have positive weight, which")
    return replace(counted, rank=count, evidence=said)


def certificate_from(
    moments: MomentSums,
    factor: Factorisation | None = None,
    *,
    problem: Problem | None = None,
    spectrum: bool = False,
) -> Certificate:
    """Certificate of accumulated moments.

    Parameters
    ----------
    moments
        Moments of at least one sample.
    factor
        A factorisation of Lambda, if a fit has made one already.
    problem
        The data, where it is at hand: for questions about single inputs, and for the exact rank
        where the moments prove nothing.
    spectrum
        Whether all eigenvalues are computed as well.
    """
    weight = moments.required_weight()
    p, n = moments.dimension, moments.n_samples
    samples = None if problem is None else problem.samples
    noise_samples = weight / moments.accumulation.largest_weight
    values = None
    if spectrum:
        matrix = moments.second_moment()
        values = algebra_of(matrix).eigenvalues(matrix)
    if n < p:
        determined = DeterminedRange(moments.features, moments.fixed(), samples)
        counted = certificate_by_counting(n, moments.positions, noise_samples, determined)
        rank = n if factor is None else min(n, factor.rank)
        return replace(counted, rank=rank, spectrum=values)
    if factor is None:
        factor = factorise_moments(moments).factorisation
    full = factor.rank == p
    smallest, largest = extreme_eigenvalues(factor) if full else (0.0, float("inf"))
    proof = prove(moments.get(), smallest)

    def exact() -> ExactRank:
        modular = None if problem is None else problem.modular
        return exact_rank_of_moments(moments.get()) if modular is None else exact_rank(modular)

    verdict, evidence = judge(factor, p, proof, exact)
    spectral = factor if isinstance(factor, SpectralFactor) else None
    return Certificate(
        lambda_min=smallest,
        condition=largest / smallest if smallest > 0 else float("inf"),
        lower_bound=proof.bound,
        verdict=verdict,
        rank=factor.rank,
        dimension=p,
        n_samples=n,
        evidence=evidence,
        features=moments.features,
        positions=moments.positions,
        noise_samples=noise_samples,
        spectrum=values,
        determined=DeterminedRange(moments.features, moments.fixed(), samples, spectral),
    )


def certifying_factor(
    moments: MomentSums, read: Callable[[], Reading], memory_limit: int | None = None
) -> Factorisation | None:
    """Factorise Lambda by Cholesky if it is safe, else from the data; None if counting decides."""
    if moments.n_samples < moments.dimension:
        return None
    choice = try_cholesky_of_moments(moments)
    if isinstance(choice, ChosenFactor):
        return choice.factorisation
    require_memory(
        estimate_memory(moments.d, 0, features=moments.features)["qr"],
        f"certify: {choice}; deciding it from the features of {moments.features.made_of}",
        memory_limit,
    )
    with read() as parts:
        return solve_on_data(parts, moments, d_out=0)[1]


def require_certificate_memory(
    features: Features, n_samples: int, memory_limit: int | None
) -> None:
    """Raise MemoryError when the certificate needs a factorisation that does not fit."""
    needed = estimate_memory(features.d, 0, features=features)
    if n_samples < features.count:  # decided by counting
        return
    size = in_words(8 * features.count**2)
    what = f"certify: the dense second moment of {features.made_of} ({size})"
    require_memory(needed["cholesky"], what, memory_limit)


def certify_factorised(task: Task, solved: Solved) -> Certificate:
    """Certificate of a fit from the Gram, by its factorisation if there is no ridge in it."""
    own = solved.factor if task.alpha == 0 else None
    return _certify_problem(task, solved.problem, own, _estimated(solved.factor, task.alpha))


def _estimated(factor: Factorisation | None, alpha: float) -> tuple[float, float] | None:
    """Extreme eigenvalues of Lambda from a Cholesky factor of Lambda + alpha I.

    None where there is no such factor, or where the ridge is most of what it tells.
    """
    found = ritz_values(factor) if isinstance(factor, CholeskyFactor) else None
    if found is None or not found[0] > 2 * alpha:
        return None
    return found[0] - alpha, found[1] - alpha


def certify_few(task: Task, solved: Solved) -> Certificate:
    """Certificate of a fit from the kernel, by counting where there are few samples."""
    if solved.n_samples < solved.problem.features.count and solved.problem.samples is not None:
        return counted_on_data(solved.problem.samples)
    return _certify_problem(task, solved.problem, None)


def _certify_problem(
    task: Task,
    problem: Problem,
    factor: Factorisation | None,
    estimate: tuple[float, float] | None = None,
) -> Certificate:
    """Certificate from the moments of a task, and from the data where that can be read."""
    moments = accumulated(task)
    full = factor is None or factor.rank == moments.dimension
    if full and not task.sharp and moments.n_samples >= moments.dimension:
        quick = quick_certificate(problem, moments, estimate)
        if quick is not None:
            return quick
    if factor is None and problem.read is not None:
        factor = certifying_factor(moments, problem.read, task.memory_limit)
    return certificate_from(moments, factor, problem=problem)
