"""Leverages that are no smaller than the exact ones, all rounding accounted for.

The leverage h' Lambda^+ h of the data as given, in exact arithmetic, is bounded by way of a matrix
T (p x r) with T' Lambda T >= I, where r is the rank of Lambda: for h in its range,

    h' Lambda^+ h  =  max over v of (v'h)^2 / v' Lambda v  <=  ||T'h||^2

because every v is T a and something that both Lambda and h are blind to. T need not be exact in any
way; that T' Lambda T >= I has to be proved. There are two proofs, derived in docs/certificate.md:

*From the Gram*, of full rank. T' = sqrt(W) L^-1 D, with L the Cholesky factor of

    D (Ghat - gamma p diag(m)) D - theta I

what is subtracted bounds the rounding of the Gram (:mod:`linattn_fast.certificate.lower_bound`), of the
factorisation, and of every solution with L.

*From the data*, of any rank. B = sqrt(w / W) H T is formed for a T from the numerical
factorisation, and B'B is as near to I as it is seen to be. This sees singular values of the
features where a Gram sees their squares.

Features are rounded, too: |computed h - h| <= gamma g with g[(j,k),l] = sqrt(S_jj S_kk) |z_l|.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from ..arrays.device import module_of, put
from ..arrays.floats import UNIT, gamma
from ..arrays.types import Array, Floats, Positions
from ..data.non_finite import may_underflow, non_finite_error
from ..data.tokens import Tokens
from ..features.compact import pair_table
from ..features.features import Features, samples_of
from ..features.samples import Samples
from ..linalg.algebra import algebra_of
from ..linalg.cholesky import CholeskyFactor, equilibrate
from ..linalg.spectral import SpectralFactor
from ..moments.sums import MomentSums

Rows: TypeAlias = tuple[Floats, Floats, Floats]
"""h and g of some samples, (rows, p), and sqrt(w / W), (rows,)."""

BATCH_BYTES = 64 << 20
"""Features formed at a time."""

_LOST = 2.0**-1000
"""More than what underflow in units near one can add up to."""
_SMALLEST = 2.0**-1070
"""More than what is lost of a square that underflows."""
_LITTLE = 1 + 64 * UNIT
"""Covers the few roundings of a formula that is evaluated outward."""
_LEAST = 0.75
"""Singular values of B that are no less: below, rounding has too large a part in the bound."""
_NEAR = 1e-9
"""||B'B - I|| above which a better T is tried."""
_ATTEMPTS = 2
"""So often."""
_COLUMNS = 256
"""Columns of an inverse that are formed at a time."""


class LeverageBound(Protocol):
    """T with T' Lambda T >= I."""

    def of(self, h: Floats, g: Floats, longest: int) -> Floats:
        """At least ||T'h||^2 of the exact features, (rows,), from computed ones h (rows, p).

        Rows that are not in the range of Lambda get numbers that mean nothing.

        Parameters
        ----------
        h, g
            Features as computed, and the sizes of their summands; see :func:`with_summands`.
        longest
            Tokens in the longest sequence that they come from.
        """


# ------------------------------------------------------------------------------------ the features


def with_summands(
    features: Features, tokens: Tokens, positions: Positions
) -> tuple[Floats, Floats]:
    """h = S_jk z_l of each sample, and g = sqrt(S_jj S_kk) |z_l|: (samples, p) each."""
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
    """h and g of the samples, some at a time; raises where they are not finite."""
    for part in batches_of(features, tokens, positions):
        with np.errstate(over="ignore", invalid="ignore"):
            h, g = with_summands(features, part, positions)
        if not module_of(h).isfinite(h).all():
            raise non_finite_error(tokens)
        yield h, g


