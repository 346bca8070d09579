"""What the data determines, input by input, as far as float64 tells.

A prediction C h(Z) is the same for every best fit C exactly when h(Z) lies in the range of the
second moment Lambda. With the equilibrated matrix A = D Lambda D = U diag(w) U', over the
eigenvalues that count as real, that is x = D h in the span of U:

    residual   ||x - U U'x|| / ||x||        0 when determined

U is not exact. Rounding of size delta in A tilts its i-th column out of the range by about
delta / w_i (with singular values in the place of eigenvalues where it comes from the features), so
an input in the range is seen to miss it by up to

    tolerance   10 sum_i (delta / w_i) |u_i'x|  +  rounding of x

direction by direction. Where that is itself no small part of ||x||, nothing can be told.

Which inputs are in the range in exact arithmetic, and how large leverages are at most, is asked in
:mod:`linattn_fast.certificate.source`. The leverage carries the two bounds on what other layers
could predict:

    two layers whose mean squared training errors are at most eps differ at Z, in each output, by
    at most  2 sqrt(eps leverage)

    with independent noise of at most b on the targets, the least-squares prediction errs with
    probability 1 - delta by at most  b sqrt(2 log(2 / delta) leverage w_max / W)     (Hoeffding)
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
"""A tolerance above this part of an input tells nothing."""
_DENSE_UP_TO = 512
"""Below this size all eigenvectors are computed where a few are wanted."""


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
        """The same, on the host."""
        return Coverage(self.factor.get(), to_host(self.diagonal), self.features)

    @cached_property
    def unseen(self) -> Array:
        """Features that are zero in every sample, (p,) of bool."""
        unseen: Array = self.diagonal == 0
        return unseen

    @cached_property
    def tilts(self) -> Floats:
        """Ten times delta / w_i: how far each column of U may be out of the range, (r,)."""
        factor = self.factor
        assert isinstance(factor, SpectralFactor)
        tilts: Floats = factor.level * factor.values[-1] / factor.values[self.p - factor.rank :]
        if factor.name == "qr":
            tilts = module_of(tilts).sqrt(tilts)
        return MARGIN * tilts

    @cached_property
    def _weak(self) -> float:
        """Root mean square of the data along what was not kept, at most."""
        factor = self.factor
        assert isinstance(factor, SpectralFactor)
        if factor.rank == 0:
            return 0.0
        weak = factor.values[: self.p - factor.rank]
        found = module_of(weak).maximum(weak, 0.0).sum()
        return float(np.sqrt(found + MARGIN * self.p * factor.level * factor.values[-1]))

    def _times(self, inner: Floats) -> Floats:
        """How many samples U'x (rows, r) counts as: its leverage, or one."""
        factor = self.factor
        assert isinstance(factor, SpectralFactor)
        leverage = (inner**2 / factor.values[self.p - factor.rank :]).sum(axis=1)
        times: Floats = module_of(leverage).maximum(leverage, 1.0)
        return times

    @property
    def _everything(self) -> bool:
        """Whether the rank is full, numerically."""
        return self.factor.rank == self.p

    @property
    def tolerance(self) -> float:
        """Residuals up to this count as zero, for every input: the largest tilt.

        0 where that is not small: then the range as a whole is not known well enough.
        """
        least = MARGIN * self.p * EPS
        if isinstance(self.factor, CholeskyFactor) or self.factor.rank == 0:
            return least
        error = max(float(self.tilts.max()), least)
        return error if error <= CLOSE else 0.0

    def _batches(self, tokens: Tokens, positions: Positions) -> Iterator[tuple[Floats, Floats]]:
        """D h and D g of the queries, (rows, p), a few at a time."""
        scale = self.factor.scale
        for h, g in summands_of(self.features, tokens, positions):
            with np.errstate(over="ignore", invalid="ignore"):
                x, sizes = put(h, like=scale) * scale, put(g, like=scale) * scale
            if not module_of(x).isfinite(x).all():
                raise non_finite_error(tokens)
            yield x, sizes

    @on_own_device
    def residuals(self, tokens: Tokens, positions: Positions) -> Floats:
        """Distance of each query's features from the range, relative: (rows,)."""
        parts = [self.residual_of(x) for x, _ in self._batches(tokens, positions)]
        residuals: Floats = module_of(*parts).concatenate(parts)
        return residuals

    def residual_of(self, x: Floats) -> Floats:
        """Relative distance of rows D h, (rows, p), from the range."""
        xp = module_of(x)
        residual: Floats = xp.zeros(len(x))
        if self._everything:
            return residual
        U = self.factor.vectors  # type: ignore[union-attr]  # Cholesky has full rank
        size = xp.linalg.norm(x, axis=1)
        left = xp.linalg.norm(x - (x @ U) @ U.T, axis=1)
        residual = xp.where(size > 0, left / xp.where(size > 0, size, 1.0), 0.0)
        # A feature that was never seen has no scale: however small, it is all that matters.
        residual[((x != 0) & self.unseen).any(axis=1)] = 1.0
        return residual

    @on_own_device
    def covered(self, tokens: Tokens, positions: Positions, most: float = 0.0) -> Array:
        """Which queries are in the range to rounding, (rows,) of bool; ``most`` as in covers."""
        longest = int(tokens.lengths.max())
        parts = [self.covers(x, g, longest, most) for x, g in self._batches(tokens, positions)]
        covered: Array = module_of(*parts).concatenate(parts)
        return covered

    def covers(self, x: Floats, sizes: Floats, longest: int, most: float = 0.0) -> Array:
        """Which rows x = D h, (rows, p), are in the range to rounding.

        Parameters
        ----------
        x, sizes
            D h, and D g: how large the summands of the features are.
        longest
            Tokens in the longest sequence that they come from.
        most
            Where the exact range is known, too: how far an input may be out of the numerical one,
            in multiples of the mean square along what was not kept. A sample of weight w is, by
            up to W / w. 0 where the numerical range has the last word.
        """
        xp = module_of(x)
        near: Array = xp.ones(len(x), dtype=bool)
        if self._everything:
            return near
        U = self.factor.vectors  # type: ignore[union-attr]  # Cholesky has full rank
        with np.errstate(all="ignore"):  # comparisons with what is no number are false
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
        """The k directions x (k, p) along which the data says least, and their mean squares (k,).

        Directions that the data does not determine at all come first, mean square 0: features never
        seen, each by itself, then the others in echelon form, those of fewest features first. Then
        eigenvectors of A by growing eigenvalue, in the caller's units. Each has length one; mean
        squares are relative, in units where every feature has mean square one.

        Both are found on the host, whose LAPACK has QR with pivots.
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
        """Rows D v, of length one."""
        x = vectors * self.factor.scale
        return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))

    def undetermined(self) -> Floats:
        """Null space of Lambda among the features seen, one row each, sparse ones first: (m, p)."""
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
        """The k smallest eigenvalues of A that count as real, with directions (k, p)."""
        factor = self.factor
        if isinstance(factor, SpectralFactor):
            start = len(factor.values) - factor.rank
            return factor.values[start : start + k], self._in_units(factor.vectors[:, :k].T)
        values, vectors = _smallest_eigenpairs(factor, min(k, self.p))
        return values, self._in_units(vectors.T)


def coverage_of_samples(samples: Samples) -> Coverage:
    """Range of the second moment of few samples, from the singular values of their features."""
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


def describe(direction: Floats, mean_square: float, features: Features, names: list[str]) -> str:
    """Say in words which pairs and queries a direction (p,) consists of."""
    pairs = [f"{names[j]}*{names[k]}" for j, k in features.pairs]
    queries = [names[l] for l in features.queries]
    by_query = direction.reshape(len(pairs), len(queries)) / np.abs(direction).max()
    groups = []
    sizes = np.abs(by_query).round(9)  # sizes equal up to rounding tie, and the first comes first
    for l in np.argsort(-sizes.max(axis=0), kind="stable"):
        column = by_query[:, l]
        order = np.argsort(-sizes[:, l], kind="stable")
        terms = [(float(column[u]), pairs[u]) for u in order if abs(column[u]) > 0.1]
        if terms:
            groups.append((terms[0][0], f"{_sum_of(terms, 4)} with query {queries[l]}"))
    # A group's text starts with plus, so its own sign goes before it.
    text = _joined([(np.sign(first), group) for first, group in groups], 3)
    if mean_square == 0:
        return f"tokens never vary along {text}"
    return f"tokens vary little along {text} (relative mean square {mean_square:.2g})"


def _sum_of(terms: list[tuple[float, str]], most: int) -> str:
    """Terms with their coefficients, the first one positive; in brackets when there are several."""
    text = _joined(terms, most)
    return f"({text})" if len(terms) > 1 else text


def _joined(terms: list[tuple[float, str]], most: int) -> str:
    """``a - 0.5 b and 2 more``: the first term positive, since a direction has no sign."""
    sign = np.sign(terms[0][0])
    text = ""
    for value, name in terms[:most]:
        size = "" if abs(value) > 0.995 else f"{abs(value):.2g} "
        before = "" if not text else (" + " if value * sign > 0 else " - ")
        text += f"{before}{size}{name}"
    return text + (f" and {len(terms) - most} more" if len(terms) > most else "")
