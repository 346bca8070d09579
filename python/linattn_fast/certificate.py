"""The certificate: does the data determine the layer?

With Lambda = mean h h' the second moment of the cubic features (p x p), every best-fitting layer
computes the same function on every input exactly when lambda_min(Lambda) > 0.

    "identifiable"      lambda_min > 0 is proved for the data in exact arithmetic, all rounding
                        accounted for (:mod:`linattn_fast.lower_bound`)
    "not identifiable"  proved: fewer samples than features, or a feature that is always zero; or
                        numerically: an eigenvalue of the equilibrated second moment at the rounding
                        level (:mod:`linattn_fast.solve`), which rounding alone explains
    "undecided"         anything between

With the data at hand, what the Gram leaves open is looked at in the singular values of the
features themselves (:mod:`linattn_fast.orthogonal`), which see twice as many digits. What is
determined where the whole layer is not is the subject of :mod:`linattn_fast.coverage`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, TypeAlias, overload

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigvalsh
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

from .backend import get_backend
from .coverage import Coverage, coverage_of_samples, describe
from .features import feature_count
from .lower_bound import Proof, prove
from .memory import as_memory_limit, as_size, estimate_memory, in_words, require_memory
from .moments import Moments, require_all_features, total_weight
from .orthogonal import solve_on_data
from .solve import CholeskyFactor, Factorisation, SpectralFactor, factorise, try_cholesky
from .tokens import (
    Array,
    Floats,
    Kind,
    Positions,
    Tokens,
    as_positions,
    as_tokens,
    as_weights,
    non_finite_error,
)

Verdict: TypeAlias = Literal["identifiable", "not identifiable", "undecided"]

_DENSE_UP_TO = 64
"""Below this size a dense eigendecomposition is faster than an iteration."""


@dataclass(frozen=True)
class Certificate:
    """What the data determines. Made by :func:`certify` and by every fit.

    Notes
    -----
    ``covers``, ``leverage``, ``error_bound``, ``null_space`` and ``explain`` factorise the second
    moment when they are first called, from the moments (or, of fewer samples than features, from
    the tokens), which a certificate therefore keeps. A certificate that was pickled or loaded from
    a file has left them behind and answers only for the layer as a whole; make another one with
    ``la.certify(moments)``.
    """

    lambda_min: float
    """Smallest eigenvalue of Lambda, in the paper's scaling; an estimate, 0 when the rank is
    short."""
    lower_bound: float
    """Proved: lambda_min of the data, in exact arithmetic, is at least this. 0 proves nothing."""
    verdict: Verdict
    condition: float
    """lambda_max / lambda_min of Lambda; infinite when the rank is short."""
    rank: int
    """Numerical rank of Lambda: eigenvalues of A above the margin. With fewer samples than
    features, their number, which is the most it can be."""
    dimension: int
    """Number of features, p."""
    n_samples: int
    evidence: str
    """What the verdict rests on, in words and numbers."""
    d: int
    """Coordinates of a token."""
    positions: Positions
    """Which tokens were queries."""
    noise_samples: float
    """Total weight over the largest weight: how many samples noise averages over."""
    spectrum: Floats | None = field(default=None, repr=False, compare=False)
    """All eigenvalues of Lambda, ascending, when they were asked for."""
    source: Source | None = field(default=None, repr=False, compare=False)
    """Where the factorisation of Lambda comes from."""

    def __str__(self) -> str:
        return (
            f"{self.verdict}: {self.evidence}\n"
            f"  lambda_min {self.lambda_min:.6g} (proved: at least {self.lower_bound:.6g}), "
            f"condition {self.condition:.3g}, "
            f"rank {self.rank} of {self.dimension}, {self.n_samples} samples"
        )

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "source": None}

    def _coverage(self) -> Coverage:
        if self.source is None:
            raise ValueError(
                "certificate: it was loaded from a file or pickled, without the moments that this "
                "question needs; make it again with la.certify(moments) or la.certify(Z)"
            )
        return self.source.coverage

    def _queries(self, Z: object, offsets: object, positions: object) -> tuple[Tokens, Positions]:
        where = self.positions if positions is None else as_positions(positions)
        return as_tokens(Z, offsets, d=self.d), where

    @overload
    def covers(
        self,
        Z: object,
        *,
        offsets: object = ...,
        positions: Positions | None = ...,
        tol: float | None = ...,
        return_residual: Literal[False] = ...,
    ) -> Array | list[Array]: ...
    @overload
    def covers(
        self,
        Z: object,
        *,
        offsets: object = ...,
        positions: Positions | None = ...,
        tol: float | None = ...,
        return_residual: Literal[True],
    ) -> tuple[Array | list[Array], Floats | list[Floats]]: ...
    def covers(
        self,
        Z: object,
        *,
        offsets: object = None,
        positions: Positions | None = None,
        tol: float | None = None,
        return_residual: bool = False,
    ) -> Array | list[Array] | tuple[Array | list[Array], Floats | list[Floats]]:
        """Is the prediction at Z determined: does every best fit give the same?

        That is so exactly when the features h(Z) lie in the range of the second moment.

        Parameters
        ----------
        Z, offsets
            Tokens: (N, n, d), a list of (n_i, d), or (sum n_i, d) with offsets.
        positions
            Which tokens query; by default as in the data.
        tol
            Relative distance from the range that counts as none. By default ten times the error
            that rounding makes in the range, at most 1e-2.
        return_residual
            Return that distance as well.

        Returns
        -------
        array or list of bool
            (N,) for "last", otherwise one a token in the form of Z.
        """
        tokens, where = self._queries(Z, offsets, positions)
        if tol is not None and not (isinstance(tol, int | float) and 0 <= tol < 1):
            raise ValueError(f"tol: a number from 0 up to but not 1 is needed, got {tol!r}")
        coverage = self._coverage()
        residual = coverage.residuals(tokens, where)
        covered = residual <= (coverage.tolerance if tol is None else tol)
        answer = _per_query(covered, tokens, where)
        return (answer, _per_query(residual, tokens, where)) if return_residual else answer

    def leverage(
        self, Z: object, *, offsets: object = None, positions: Positions | None = None
    ) -> Floats | list[Floats]:
        """h' Lambda^+ h at each query of Z; infinite where the data determines nothing.

        Its mean over the training data is the rank.
        """
        tokens, where = self._queries(Z, offsets, positions)
        return _per_query(self._coverage().leverages(tokens, where), tokens, where)

    def error_bound(
        self,
        Z: object,
        eps: float | None = None,
        *,
        noise: float | None = None,
        confidence: float = 0.95,
        offsets: object = None,
        positions: Positions | None = None,
    ) -> Floats | list[Floats]:
        """Bound how far predictions at Z can be apart, in each output.

        Parameters
        ----------
        Z, offsets, positions
            As for :meth:`covers`.
        eps
            Any two layers with mean squared training errors of at most eps differ by at most
            ``2 sqrt(eps leverage)``.
        noise
            Instead of eps: targets are a layer's outputs plus independent noise of mean zero and at
            most this size. The least-squares prediction then errs, with probability
            ``confidence``, by at most ``noise sqrt(2 log(2 / (1 - confidence)) leverage / n)``, n
            the number of samples (total over largest weight).
        confidence
            Of the noise form, for each query and output.
        """
        if (eps is None) == (noise is None):
            raise ValueError("eps, noise: give one of them, eps or noise")
        size, name = (eps, "eps") if noise is None else (noise, "noise")
        if not (isinstance(size, int | float | np.number) and 0 <= float(size) < np.inf):
            raise ValueError(
                f"{name}: a finite number that is not negative is needed, got {size!r}"
            )
        if not (isinstance(confidence, int | float) and 0 < confidence < 1):
            raise ValueError(f"confidence: a number between 0 and 1 is needed, got {confidence!r}")
        tokens, where = self._queries(Z, offsets, positions)
        root = np.sqrt(self._coverage().leverages(tokens, where))
        if noise is None:
            factor = 2 * np.sqrt(float(size))
        else:
            factor = float(size) * np.sqrt(2 * np.log(2 / (1 - confidence)) / self.noise_samples)
        # Layers that agree exactly still disagree where the data says nothing.
        bound = np.where(np.isinf(root), np.inf, factor * np.where(np.isinf(root), 0.0, root))
        return _per_query(bound, tokens, where)

    def null_space(self, k: int) -> Floats:
        """Return the k least determined directions of the coefficients, (k, p), of length one.

        Those along which every training prediction stays the same come first: features that are
        zero in every sample, each by itself, then combinations of few features. Then the directions
        of least mean square, in units where every feature has mean square one.
        """
        return self._coverage().least_determined(self._directions(k))[0]

    def explain(self, k: int = 5, *, names: Sequence[str] | None = None) -> list[str]:
        """Say in words what the k least determined directions are.

        Parameters
        ----------
        k
            Directions, at most; of :meth:`null_space`.
        names
            Of the d coordinates; x0, x1, .. by default, counted from zero as in the arrays.

        Examples
        --------
        >>> import numpy as np, linattn_fast as la
        >>> Z = np.random.default_rng(0).standard_normal((100, 5, 2))
        >>> Z[:, -1, 1] = 0.0  # the last token never queries x1
        >>> la.certify(Z).explain(1)
        ['tokens never vary along x0*x0 with query x1']
        """
        coordinates = [f"x{i}" for i in range(self.d)] if names is None else [str(x) for x in names]
        if len(coordinates) != self.d:
            raise ValueError(f"names: {self.d} names are needed, got {len(coordinates)}")
        directions, values = self._coverage().least_determined(self._directions(k))
        return [
            describe(direction, float(value), self.d, coordinates)
            for direction, value in zip(directions, values, strict=True)
        ]

    def _directions(self, k: int) -> int:
        return min(as_size(k, "k"), self.dimension)


def _per_query(
    values: npt.NDArray[Kind], tokens: Tokens, positions: Positions
) -> npt.NDArray[Kind] | list[npt.NDArray[Kind]]:
    """One value a query, in the form of the tokens."""
    if positions == "last":
        return values
    shaped = tokens.restore(values[:, None])
    return shaped[..., 0] if isinstance(shaped, np.ndarray) else [part[:, 0] for part in shaped]


@dataclass(frozen=True)
class Source:
    """Where a certificate finds the range of Lambda when it is asked about single inputs."""

    moments: Moments | None
    data: tuple[Tokens, Floats | None, Positions] | None = None
    """Tokens, weights and positions, of fewer samples than features."""
    factor: SpectralFactor | None = None
    """From the features themselves, where it was made already."""

    @cached_property
    def coverage(self) -> Coverage:
        """Factorise, once."""
        if self.data is not None:
            tokens, weights, positions = self.data
            n, p = tokens.n_samples(positions), feature_count(tokens.d)
            require_memory(24 * n * p, f"certificate: the features of {n} samples and their range")
            return coverage_of_samples(tokens, weights, positions)
        assert self.moments is not None
        diagonal = np.asarray(self.moments.gram_diagonal() / self.moments.required_weight())
        if self.factor is not None:
            return Coverage(self.factor, diagonal, self.moments.d)
        made = factorise(self.moments.second_moment, steps=self.moments.rounding_steps)
        assert isinstance(made.factorisation, CholeskyFactor | SpectralFactor)
        return Coverage(made.factorisation, diagonal, self.moments.d)


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


def _judge(factor: Factorisation, p: int, zeros: int, proof: Proof) -> tuple[Verdict, str]:
    """Apply the three rules at the top of this file."""
    if zeros:
        return "not identifiable", (
            f"{zeros} of {p} features are zero in every sample (or underflow), "
            "so that other layers fit as well"
        )
    if proof.bound > 0:
        return "identifiable", (
            f"proved: lambda_min of the exact second moment is at least {proof.bound:.4g} "
            f"({proof.reason})"
        )
    ratio, level, margin = factor.smallest, factor.level, factor.margin
    what = "smallest over largest eigenvalue of the equilibrated second moment"
    if factor.name == "cholesky":
        what = "the equilibrated second moment has a Cholesky factorisation; reciprocal condition"
    if factor.name == "qr":
        ratio, level, margin = (float(np.sqrt(max(x, 0.0))) for x in (ratio, level, margin))
        what = "smallest over largest singular value of the equilibrated features"
    found = f"{what}: {ratio:.2g}"
    if ratio <= level:
        return "not identifiable", (
            f"numerically: rank {factor.rank} of {p}; {found}, at the rounding level {level:.2g}"
        )
    side = "above" if ratio > margin else "below"
    return "undecided", (
        f"{found}, {side} the margin {margin:.2g} that numerical rank goes by, but nothing is "
        f"proved: {proof.reason}"
    )


def certificate_by_counting(
    n_samples: int, d: int, positions: Positions, noise_samples: float, source: Source
) -> Certificate:
    """Certificate of fewer samples than features, which needs no factorisation."""
    p = feature_count(d)
    return Certificate(
        lambda_min=0.0,
        condition=float("inf"),
        lower_bound=0.0,
        verdict="not identifiable",
        rank=n_samples,
        dimension=p,
        n_samples=n_samples,
        evidence=f"proved by counting: {n_samples} samples are fewer than the {p} features, "
        f"so the rank is at most {n_samples}",
        d=d,
        positions=positions,
        noise_samples=noise_samples,
        source=source,
    )


def counted_on_data(tokens: Tokens, weights: Floats | None, positions: Positions) -> Certificate:
    """The same, from the data."""
    noise_samples = float(tokens.n_samples(positions))
    if weights is not None:
        noise_samples = total_weight(tokens, weights, positions) / float(weights.max())
    source = Source(None, (tokens, weights, positions))
    return certificate_by_counting(
        tokens.n_samples(positions), tokens.d, positions, noise_samples, source
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
    weight = moments.required_weight()
    p, n = moments.dimension, moments.n_samples
    noise_samples = weight / moments.accumulation.largest_weight
    values = None
    if spectrum:
        values = np.asarray(eigvalsh(moments.second_moment(), check_finite=False), np.float64)
    if n < p:
        counted = certificate_by_counting(
            n, moments.d, moments.positions, noise_samples, Source(moments)
        )
        rank = n if factor is None else min(n, factor.rank)
        return replace(counted, rank=rank, spectrum=values)
    if factor is None:
        factor = factorise(moments.second_moment, steps=moments.rounding_steps).factorisation
    full = factor.rank == p
    smallest, largest = extreme_eigenvalues(factor) if full else (0.0, float("inf"))
    proof = prove(moments, smallest)
    verdict, evidence = _judge(factor, p, int((moments.gram_diagonal() == 0).sum()), proof)
    spectral = factor if isinstance(factor, SpectralFactor) else None
    return Certificate(
        lambda_min=smallest,
        condition=largest / smallest if full else float("inf"),
        lower_bound=proof.bound,
        verdict=verdict,
        rank=factor.rank,
        dimension=p,
        n_samples=n,
        evidence=evidence,
        d=moments.d,
        positions=moments.positions,
        noise_samples=noise_samples,
        spectrum=values,
        source=Source(moments, factor=spectral),
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
    memory_limit = as_memory_limit(memory_limit)
    if isinstance(Z, Moments):
        if offsets is not None or sample_weight is not None:
            raise ValueError("offsets, sample_weight: moments carry their own data; give Z alone")
        moments = Z
    else:
        require_all_features(features)
        positions = as_positions(positions)
        tokens = as_tokens(Z, offsets)
        weights = as_weights(sample_weight, len(tokens))
        if weights is not None and not weights.any():
            raise ValueError("sample_weight: at least one weight must be positive, got all zero")
        if tokens.n_samples(positions) < feature_count(tokens.d) and not spectrum:
            get_backend(backend)  # a wrong name is an error all the same
            if not all(np.isfinite(sequence).all() for sequence in tokens):
                raise non_finite_error(tokens)
            return counted_on_data(tokens, weights, positions)
        moments = Moments(tokens.d, 0, positions=positions, backend=backend)
        require_certificate_memory(moments.d, tokens.n_samples(positions), memory_limit)
        moments.add_checked(tokens, None, weights, None)
        return certificate_from(
            moments, certifying_factor(moments, tokens, weights, memory_limit), spectrum=spectrum
        )
    require_certificate_memory(moments.d, moments.n_samples, memory_limit)
    return certificate_from(moments, spectrum=spectrum)


def certifying_factor(
    moments: Moments, tokens: Tokens, weights: Floats | None, memory_limit: int | None
) -> Factorisation | None:
    """Factorise Lambda: by Cholesky if safe, else from the data; None if counting decides."""
    if moments.n_samples < moments.dimension:
        return None
    factor = try_cholesky(moments.second_moment(), moments.rounding_steps)
    if not isinstance(factor, str):
        return factor
    require_memory(
        estimate_memory(moments.d, 0)["qr"],
        f"certify: {factor}; deciding it from the features of d = {moments.d}",
        memory_limit,
    )
    diagonal = moments.gram_diagonal() / moments.required_weight()
    nothing = np.zeros((moments.n_samples, 0))
    return solve_on_data(tokens, nothing, weights, moments.positions, 0.0, diagonal)[1]


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
