"""Making a certificate: from the data or from its moments, by counting or by a factorisation."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.linalg import eigvalsh
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

from .backend import get_backend
from .blas_threads import same_bits
from .block_factors import factorise_moments, try_cholesky_of_moments
from .cancellation import feature_sizes, summand_sizes
from .certificate import Certificate, Verdict
from .certificate_source import Data, Source
from .device import device_of, module_of, on_device, put, to_host
from .doubtful_data import warn_of_padding
from .exact_rank import ExactRank, counting, exact_rank, unseen_features
from .features import Features, as_features
from .left_out import require_none_left_out
from .lower_bound import Proof, prove
from .memory import as_memory_limit, estimate_memory, in_words, require_memory
from .modular_features import ModularData, Reading
from .moments import Moments
from .non_finite import non_finite_error
from .orthogonal import solve_on_data
from .progress import Bar
from .solve import Choice, Factorisation, SpectralFactor, algebra_of
from .tokens import (
    Floats,
    Positions,
    Tokens,
    as_positions,
    as_tokens,
    as_weights,
    require_positive,
    total_weight,
)

_DENSE_UP_TO = 64
"""Below this size a dense eigendecomposition is faster than an iteration."""


def largest_eigenvalue(
    apply: Callable[[Floats], Floats], p: int, *, tolerance: float = 1e-10
) -> float:
    """Largest eigenvalue of a symmetric positive semidefinite operator on R^p, by Lanczos.

    The iteration approaches it from below; it stops at a relative change of about ``tolerance``. It
    starts from a fixed vector, so the result is the same every time. What overflows is infinite.
    """
    if p <= _DENSE_UP_TO:
        matrix = np.stack([apply(column) for column in np.eye(p)])
        if not np.isfinite(matrix).all():
            return float("inf")
        return float(eigvalsh(matrix / 2 + matrix.T / 2)[-1])  # the sum alone might overflow
    operator = LinearOperator((p, p), matvec=apply, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(p)
    try:
        values = eigsh(
            operator, k=1, which="LA", v0=start, tol=tolerance, return_eigenvectors=False
        )
        found = float(values[0])
    except ArpackError:  # hundreds of eigenvalues within the tolerance: any of them will do
        vector = start
        for _ in range(100):
            vector = apply(vector / np.linalg.norm(vector))
        found = float(np.linalg.norm(vector))
    return found if np.isfinite(found) else float("inf")


def extreme_eigenvalues(factor: Factorisation) -> tuple[float, float]:
    """Smallest and largest eigenvalue of Lambda, from its factorisation of full rank."""
    p, place = factor.rank, factor.scale

    def inverse(x: Floats) -> Floats:
        return to_host(factor.solve(put(x, place).reshape(p, 1))[:, 0])

    def forward(x: Floats) -> Floats:
        return to_host(factor.multiply(put(x, place)))

    with np.errstate(over="ignore", invalid="ignore"):  # 1 / lambda_min may be infinite
        return 1 / largest_eigenvalue(inverse, p), largest_eigenvalue(forward, p)


def judge(
    factor: Factorisation, p: int, proof: Proof, exact: Callable[[], ExactRank]
) -> tuple[Verdict, str]:
    """Apply the three rules of :mod:`linattn_fast.certificate`.

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


def exact_rank_of_moments(moments: Moments) -> ExactRank:
    """What moments alone prove about the exact rank: features that are zero in every sample.

    The sum of w S_jj S_kk z_l^2 is zero, with nothing lost below the smallest number, only if the
    feature is zero in every sample. A mean square of zero is not enough: in it, S_jk has been
    rounded.
    """
    p = moments.dimension
    if not moments.accumulation.underflow:
        zeros = int((summand_sizes(moments) == 0).sum())
        if zeros:
            return ExactRank(0, p - zeros, unseen_features(zeros, p, exactly=False))
    lost = int((moments.gram_diagonal() == 0).sum())
    found = f"{lost} features have a mean square of zero as computed, but " if lost else ""
    return ExactRank(0, p, f"{found}moments alone cannot tell what is small from what is zero")


