"""Leverages that are no smaller than the exact ones, all rounding accounted for.

The leverage h' Lambda^+ h of the data as given, in exact arithmetic, is bounded by way of a matrix
T (p x r) with T' Lambda T >= I, where r is the rank of Lambda: for h in its range,

    h' Lambda^+ h  =  max over v of (v'h)^2 / v' Lambda v  <=  ||T'h||^2

because every v is T a plus a vector that is orthogonal to h and in the null space of Lambda. T need
not be exact in any way, but T' Lambda T >= I has to be proved. There are two proofs, derived in
docs/certificate.md:

*From the Gram*, where it has full rank. T' = sqrt(W) L^-1 D, with L the Cholesky factor of

    D (Ghat - gamma p diag(m)) D - theta I

The terms subtracted bound the rounding of the Gram (:mod:`linattn_fast.certificate.lower_bound`),
of the factorisation, and of every solution with L.

*From the data*, whatever its rank. B = sqrt(w / W) H T is formed for a T from the numerical
factorisation, and the distance of B'B from I is measured. This sees singular values of the features
where a Gram sees their squares.

Features are rounded as well: |computed h - h| <= gamma g with g[(j,k),l] = sqrt(S_jj S_kk) |z_l|.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from ..arrays.device import module_of, put
from ..arrays.floats import UNIT, gamma
from ..arrays.types import Array, Floats, Mask, Positions
from ..data.non_finite import may_underflow, non_finite_error
from ..data.stream_states import StreamStates
from ..data.tokens import Tokens
from ..features.compact import pair_table
from ..features.features import Features, samples_of
from ..features.samples import Samples
from ..linalg.algebra import algebra_of
from ..linalg.cholesky import CholeskyFactor, equilibrate
from ..linalg.spectral import SpectralFactor
from ..moments.sums import MomentSums

Rows: TypeAlias = tuple[Floats, Floats, Floats]
"""The features h and summand sizes g of some samples, (rows, p), and sqrt(w / W), (rows,)."""

PIECE_BYTES = 64 << 20
"""Bytes of the features, and of their summand sizes, that are formed at a time."""

_LOST = 2.0**-1000
"""A bound on what underflow can take in all, in units near one."""
_SMALLEST = 2.0**-1070
"""A bound on what a square loses when it underflows."""
_LITTLE = 1 + 64 * UNIT
"""A factor that covers the few roundings of a formula whose value is to be rounded up."""
_LEAST = 0.75
"""Least singular value of B for a bound; below it, rounding is too large a part of the bound."""
_NEAR = 1e-9
"""The distance ||B'B - I|| above which a better T is tried."""
_ATTEMPTS = 2
"""Number of times that a better T is tried."""
_COLUMNS = 256
"""Number of columns of an inverse that are formed at a time."""


class LeverageBound(Protocol):
    """A bound on leverages by a matrix T with T' Lambda T >= I."""

    def of(self, h: Floats, g: Floats, longest: int) -> Floats:
        """Bound ||T'h||^2 of the exact features from above, (rows,), given computed h (rows, p).

        For rows outside the range of Lambda the result means nothing.

        Parameters
        ----------
        h, g
            Features as computed, and the sizes of their summands; see :func:`with_summands`.
        longest
            Number of tokens in the longest sequence that they come from.
        """


# ------------------------------------------------------------------------------------ the features


def with_summands(
    features: Features, tokens: Tokens, positions: Positions
) -> tuple[Floats, Floats]:
    """Features h = S_jk z_l and sizes g = sqrt(S_jj S_kk) |z_l|, (samples, p) each.

    Features that are not sums are their own sizes.
    """
    if isinstance(tokens, StreamStates):
        return features.of(tokens, positions), features.of(tokens.sizes(), positions)
    if not features.sums_cancel:
        h = features.of(tokens, positions)
        return h, module_of(h).abs(h)
    d, (j, k) = features.d, features.pairs.T
    if features.everything:
        s, z = samples_of(tokens, positions)
        squares = s[:, module_of(s).asarray(np.diagonal(pair_table(d)))]
    else:
        s, z = features.samples(tokens, positions)
        squares, _ = Features(d, [(i, i) for i in range(d)]).samples(tokens, positions)
    xp = module_of(s)
    root = xp.sqrt(squares)  # (samples, d)
    sizes = root[:, xp.asarray(j)] * root[:, xp.asarray(k)]
    h = (s[:, :, None] * z[:, None, :]).reshape(len(s), -1)
    g = (sizes[:, :, None] * xp.abs(z)[:, None, :]).reshape(len(s), -1)
    return h, g


