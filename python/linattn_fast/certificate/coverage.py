"""What the data determines, input by input, judged in float64.

A prediction C h(Z) is the same for every best fit C exactly when h(Z) lies in the range of the
second moment Lambda. With the equilibrated matrix A = D Lambda D = U diag(w) U', over the
eigenvalues that count as real, that is x = D h in the span of U:

    residual   ||x - U U'x|| / ||x||        0 when determined

U is not exact. Rounding of size delta in A tilts its i-th column out of the range by about
delta / w_i (with singular values in the place of eigenvalues if U comes from the features), so the
computed residual of an input in the range is up to

    tolerance   10 sum_i (delta / w_i) |u_i'x|  +  rounding of x

Where that is itself no small part of ||x||, float64 cannot tell.

Which inputs are in the range in exact arithmetic is decided in
:mod:`linattn_fast.certificate.determined_range`, and leverages are bounded in
:mod:`linattn_fast.certificate.leverage`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import eigh, qr, solve_triangular
from scipy.sparse.linalg import LinearOperator, eigsh

from ..arrays.device import device_of, module_of, on_own_device, put, to_host
from ..arrays.types import Array, Floats, Positions
from ..backend.choice import get_backend
from ..data.non_finite import non_finite_error
from ..data.tokens import Tokens
from ..features.features import Features
from ..features.samples import Samples
from ..linalg.algebra import algebra_of
from ..linalg.cholesky import CholeskyFactor, power_of_two_scale
from ..linalg.factors import EPS, MARGIN
from ..linalg.spectral import SpectralFactor
from ..moments.sums import sizes
from .leverage import rounding, summands_of

CLOSE = 1e-3
"""The largest tolerance, as a part of the length of an input, from which anything follows."""
_DENSE_UP_TO = 512
"""Number of features up to which a dense eigensolver finds even a few eigenvectors faster."""


@dataclass(frozen=True)
class Coverage:
    """The range of a second moment, ready for questions about inputs."""

    factor: CholeskyFactor | SpectralFactor
    diagonal: Floats
    """Mean square of each feature, (p,)."""
    features: Features

    @property
    def p(self) -> int:
        """Number of features."""
        return len(self.diagonal)

    @property
    def device(self) -> int | None:
        """The CUDA device of the factorisation; None for the host."""
        return device_of(self.diagonal)

    def get(self) -> Coverage:
        """Copy the range to the host, with all its arrays."""
        return Coverage(self.factor.get(), to_host(self.diagonal), self.features)

    @cached_property
    def unseen(self) -> Array:
        """Features that are zero in every sample, (p,) of bool."""
        unseen: Array = self.diagonal == 0
        return unseen

    @cached_property
    def tilts(self) -> Floats:
        """Bounds 10 delta / w_i on how far each column of U is out of the range, (r,)."""
        factor = self.factor
        assert isinstance(factor, SpectralFactor)
        tilts: Floats = factor.level * factor.values[-1] / factor.values[self.p - factor.rank :]
        if factor.name == "qr":
            tilts = module_of(tilts).sqrt(tilts)
        return MARGIN * tilts

    @cached_property
    def _weak(self) -> float:
        """Bound on the root mean square of the data along the directions that were not kept."""
        factor = self.factor
        assert isinstance(factor, SpectralFactor)
        if factor.rank == 0:
            return 0.0
        weak = factor.values[: self.p - factor.rank]
        found = module_of(weak).maximum(weak, 0.0).sum()
        return float(np.sqrt(found + MARGIN * self.p * factor.level * factor.values[-1]))

    def _times(self, inner: Floats) -> Floats:
        """Leverage of U'x (rows, r), but at least 1: how many samples a row counts as, (rows,)."""
        factor = self.factor
        assert isinstance(factor, SpectralFactor)
        leverage = (inner**2 / factor.values[self.p - factor.rank :]).sum(axis=1)
        times: Floats = module_of(leverage).maximum(leverage, 1.0)
        return times

    @property
    def _full_rank(self) -> bool:
        """Whether the numerical rank is full."""
        return self.factor.rank == self.p

    @property
    def tolerance(self) -> float:
        """Residual that counts as zero for every input: the largest tilt.

        It is 0 where that tilt is not small: then the range as a whole is not known well enough.
        """
        least = MARGIN * self.p * EPS
        if isinstance(self.factor, CholeskyFactor) or self.factor.rank == 0:
            return least
        error = max(float(self.tilts.max()), least)
        return error if error <= CLOSE else 0.0

    def _pieces(self, tokens: Tokens, positions: Positions) -> Iterator[tuple[Floats, Floats]]:
        """Yield D h and D g, (rows, p), a few queries at a time."""
        scale = self.factor.scale
        for h, g in summands_of(self.features, tokens, positions):
            with np.errstate(over="ignore", invalid="ignore"):
                x, sizes = put(h, like=scale) * scale, put(g, like=scale) * scale
            if not module_of(x).isfinite(x).all():
                raise non_finite_error(tokens)
            yield x, sizes

    @on_own_device
    def residuals(self, tokens: Tokens, positions: Positions) -> Floats:
        """Relative distance of each query's features from the range, (rows,)."""
        parts = [self.residual_of(x) for x, _ in self._pieces(tokens, positions)]
        residuals: Floats = module_of(*parts).concatenate(parts)
        return residuals

    def residual_of(self, x: Floats) -> Floats:
        """Relative distance of rows D h, (rows, p), from the range."""
        xp = module_of(x)
        residual: Floats = xp.zeros(len(x))
        if self._full_rank:
            return residual
        U = self.factor.vectors  # type: ignore[union-attr]  # Cholesky has full rank
        size = xp.linalg.norm(x, axis=1)
        left = xp.linalg.norm(x - (x @ U) @ U.T, axis=1)
        residual = xp.where(size > 0, left / xp.where(size > 0, size, 1.0), 0.0)
        # A feature that is zero in every sample has no scale: however small, it decides.
        residual[((x != 0) & self.unseen).any(axis=1)] = 1.0
        return residual

    @on_own_device
    def covered(self, tokens: Tokens, positions: Positions, most: float = 0.0) -> Array:
        """Which queries are in the range up to rounding, (rows,); ``most`` as for ``covers``."""
        longest = tokens.longest
        parts = [self.covers(x, g, longest, most) for x, g in self._pieces(tokens, positions)]
        covered: Array = module_of(*parts).concatenate(parts)
        return covered

    def covers(self, x: Floats, sizes: Floats, longest: int, most: float = 0.0) -> Array:
        """Which rows x = D h, (rows, p), are in the range up to rounding.

        Parameters
        ----------
        x, sizes
            Scaled features D h, and the scaled sizes D g of their summands.
        longest
            Number of tokens in the longest sequence that they come from.
        most
            Where the exact range is known as well: how far an input may be out of the numerical
            range, in multiples of the mean square along the directions that were not kept. A sample
            of weight w may be out by up to W / w. 0 where the numerical range decides alone.
        """
        xp = module_of(x)
        near: Array = xp.ones(len(x), dtype=bool)
        if self._full_rank:
            return near
        U = self.factor.vectors  # type: ignore[union-attr]  # Cholesky has full rank
        with np.errstate(all="ignore"):  # comparisons with NaN are false
            inner, size = x @ U, xp.linalg.norm(x, axis=1)
            left = xp.linalg.norm(x - inner @ U.T, axis=1)
            allowed = xp.abs(inner) @ self.tilts + MARGIN * self.p * EPS * size
            allowed += rounding(longest) * xp.linalg.norm(sizes, axis=1)
            if most == 0:
                near = (left <= allowed) & (allowed <= CLOSE * size)
            else:
                near = left <= allowed + self._weak * xp.sqrt(most * self._times(inner))
        near &= ~((x != 0) & self.unseen).any(axis=1)
        return near

    # ------------------------------------------------------------------ least determined directions

    @on_own_device
    def least_determined(self, k: int) -> tuple[Floats, Floats]:
        """The k directions (k, p) along which the data says least, and their mean squares (k,).

        Directions that the data does not determine at all come first, with mean square 0: features
        that are zero in every sample, each by itself, then the others in echelon form, those of
        fewest features first. Eigenvectors of A follow by growing eigenvalue, in the caller's
        units. Each direction has length one; mean squares are relative, in units where every
        feature has mean square one.

        They are found on the host, whose LAPACK has QR with pivots.
        """
        if self.device is not None:
            found, squares = self.get().least_determined(k)
            return put(found, like=self.diagonal), put(squares, like=self.diagonal)
        blanks = np.flatnonzero(self.unseen)
        alone = np.zeros((min(k, len(blanks)), self.p))
        alone[np.arange(len(alone)), blanks[: len(alone)]] = 1.0
        directions = [alone]
        if len(alone) < k:
            directions.append(self.undetermined()[: k - len(alone)])
        nothing = sum(len(part) for part in directions)
        values = np.zeros(nothing)
        if nothing < k:
            weak, vectors = self.weakest(k - nothing)
            directions.append(vectors)
            values = np.concatenate([values, weak])
        return np.concatenate(directions), values

    def _in_units(self, vectors: Floats) -> Floats:
        """Rows D v, scaled to length one."""
        x = vectors * self.factor.scale
        return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))

    def undetermined(self) -> Floats:
        """Null space of Lambda among the features that occur, (m, p), sparse rows first."""
        seen = np.flatnonzero(~self.unseen)
        factor = self.factor
        if isinstance(factor, CholeskyFactor) or factor.rank == len(seen):
            return np.zeros((0, self.p))
        kept = factor.vectors[seen]
        null = qr(kept, check_finite=False)[0][:, factor.rank :]  # (seen, m), orthonormal
        # Echelon form: each row has a feature of its own that the others lack.
        _, _, order = qr(null.T, mode="economic", pivoting=True, check_finite=False)
        pivots = order[: null.shape[1]]
        rows = np.linalg.solve(null[pivots].T, null.T)
        rows[np.abs(rows) < 1e-9 * np.abs(rows).max(axis=1, keepdims=True)] = 0.0
        full = np.zeros((len(rows), self.p))
        full[:, seen] = rows
        full = self._in_units(full)
        return np.asarray(full[np.argsort((full != 0).sum(axis=1), kind="stable")])

    def weakest(self, k: int) -> tuple[Floats, Floats]:
        """The k smallest eigenvalues of A above the margin, (k,), with their directions (k, p)."""
        factor = self.factor
        if isinstance(factor, SpectralFactor):
            start = len(factor.values) - factor.rank
            return factor.values[start : start + k], self._in_units(factor.vectors[:, :k].T)
        values, vectors = _smallest_eigenpairs(factor, min(k, self.p))
        return values, self._in_units(vectors.T)