def certificate_by_counting(
    n_samples: int, positions: Positions, noise_samples: float, source: Source
) -> Certificate:
    """Certificate of fewer samples than features, which needs no factorisation."""
    p = source.features.count
    return Certificate(
        lambda_min=0.0,
        condition=float("inf"),
        lower_bound=0.0,
        verdict="not identifiable",
        rank=n_samples,
        dimension=p,
        n_samples=n_samples,
        evidence=counting(n_samples, p, f"{n_samples} samples"),
        features=source.features,
        positions=positions,
        noise_samples=noise_samples,
        source=source,
    )


def counted_on_data(
    tokens: Tokens, weights: Floats | None, positions: Positions, features: Features
) -> Certificate:
    """The same, from the data."""
    n = tokens.n_samples(positions)
    noise_samples = float(n)
    if weights is not None:
        noise_samples = total_weight(tokens, weights, positions) / float(weights.max())
    source = Source(features, None, (tokens, weights, positions))
    counted = certificate_by_counting(n, positions, noise_samples, source)
    if weights is None or (weights > 0).all():
        return counted
    count = int(total_weight(tokens, (weights > 0).astype(np.float64), positions))
    said = counting(count, features.count, f"{count} of {n} samples have positive weight, which")
    return replace(counted, rank=count, evidence=said)


def certificate_from(
    moments: Moments,
    factor: Factorisation | None = None,
    *,
    read: Callable[[], Reading] | None = None,
    spectrum: bool = False,
    data: Data | None = None,
    modular: ModularData | None = None,
) -> Certificate:
    """Certificate of accumulated moments.

    Parameters
    ----------
    moments
        At least one sample.
    factor
        A factorisation of Lambda, if a fit has made one already.
    read
        Reads the data, which is asked where the moments prove nothing; as often as need be.
    spectrum
        Compute all eigenvalues, too.
    data
        What the moments are of, where it is at hand: for questions about single inputs.
    modular
        It modulo primes, where something may have been found out before.
    """
    weight = moments.required_weight()
    p, n = moments.dimension, moments.n_samples
    noise_samples = weight / moments.accumulation.largest_weight
    values = None
    if spectrum:
        matrix = moments.second_moment()
        values = algebra_of(matrix).eigenvalues(matrix)
    if n < p:
        source = Source(moments.features, moments, data)
        counted = certificate_by_counting(n, moments.positions, noise_samples, source)
        rank = n if factor is None else min(n, factor.rank)
        return replace(counted, rank=rank, spectrum=values)
    if factor is None:
        factor = factorise_moments(moments).factorisation
    full = factor.rank == p
    smallest, largest = extreme_eigenvalues(factor) if full else (0.0, float("inf"))
    proof = prove(moments.get(), smallest)

    def exact() -> ExactRank:
        if read is None:
            return exact_rank_of_moments(moments.get())
        return exact_rank(modular or ModularData(read, moments.positions, moments.features))

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
        source=Source(moments.features, moments, data, spectral),
    )


