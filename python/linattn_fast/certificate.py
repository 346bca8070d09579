"""The certificate: does the data determine the layer?

With Lambda = mean h h' the second moment of the cubic features (p x p), every best-fitting layer
computes the same function on every input exactly when lambda_min(Lambda) > 0.

What is decided here rests on a factorisation of the equilibrated second moment A = D Lambda D (see
:mod:`linattn_fast.solve`) and a stated rounding margin:

    "identifiable"      A was factorised and its smallest eigenvalue is above 10 p eps lambda_max(A)
    "not identifiable"  fewer samples than features, a feature that is always zero, or a smallest
                        eigenvalue of at most p eps lambda_max(A), which rounding alone explains
    "undecided"         anything between
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np
from scipy.linalg import eigvalsh
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

from .features import feature_count
from .memory import estimate_memory, in_words, require_memory
from .moments import Moments, require_all_features
from .solve import EPS, MARGIN, Factorisation, factorise
from .tokens import Floats, Positions, as_positions, as_tokens, as_weights

Verdict: TypeAlias = Literal["identifiable", "not identifiable", "undecided"]

_DENSE_UP_TO = 64
"""Below this size a dense eigendecomposition is faster than an iteration."""


@dataclass(frozen=True)
class Certificate:
    """What the data determines. Made by :func:`certify` and by every fit."""

    lambda_min: float
    """Smallest eigenvalue of Lambda, in the paper's scaling; an estimate from above, 0 when the
    rank is short."""
    lower_bound: float
    """A number that lambda_min is proved to be at least. 0, which holds for every second moment:
    this version proves nothing stronger."""
    verdict: Verdict
    condition: float
    """lambda_max / lambda_min of Lambda; infinite when the rank is short."""
    rank: int
    """Numerical rank of Lambda: eigenvalues of A above 10 p eps lambda_max(A). With fewer samples
    than features, their number, which is the most it can be."""
    dimension: int
    """Number of features, p."""
    n_samples: int
    evidence: str
    """What the verdict rests on, in words and numbers."""
    spectrum: Floats | None = field(default=None, repr=False)
    """All eigenvalues of Lambda, ascending, when they were asked for."""

    def __str__(self) -> str:
        return (
            f"{self.verdict}: {self.evidence}\n"
            f"  lambda_min {self.lambda_min:.6g}, condition {self.condition:.3g}, "
            f"rank {self.rank} of {self.dimension}, {self.n_samples} samples"
        )


def largest_eigenvalue(apply: Callable[[Floats], Floats], p: int) -> float:
    """Largest eigenvalue of a symmetric positive semidefinite operator on R^p, by Lanczos.

    The iteration approaches it from below; it stops at a relative change of about 1e-10. It starts
    from a fixed vector, so the result is the same every time.
    """
    if p <= _DENSE_UP_TO:
        matrix = np.stack([apply(column) for column in np.eye(p)])
        return float(eigvalsh((matrix + matrix.T) / 2)[-1])
    operator = LinearOperator((p, p), matvec=apply, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(p)
    try:
        values = eigsh(operator, k=1, which="LA", v0=start, tol=1e-10, return_eigenvectors=False)
        return float(values[0])
    except ArpackError:  # hundreds of eigenvalues within 1e-10: any of them will do
        vector = start
        for _ in range(100):
            vector = apply(vector / np.linalg.norm(vector))
        return float(np.linalg.norm(vector))


def extreme_eigenvalues(factor: Factorisation) -> tuple[float, float]:
    """Smallest and largest eigenvalue of Lambda, from its factorisation of full rank."""
    p = factor.rank

    def inverse(x: Floats) -> Floats:
        return factor.solve(x.reshape(p, 1))[:, 0]

    return 1 / largest_eigenvalue(inverse, p), largest_eigenvalue(factor.multiply, p)


def _judge(factor: Factorisation, p: int, zeros: int) -> tuple[Verdict, str]:
    """Apply the three rules at the top of this file."""
    level = p * EPS
    if zeros:
        return "not identifiable", (
            f"{zeros} of {p} features are zero in every sample, so that other layers fit as well"
        )
    if factor.name == "cholesky":
        return "identifiable", (
            f"the equilibrated second moment has a Cholesky factorisation and a reciprocal "
            f"condition of {factor.smallest:.2g}, above the rounding margin {MARGIN * level:.2g}"
        )
    found = f"smallest over largest eigenvalue, equilibrated: {factor.smallest:.2g}"
    if factor.smallest > MARGIN * level:
        return "identifiable", f"{found}, above the rounding margin {MARGIN * level:.2g}"
    if factor.smallest <= level:
        return "not identifiable", (
            f"numerical rank {factor.rank} of {p}; {found}, at the rounding level {level:.2g}"
        )
    return "undecided", (
        f"{found}, between the rounding level {level:.2g} and the margin {MARGIN * level:.2g}"
    )


def certificate_by_counting(n_samples: int, p: int) -> Certificate:
    """Certificate of fewer samples than features, which needs no factorisation."""
    return Certificate(
        lambda_min=0.0,
        condition=float("inf"),
        lower_bound=0.0,
        verdict="not identifiable",
        rank=n_samples,
        dimension=p,
        n_samples=n_samples,
        evidence=f"{n_samples} samples are fewer than the {p} features, "
        f"so the rank is at most {n_samples}",
    )


def certificate_from(
    moments: Moments, factor: Factorisation | None = None, *, spectrum: bool = False
) -> Certificate:
    """Certificate of accumulated moments.

    Parameters
    ----------
    moments
        At least one sample.
    factor
        A factorisation of Lambda, if a fit has made one already.
    spectrum
        Compute all eigenvalues, too.
    """
    moments.required_weight()
    p, n = moments.dimension, moments.n_samples
    values = None
    if spectrum:
        values = np.asarray(eigvalsh(moments.second_moment(), check_finite=False), np.float64)
    if n < p:
        counted = certificate_by_counting(n, p)
        rank = n if factor is None else min(n, factor.rank)
        return replace(counted, rank=rank, spectrum=values)
    if factor is None:
        factor = factorise(moments.second_moment).factorisation
    verdict, evidence = _judge(factor, p, int((moments.gram_diagonal() == 0).sum()))
    full = factor.rank == p
    smallest, largest = extreme_eigenvalues(factor) if full else (0.0, float("inf"))
    return Certificate(
        lambda_min=smallest,
        condition=largest / smallest if full else float("inf"),
        lower_bound=0.0,
        verdict=verdict,
        rank=factor.rank,
        dimension=p,
        n_samples=n,
        evidence=evidence,
        spectrum=values,
    )


def certify(
    Z: object,
    *,
    offsets: object = None,
    positions: Positions = "last",
    sample_weight: object = None,
    features: None = None,
    backend: str = "auto",
    spectrum: bool = False,
    memory_limit: int | None = None,
) -> Certificate:
    """Certify that tokens, or accumulated moments, determine a linear attention layer.

    Parameters
    ----------
    Z
        Tokens: (N, n, d), a list of (n_i, d), or (sum n_i, d) with offsets; or :class:`Moments`,
        and then nothing else about the data is given. Targets play no part.
    offsets, positions, sample_weight, features, backend
        As for :func:`linattn_fast.fit`.
    spectrum
        Compute all eigenvalues of the second moment: a dense eigendecomposition.
    memory_limit
        Bytes that may be used; the machine's memory by default.

    Examples
    --------
    >>> import numpy as np, linattn_fast as la
    >>> Z = np.random.default_rng(0).standard_normal((500, 10, 3))
    >>> la.certify(Z).verdict
    'identifiable'
    >>> la.certify(Z[:17]).verdict  # 17 samples, 18 features
    'not identifiable'
    """
    if isinstance(Z, Moments):
        if offsets is not None or sample_weight is not None:
            raise ValueError("offsets, sample_weight: moments carry their own data; give Z alone")
        moments = Z
    else:
        require_all_features(features)
        positions = as_positions(positions)
        tokens = as_tokens(Z, offsets)
        weights = as_weights(sample_weight, len(tokens))
        moments = Moments(tokens.d, 0, positions=positions, backend=backend)
        require_certificate_memory(moments.d, tokens.n_samples(positions), memory_limit)
        moments.add_checked(tokens, None, weights, None)
    require_certificate_memory(moments.d, moments.n_samples, memory_limit)
    return certificate_from(moments, spectrum=spectrum)


def require_certificate_memory(d: int, n_samples: int, memory_limit: int | None) -> None:
    """Raise MemoryError when the certificate needs a factorisation that does not fit."""
    needed = estimate_memory(d, 0)
    if n_samples < feature_count(d):  # decided by counting
        return
    require_memory(
        needed["cholesky"],
        f"certify: the dense second moment of d = {d} ({in_words(8 * feature_count(d) ** 2)})",
        memory_limit,
    )
