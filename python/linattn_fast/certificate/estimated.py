"""A certificate without a Gram: lambda_min estimated from passes over the data.

LOBPCG looks for the smallest eigenvalue of Lambda with the Kronecker preconditioner. What it finds
is a Rayleigh quotient x' Lambda x, so an upper bound on lambda_min and an estimate of it; nothing
about it is proved. The verdict is "undecided" unless the data is proved to be short of rank
(:mod:`linattn_fast.exact.exact_rank`). A rank is given only of few features, where Lambda
itself is formed.
"""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
from scipy.linalg import eigvalsh
from scipy.sparse.linalg import LinearOperator, lobpcg

from ..arrays.device import to_host
from ..arrays.types import Floats
from ..backend.normal_operator import KroneckerFactors, NormalOperator
from ..exact.exact_rank import exact_rank
from ..linalg.cholesky import largest_eigenvalue, rounding_level
from ..linalg.factors import EPS, MARGIN
from ..solvers.conjugate_gradients.whitening import Whitening, whiten
from ..solvers.solved import Solved, Task
from .certificate import Certificate, Verdict
from .certifying import certificate_by_counting
from .source import Source

_DENSE_UP_TO = 64
"""Below this many features Lambda itself is formed, by as many products."""
_BLOCK, _ITERATIONS = 3, 40
_ROUGH = 1e-3
"""Relative accuracy of lambda_max, for the condition number."""


def _second_moment_times(operator: NormalOperator, x: Floats) -> Floats:
    """Lambda x for x (p, k) or (p,)."""
    C = np.ascontiguousarray(x.reshape(len(x), -1).T)
    product = to_host(operator.normal(C).product) / operator.total_weight
    return np.asarray(product.T.reshape(x.shape))


def _extreme_eigenvalues(operator: NormalOperator, whitening: Whitening) -> tuple[float, float]:
    """Estimates of lambda_min and lambda_max of Lambda."""
    p = operator.features.count
    if p <= _DENSE_UP_TO:
        values = eigvalsh(_second_moment_times(operator, np.eye(p)))
        return float(max(values[0], 0.0)), float(values[-1])

    def times(x: Floats) -> Floats:
        return _second_moment_times(operator, x)

    def precondition(x: Floats) -> Floats:
        rows = np.ascontiguousarray(x.reshape(p, -1).T)
        better = whitening.coefficients(whitening.transpose(rows))
        return np.asarray(better.T.reshape(x.shape))

    shape = (p, p)
    Lambda = LinearOperator(shape, matvec=times, matmat=times, dtype=np.float64)
    inverse = LinearOperator(shape, matvec=precondition, matmat=precondition, dtype=np.float64)
    random = np.random.default_rng(0).standard_normal((_BLOCK, *whitening.shape))
    start = whitening.coefficients(random).T
    largest = largest_eigenvalue(times, p, tolerance=_ROUGH)
    with warnings.catch_warnings():  # that it has not converged is what "estimate" means
        warnings.simplefilter("ignore")
        values, _ = lobpcg(
            Lambda,
            np.ascontiguousarray(start),
            M=inverse,
            largest=False,
            maxiter=_ITERATIONS,
            tol=1e-12 * largest,
        )
    return float(max(values.min(), 0.0)), largest


def certify_passes(task: Task, solved: Solved) -> Certificate:
    """Certificate of a fit by passes over the data, from its Kronecker factors and products.

    Where the data looks short of rank and can be read here, that is proved.
    """
    problem, passes = solved.problem, solved.passes
    assert passes is not None
    assert solved.kronecker is not None
    operator = passes.operator
    samples = problem.samples
    n, p = operator.n_samples, operator.features.count
    source = Source(operator.features, None, samples)
    if n < p:
        counted = certificate_by_counting(n, problem.positions, passes.noise_samples, source)
        return replace(counted, source=None if samples is None else source)
    # The iteration is SciPy's, on the host
    factors = KroneckerFactors(*map(to_host, solved.kronecker))
    zeros = int((factors.diagonal == 0).sum())
    whitening = whiten(factors, operator.total_weight, 0.0, operator.features)
    reached = whitening.shape[0] * whitening.shape[1]
    smallest, condition, rank = 0.0, float("inf"), None
    verdict: Verdict = "undecided"
    if zeros:
        evidence = f"estimated: {zeros} of {p} features have a mean square of zero"
    elif not whitening.full:
        evidence = (
            f"estimated: pairs or queries are dependent to rounding, {reached} of {p} directions "
            "are left"
        )
    else:
        smallest, largest = _extreme_eigenvalues(operator, whitening)
        condition = largest / smallest if smallest > 0 else condition
        if p <= _DENSE_UP_TO and smallest > MARGIN * rounding_level(p) * largest:
            rank = p
        evidence = (
            f"estimated by LOBPCG without a Gram: lambda_min is at most {smallest:.4g}, up to "
            "rounding"
        )
    exact = None
    if problem.modular is not None and not condition * EPS * p < 1:  # short of rank, it seems
        exact = exact_rank(problem.modular)
    if exact is not None and exact.at_most < p:
        verdict, evidence = "not identifiable", exact.reason
    elif exact is not None:
        evidence += f"; {exact.reason}; no positive bound on lambda_min is proved"
    else:
        evidence += "; nothing is proved"
    return Certificate(
        lambda_min=smallest,
        lower_bound=0.0,
        verdict=verdict,
        condition=condition,
        rank=rank,
        dimension=p,
        n_samples=n,
        evidence=evidence,
        features=operator.features,
        positions=problem.positions,
        noise_samples=passes.noise_samples,
        source=None if samples is None else source,
    )