def batches_of(features: Features, tokens: Tokens, positions: Positions) -> Iterator[Tokens]:
    """Sequences, so many at a time that their features fit in a few megabytes."""
    per_sequence = 16 * features.count * (1 if positions == "last" else int(tokens.lengths.max()))
    step = max(1, BATCH_BYTES // per_sequence)
    for first in range(0, len(tokens), step):
        yield tokens.part(first, min(first + step, len(tokens)))


def rounding(longest: int, products: int = 0) -> float:
    """Gamma of a feature, relative to g, and of an inner product with so many of them."""
    return 1.01 * gamma(longest + 8 + products)


def leverages_of(
    bound: LeverageBound | None, features: Features, tokens: Tokens, positions: Positions
) -> Floats:
    """What the bound says of each query, (rows,); infinite without one, but 0 where h is zero."""
    longest = int(tokens.lengths.max())
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
    """L, (q, q)."""
    scale: Floats
    """Diagonal of D, (q,)."""
    columns: Floats
    """Lengths of the columns of L^-1, (q,): what an error in one feature can do."""
    seen: Array | None
    """Numbers of these features, (q,); None for all."""
    weight: float
    """W, rounded up."""
    excess: float
    """About the part by which leverages are too large: an estimate, nothing rests on it."""

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
    """W ||T'h||^2, (rows,), which is above zero where ||T'h|| is, also where its square is not."""
    xp = module_of(outward)
    leverages: Floats = weight * outward**2
    leverages = xp.where(outward > 0, leverages + _SMALLEST, leverages)
    above: Floats = xp.where(xp.isnan(leverages), np.inf, leverages)  # of what overflows
    return above


def bound_from_gram(moments: MomentSums, seen: npt.NDArray[np.bool_]) -> GramBound | None:
    """The bound of moments whose Gram is proved to be positive definite; None where it is not.

    ``seen`` says which features may be other than zero, (p,); those of the rest are zero, exactly.
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
    # x'(L L')^-1 x exceeds that of L L' + shift by the part that L^-1 shift L'^-1 has of it, whose
    # diagonal this is nearly
    excess = float((shift * columns**2).max())
    return GramBound(lower, scale, columns, chosen, weight, excess)


def _inverse_columns(lower: Floats) -> Floats:
    """Lengths of the columns of L^-1, (q,), at least."""
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
    """||T'h||^2 with a T that was tried on the data."""

    whitener: Floats
    """T, (p, r)."""
    sizes: Floats
    """|T|, (p, r)."""
    least: float
    """sqrt(w / W) H T has no singular value below this."""
    weight: float
    """W over what was computed of it, rounded up: near one."""

    @property
    def rank(self) -> int:
        """Rank of Lambda, at least: T' Lambda T has no null vector."""
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
    """T (p, r) with T' Lambda T near I, as the numerical factorisation has it."""
    if isinstance(factor, CholeskyFactor):
        p = len(factor.scale)
        inverse = algebra_of(factor.factor).solve_lower(
            factor.factor, module_of(factor.factor).eye(p)
        )
        whitener: Floats = factor.scale[:, None] * inverse.T
        return whitener
    start = len(factor.values) - factor.rank
    with np.errstate(all="ignore"):  # what is not finite is found not to do
        whitener = factor.vectors / module_of(factor.vectors).sqrt(factor.values[start:])
        whitener *= factor.scale[:, None]
    return whitener


def rows_of_data(samples: Samples) -> Iterator[Rows]:
    """h, g and sqrt(w / W) of the samples, some at a time."""
    first = 0
    for tokens in batches_of(samples.features, samples.tokens, samples.positions):
        part = samples.part(first, first + len(tokens))
        h, g = with_summands(samples.features, tokens, samples.positions)
        yield h, g, put(np.sqrt(part.weight_of_each() / samples.total_weight), like=h)
        first += len(tokens)


def bound_from_data(
    whitener: Floats, read: Callable[[], Iterable[Rows]], n_samples: int, longest: int
) -> DataBound | None:
    """Try T on the samples, better it if need be; None where rounding is too large for a bound."""
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
    """T, (p, r)."""
    square: Floats
    """B'B as computed, (r, r)."""
    off: float
    """Its distance from I, rounding included."""
    least: float
    """No singular value of the exact B is below this."""


def _try(whitener: Floats, rows: Iterable[Rows], n_samples: int, longest: int) -> _Trial:
    """Form B = sqrt(w / W) H T.

    It errs by E, |E| <= gamma sqrt(w / W) g |T|, and its computed product with itself by gamma(N)
    ||B||^2, in Frobenius norms; so that no singular value of the exact B is below

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