def coverage_of_samples(samples: Samples) -> Coverage:
    """The range of the second moment of few samples, from the singular values of their features."""
    tokens, chosen = samples.tokens, samples.features
    features = chosen.of(tokens, samples.positions)  # (N, p)
    if samples.weights is not None:
        per_sample = samples.weight_of_each()
        features *= put(np.sqrt(per_sample / per_sample.sum())[:, None], like=features)
    else:
        features /= np.sqrt(len(features))
    n, p = features.shape
    diagonal = (features**2).sum(axis=0)
    magnitudes = get_backend("auto", tokens).summand_sizes(samples)
    means = put(magnitudes.reshape(-1) / samples.total_weight, like=diagonal)
    scale = power_of_two_scale(sizes(diagonal, means, samples.longest))
    features *= scale
    _, sigma, vectors = algebra_of(features).svd(features)
    level = max(n, p) * EPS
    rank = int((sigma > MARGIN * level * sigma[0]).sum())
    values = module_of(sigma).zeros(p)
    values[p - len(sigma) :] = sigma[::-1] ** 2
    kept = vectors[:rank][::-1].T  # (p, r), ascending
    factor = SpectralFactor(
        values, kept, scale, None, None, level**2, (MARGIN * level) ** 2, name="qr"
    )
    return Coverage(factor, diagonal, chosen)


def _smallest_eigenpairs(factor: CholeskyFactor, k: int) -> tuple[Floats, Floats]:
    """Eigenvalues and eigenvectors of A = L L', ascending."""
    L, p = factor.factor, len(factor.scale)
    if p <= _DENSE_UP_TO or 4 * k > p:
        lower = np.tril(L)
        values, vectors = eigh(lower @ lower.T, subset_by_index=(0, k - 1), check_finite=False)
        return np.asarray(values), np.asarray(vectors)

    def inverse(x: Floats) -> Floats:
        y = solve_triangular(L, x, lower=True, check_finite=False)
        return np.asarray(solve_triangular(L, y, lower=True, trans="T", check_finite=False))

    operator = LinearOperator((p, p), matvec=inverse, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(p)
    inverted, vectors = eigsh(operator, k=k, which="LA", v0=start)
    order = np.argsort(-inverted)
    return 1 / inverted[order], np.asarray(vectors[:, order])