def summands_of(
    features: Features, tokens: Tokens, positions: Positions
) -> Iterator[tuple[Floats, Floats]]:
    """Yield h and g, some samples at a time; features that are not finite are an error."""
    for part in pieces_of(features, tokens, positions):
        with np.errstate(over="ignore", invalid="ignore"):
            h, g = with_summands(features, part, positions)
        if not module_of(h).isfinite(h).all():
            raise non_finite_error(tokens)
        yield h, g


def pieces_of(features: Features, tokens: Tokens, positions: Positions) -> Iterator[Tokens]:
    """Yield sequences, as many at a time as have features of at most PIECE_BYTES."""
    per_sequence = 16 * features.count * (1 if positions == "last" else int(tokens.lengths.max()))
    step = max(1, PIECE_BYTES // per_sequence)
    for first in range(0, len(tokens), step):
        yield tokens.part(first, min(first + step, len(tokens)))


def rounding(longest: int, products: int = 0) -> float:
    """Relative rounding error gamma of a feature, or of an inner product of ``products`` terms."""
    return 1.01 * gamma(longest + 8 + products)


def leverages_of(
    bound: LeverageBound | None, features: Features, tokens: Tokens, positions: Positions
) -> Floats:
    """Bound the leverage of each query, (rows,); infinite without a bound, but 0 where h is 0."""
    longest = tokens.longest
    small = may_underflow(tokens)
    parts = []
    for h, g in summands_of(features, tokens, positions):
        xp = module_of(h)
        if bound is None:
            parts.append(xp.where(g.any(axis=1), np.inf, 0.0))
        else:
            with np.errstate(all="ignore"):
                parts.append(bound.of(h, g, longest))
    leverages: Floats = module_of(*parts).concatenate(parts)
    if small.any():
        rows = small if positions == "last" else np.repeat(small, tokens.lengths)
        leverages[put(rows, like=leverages)] = np.inf
    return leverages


# ------------------------------------------------------------------------------------ from the Gram


@dataclass(frozen=True)
class GramBound:
    """||T'h||^2 = W ||L^-1 D h||^2 over the features that are not zero in every sample."""

    lower: Floats
    """The Cholesky factor L, (q, q)."""
    scale: Floats
    """Diagonal of D, (q,)."""
    columns: Floats
    """Lengths of the columns of L^-1, (q,): the largest effect of an error in one feature."""
    seen: Array | None
    """Numbers of these features, (q,); None for all."""
    weight: float
    """Total weight W, rounded up."""
    excess: float
    """Estimate of the relative excess of the leverages; no proof rests on it."""

    def of(self, h: Floats, g: Floats, longest: int) -> Floats:
        """At least ||T'h||^2; see :class:`LeverageBound`."""
        if self.seen is not None:
            h, g = h[:, self.seen], g[:, self.seen]
        xp, q = module_of(h), len(self.scale)
        y = algebra_of(h).solve_lower(self.lower, (h * self.scale).T)
        length = xp.sqrt((y**2).sum(axis=0)) * (1 + q * UNIT)
        unsure = rounding(longest) * ((g * self.scale) @ self.columns) * (1 + q * UNIT)
        outward = (length + unsure) * _LITTLE + xp.where(g.any(axis=1), _LOST, 0.0)
        return _squared(outward, self.weight)


def _squared(outward: Floats, weight: float) -> Floats:
    """W ||T'h||^2, (rows,), positive wherever ||T'h|| is, even if its square underflows."""
    xp = module_of(outward)
    leverages: Floats = weight * outward**2
    leverages = xp.where(outward > 0, leverages + _SMALLEST, leverages)
    above: Floats = xp.where(xp.isnan(leverages), np.inf, leverages)  # NaN comes from overflow
    return above


def bound_from_gram(moments: MomentSums, seen: Mask) -> GramBound | None:
    """The bound from a Gram that is proved to be positive definite; None where it is not.

    ``seen`` says which features may be other than zero, (p,); the others are zero, exactly.
    """
    how = moments.accumulation
    error, of_sizes = moments.relative_errors()
    weight_error = gamma(moments.n_samples + how.wide)
    q = int(seen.sum())
    if how.underflow or not (error < 0.5 and weight_error < 0.5) or moments.n_samples < q or not q:
        return None
    gram, sizes, chosen = moments.gram(), moments.summand_sizes(), None
    xp = module_of(gram)
    if q < len(seen):
        chosen = xp.asarray(np.flatnonzero(seen))
        gram, sizes = xp.ascontiguousarray(gram[chosen][:, chosen]), sizes[chosen]
    if not (gram.diagonal() > 0).all():
        return None
    scale = equilibrate(gram)
    lost = error / (1 - of_sizes) * (1 + 32 * UNIT) * q  # see prove() of lower_bound
    shift = lost * (sizes * scale * scale) * (1 + 8 * UNIT)
    # L L' errs by c tr, and each solution is one with (L + dL) (L + dL)', off by 2 c tr more
    backward = gamma(2 * q + 10)
    shift += 3.1 * backward / (1 - backward) * float(gram.diagonal().sum()) + 32 * UNIT
    gram.reshape(-1)[:: q + 1] -= shift
    if not (gram.diagonal() > 0).all():
        return None
    lower, failed = algebra_of(gram).cholesky(gram)
    if failed:
        return None
    weight = moments.required_weight() * (1 + 2 * weight_error) * _LITTLE
    columns = _inverse_columns(lower)
    # How far x'(L L')^-1 x exceeds x'(L L' + shift)^-1 x, relatively, is about the size of
    # L^-1 shift L'^-1, and this is nearly the largest entry of its diagonal
    excess = float((shift * columns**2).max())
    return GramBound(lower, scale, columns, chosen, weight, excess)


def _inverse_columns(lower: Floats) -> Floats:
    """Upper bounds on the lengths of the columns of L^-1, (q,)."""
    xp, algebra, q = module_of(lower), algebra_of(lower), len(lower)
    lengths = []
    for first in range(0, q, _COLUMNS):  # zero above the diagonal, so the corner below is enough
        unit = xp.eye(q - first, min(_COLUMNS, q - first))
        part = algebra.solve_lower(lower[first:, first:], unit)
        lengths.append(xp.sqrt((part**2).sum(axis=0)))
    columns: Floats = xp.concatenate(lengths) * (1 + q * UNIT) * _LITTLE
    return columns


# ------------------------------------------------------------------------------------ from the data


@dataclass(frozen=True)
class DataBound:
    """The bound ||T'h||^2 with a T that was tried on the data."""

    whitener: Floats
    """The whitener T, (p, r)."""
    sizes: Floats
    """Absolute values of T, (p, r)."""
    least: float
    """Lower bound on the singular values of sqrt(w / W) H T."""
    weight: float
    """Exact W over the computed W, rounded up: near one."""

    @property
    def rank(self) -> int:
        """Number of columns of T, a lower bound on the rank of Lambda: T' Lambda T is positive."""
        return int(self.whitener.shape[1])

    def of(self, h: Floats, g: Floats, longest: int) -> Floats:
        """At least ||T'h||^2; see :class:`LeverageBound`."""
        xp, (p, r) = module_of(h), self.whitener.shape
        length = xp.sqrt(((h @ self.whitener) ** 2).sum(axis=1))
        unsure = rounding(longest, p) * xp.sqrt(((g @ self.sizes) ** 2).sum(axis=1))
        outward = (length + unsure) * (1 + (p + r) * UNIT) * _LITTLE
        outward = (outward + xp.where(g.any(axis=1), _LOST, 0.0)) / self.least
        return _squared(outward, self.weight)


def whitener_of(factor: CholeskyFactor | SpectralFactor) -> Floats:
    """The whitener T (p, r) of a numerical factorisation: T' Lambda T is near I."""
    if isinstance(factor, CholeskyFactor):
        p = len(factor.scale)
        inverse = algebra_of(factor.factor).solve_lower(
            factor.factor, module_of(factor.factor).eye(p)
        )
        whitener: Floats = factor.scale[:, None] * inverse.T
        return whitener
    start = len(factor.values) - factor.rank
    with np.errstate(all="ignore"):  # a T that is not finite gives no bound
        whitener = factor.vectors / module_of(factor.vectors).sqrt(factor.values[start:])
        whitener *= factor.scale[:, None]
    return whitener


def rows_of_data(samples: Samples) -> Iterator[Rows]:
    """Yield h, g and sqrt(w / W), some samples at a time."""
    first = 0
    for tokens in pieces_of(samples.features, samples.tokens, samples.positions):
        part = samples.part(first, first + len(tokens))
        h, g = with_summands(samples.features, tokens, samples.positions)
        yield h, g, put(np.sqrt(part.weight_of_each() / samples.total_weight), like=h)
        first += len(tokens)


def bound_from_data(
    whitener: Floats, read: Callable[[], Iterable[Rows]], n_samples: int, longest: int
) -> DataBound | None:
    """Try T on the samples, then better ones; None if rounding is too large for a bound."""
    trial = _try(whitener, read(), n_samples, longest)
    for _ in range(_ATTEMPTS):
        if trial.off <= _NEAR or not np.isfinite(trial.off):
            break
        square = trial.square.copy()
        lower, failed = algebra_of(square).cholesky(square)
        if failed:
            break
        better = algebra_of(lower).solve_lower(lower, trial.whitener.T).T
        again = _try(better, read(), n_samples, longest)
        if not again.least > trial.least:
            break
        trial = again
    if not trial.least >= _LEAST:
        return None
    weight = (1 + 2 * gamma(n_samples + 2)) * _LITTLE
    sizes = module_of(trial.whitener).abs(trial.whitener)
    return DataBound(trial.whitener, sizes, trial.least, weight)


@dataclass(frozen=True)
class _Trial:
    """How near sqrt(w / W) H T comes to orthonormal columns."""

    whitener: Floats
    """The whitener T, (p, r)."""
    square: Floats
    """The product B'B as computed, (r, r)."""
    off: float
    """Bound on the distance of the exact B'B from I."""
    least: float
    """Lower bound on the singular values of the exact B."""


def _try(whitener: Floats, rows: Iterable[Rows], n_samples: int, longest: int) -> _Trial:
    """Form B = sqrt(w / W) H T and bound its singular values from below.

    B errs by E, |E| <= gamma sqrt(w / W) g |T|, and the computed B'B by gamma(N) ||B||^2, in
    Frobenius norms; so no singular value of the exact B is below

        sqrt(1 - ||B'B - I|| - gamma(N) ||B||^2) - ||E||
    """
    p, r = whitener.shape
    xp = module_of(whitener)
    sizes = xp.abs(whitener)
    square = xp.zeros((r, r))
    length, error = 0.0, 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for h, g, root in rows:
            B = (put(h, like=whitener) @ whitener) * root[:, None]
            E = (put(g, like=whitener) @ sizes) * root[:, None]
            square += B.T @ B
            length += float((B**2).sum())
            error += float((E**2).sum())
        off = float(xp.sqrt(((square - xp.eye(r)) ** 2).sum()))
    off = off * (1 + r * r * UNIT) + 4 * r * UNIT + 1.01 * gamma(n_samples + 8) * length
    missed = rounding(longest, p + 8) * float(np.sqrt(error)) * (1 + n_samples * UNIT)
    least = float(np.sqrt(max(1 - off, 0.0))) * (1 - 8 * UNIT) - missed - _LOST
    return _Trial(whitener, square, off, least)