@same_bits
def certify(
    Z: object,
    *,
    offsets: object = None,
    positions: Positions = "last",
    sample_weight: object = None,
    features: Features | None = None,
    backend: str = "auto",
    spectrum: bool = False,
    memory_limit: int | None = None,
    progress: bool | Callable[[int, Any], object] = False,
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
    progress
        True shows a bar while moments are accumulated; a function is called with the sequences done
        and their number.

    Returns
    -------
    Certificate
        The verdict and what it rests on, ready for questions about single inputs.

    Raises
    ------
    ValueError, TypeError
        An argument that does not fit; the message begins with its name.
    MemoryError
        The factorisation does not fit in ``memory_limit``; raised before any work.

    Examples
    --------
    >>> import numpy as np, linattn_fast as la
    >>> Z = np.random.default_rng(0).standard_normal((500, 10, 3))
    >>> la.certify(Z).verdict
    'identifiable'
    >>> la.certify(Z[:17]).verdict  # 17 samples, 18 features
    'not identifiable'
    """
    memory_limit = as_memory_limit(memory_limit)
    Bar(0, "", progress)  # checked before any work
    with on_device(device_of(Z)), np.errstate(all="ignore"):  # what overflows is refused
        if isinstance(Z, Moments):
            if offsets is not None or sample_weight is not None or features is not None:
                raise ValueError(
                    "offsets, sample_weight, features: moments carry their own data; give Z alone"
                )
            moments = Z
        else:
            positions = as_positions(positions)
            tokens = as_tokens(Z, offsets)
            chosen = as_features(features, tokens.d)
            weights = as_weights(sample_weight, len(tokens))
            if weights is not None:
                require_positive(float(weights.max()))
            require_none_left_out(tokens, weights, positions, chosen)
            warn_of_padding(tokens, positions)
            engine = get_backend(backend, tokens)  # a wrong name is an error before any work
            if engine.name != "cuda" and not spectrum:
                # Both are built on this module
                from .block_choice import blocks_worth_it  # noqa: PLC0415  # imports this
                from .block_fit import certify_blocks  # noqa: PLC0415  # imports this

                blocks = blocks_worth_it(
                    tokens, weights, positions, chosen, 0, memory_limit, proof=True
                )
                if blocks is not None:
                    return certify_blocks(
                        blocks, tokens, weights, positions, engine.name, memory_limit, progress
                    )
            if tokens.n_samples(positions) < chosen.count and not spectrum:
                if not all(module_of(array).isfinite(array).all() for array in tokens.arrays):
                    raise non_finite_error(tokens)
                return counted_on_data(tokens, weights, positions, chosen)
            moments = Moments(
                tokens.d, 0, positions=positions, features=chosen, backend=engine.name
            )
            require_certificate_memory(chosen, tokens.n_samples(positions), memory_limit)
            with Bar(len(tokens), "moments", progress) as watch:
                moments.add_checked(tokens, None, weights, watch)

            def read() -> Reading:
                return nullcontext(iter([(tokens, weights)]))

            factor = certifying_factor(moments, read, memory_limit)
            data = (tokens, weights, positions)
            return certificate_from(moments, factor, read=read, spectrum=spectrum, data=data)
        require_certificate_memory(moments.features, moments.n_samples, memory_limit)
        return certificate_from(moments, spectrum=spectrum)


def certifying_factor(
    moments: Moments, read: Callable[[], Reading], memory_limit: int | None
) -> Factorisation | None:
    """Factorise Lambda: by Cholesky if safe, else from the data; None if counting decides."""
    if moments.n_samples < moments.dimension:
        return None
    choice = try_cholesky_of_moments(moments)
    if isinstance(choice, Choice):
        return choice.factorisation
    require_memory(
        estimate_memory(moments.d, 0, features=moments.features)["qr"],
        f"certify: {choice}; deciding it from the features of d = {moments.d}",
        memory_limit,
    )
    weight = moments.required_weight()
    with read() as batches:
        return solve_on_data(
            (
                (tokens, np.zeros((tokens.n_samples(moments.positions), 0)), w)
                for tokens, w in batches
            ),
            moments.n_samples,
            weight,
            moments.positions,
            0.0,
            feature_sizes(moments),
            moments.features,
            0,
        )[1]


def require_certificate_memory(
    features: Features, n_samples: int, memory_limit: int | None
) -> None:
    """Raise MemoryError when the certificate needs a factorisation that does not fit."""
    needed = estimate_memory(features.d, 0, features=features)
    if n_samples < features.count:  # decided by counting
        return
    require_memory(
        needed["cholesky"],
        f"certify: the dense second moment of d = {features.d} ({in_words(8 * features.count**2)})",
        memory_limit,
    )
