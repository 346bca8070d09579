"""The certificate of a fit without a Gram: lambda_min estimated from passes over the data.

Davidson's method looks for the smallest eigenvalue of Lambda with the Kronecker preconditioner. It
finds a Rayleigh quotient x' Lambda x, which is an upper bound on lambda_min and an estimate of it.
Where memory and time allow, a part of the samples proves a lower bound
(:mod:`linattn_fast.certificate.part_proof`); elsewhere the verdict is "undecided", unless the data
is proved to be short of rank (:mod:`linattn_fast.exact.exact_rank`). A rank is given where a bound
is proved, or of few features, of which Lambda itself is formed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.linalg import eigvalsh

from ..arrays.device import to_host
from ..arrays.types import Floats
from ..backend.normal_operator import KroneckerFactors, NormalOperator
from ..exact.exact_rank import ExactRank, exact_rank
from ..linalg.cholesky import rounding_level
from ..linalg.factors import EPS, MARGIN
from ..problem.interface import Problem
from ..solvers.conjugate_gradients.narrow import Products, products_for
from ..solvers.conjugate_gradients.whitening import Whitening, whiten
from ..solvers.costs import bytes_of, predict, worth_proving
from ..solvers.solved import Solved, Task
from ..system.machine import usable_memory
from .certificate import Certificate, Verdict
from .certifying import certificate_by_counting
from .determined_range import DeterminedRange
from .part_proof import quick_certificate
from .ritz import largest_ritz_value, smallest_ritz_value

_DENSE_UP_TO = 64
"""Number of features up to which Lambda itself is formed, by as many products."""
_STEPS = 24
"""Passes that lambda_min is estimated with, at most."""


def _second_moment_times(operator: NormalOperator, products: Products, x: Floats) -> Floats:
    """The product Lambda x for x (p, k) or (p,)."""
    C = np.ascontiguousarray(x.reshape(len(x), -1).T)
    product = to_host(products(C).product) / operator.total_weight
    return np.asarray(product.T.reshape(x.shape))


def _extreme_eigenvalues(
    operator: NormalOperator, whitening: Whitening, *, held: bool
) -> tuple[float, float]:
    """Estimates of lambda_min and lambda_max of Lambda.

    Where a stream is ``held`` in float32, they are those of the rounded samples, unless rounding
    could hide them: nothing is read again for an estimate.
    """
    p = operator.features.count
    products = products_for(operator, whitening.condition, held)
    if p <= _DENSE_UP_TO:
        values = eigvalsh(_second_moment_times(operator, products, np.eye(p)))
        return float(max(values[0], 0.0)), float(values[-1])

    def times(x: Floats) -> Floats:
        return _second_moment_times(operator, products, x)

    def precondition(x: Floats) -> Floats:
        return np.asarray(whitening.coefficients(whitening.transpose(x[None]))[0])

    random = np.random.default_rng(0).standard_normal((1, *whitening.shape))
    start = whitening.coefficients(random)[0]
    smallest, _ = smallest_ritz_value(times, precondition, start, steps=_STEPS)
    return max(smallest, 0.0), largest_ritz_value(times, p, steps=_STEPS // 3)


def _may_prove(task: Task, problem: Problem) -> bool:
    """Whether a proof on a part of the samples, which needs a p x p matrix, is affordable."""
    n, columns, features = problem.n_samples, problem.n_columns, problem.features
    if problem.read is None or n is None or columns is None:
        return False
    memory = usable_memory() if task.memory_limit is None else task.memory_limit
    if bytes_of(problem)["proof" if problem.samples is None else "cholesky"] > memory:
        return False
    return worth_proving(
        predict(features, problem.d_out, problem.positions, n, columns, proof=True)
    )


class _Estimate(NamedTuple):
    """What passes over the data suggest about Lambda; nothing here is proved."""

    evidence: str
    smallest: float = 0.0
    """Estimate of lambda_min."""
    condition: float = float("inf")
    """Estimate of lambda_max / lambda_min."""
    rank: int | None = None
    """Numerical rank, where Lambda itself was formed and has full rank."""


def _estimate(
    operator: NormalOperator, factors: KroneckerFactors, *, held: bool = False
) -> _Estimate:
    """Estimate the extreme eigenvalues, unless a feature or a direction is missing altogether."""
    p = operator.features.count
    zeros = int((factors.diagonal == 0).sum())
    if zeros:
        return _Estimate(f"estimated: {zeros} of {p} features have a mean square of zero")
    whitening = whiten(factors, operator.total_weight, 0.0, operator.features)
    if not whitening.full:
        reached = whitening.shape[0] * whitening.shape[1]
        return _Estimate(
            f"estimated: pairs or queries are dependent to rounding, {reached} of {p} directions "
            "are left"
        )
    smallest, largest = _extreme_eigenvalues(operator, whitening, held=held)
    full = p <= _DENSE_UP_TO and smallest > MARGIN * rounding_level(p) * largest
    return _Estimate(
        f"estimated without a Gram: lambda_min is at most {smallest:.4g}, up to rounding",
        smallest,
        largest / smallest if smallest > 0 else float("inf"),
        p if full else None,
    )


def _judged(estimate: _Estimate, exact: ExactRank | None, p: int) -> tuple[Verdict, str]:
    """Verdict and evidence from an estimate, and from the exact rank where that was asked for."""
    if exact is None:
        return "undecided", f"{estimate.evidence}; nothing is proved"
    if exact.at_most < p:
        return "not identifiable", exact.reason
    unproved = "no positive bound on lambda_min is proved"
    return "undecided", f"{estimate.evidence}; {exact.reason}; {unproved}"


def certify_passes(task: Task, solved: Solved) -> Certificate:
    """Certificate of a fit by passes over the data, from its Kronecker factors and products.

    Where the data seems short of rank and can be read here, exact arithmetic tries to prove it.
    """
    problem, passes = solved.problem, solved.passes
    assert passes is not None
    assert solved.kronecker is not None
    operator = passes.operator
    samples = problem.samples
    n, p = operator.n_samples, operator.features.count
    determined = DeterminedRange(operator.features, None, samples)
    if n < p:
        counted = certificate_by_counting(n, problem.positions, passes.noise_samples, determined)
        return replace(counted, determined=None if samples is None else determined)
    # The iteration is on the host
    factors = KroneckerFactors(*map(to_host, solved.kronecker))
    estimate = _estimate(operator, factors, held=passes.held > 0)
    if estimate.smallest > 0 and _may_prove(task, problem):
        found = estimate.smallest, estimate.smallest * estimate.condition
        passes.release()
        if (quick := quick_certificate(problem, None, found, passes)) is not None:
            return quick
    exact = None
    if problem.modular is not None and not estimate.condition * EPS * p < 1:  # rank seems short
        exact = exact_rank(problem.modular)
    verdict, evidence = _judged(estimate, exact, p)
    return Certificate(
        verdict=verdict,
        evidence=evidence,
        lambda_min=estimate.smallest,
        lower_bound=0.0,
        condition=estimate.condition,
        rank=estimate.rank,
        dimension=p,
        n_samples=n,
        features=operator.features,
        positions=problem.positions,
        noise_samples=passes.noise_samples,
        determined=None if samples is None else determined,
    )
