"""Queries with features that the data never has, decided without rounding.

    h[(j,k), l] = S[j,k] z[l] != 0    where the pair or the query is not among those that occur

Nothing is determined there: such a feature is zero in every sample, so its coefficients have no
effect on any prediction for the data. Training data that does have such a feature is therefore
refused. (Features that were left out by choice are another matter: they have no part in the layer.)

S[j,k] is a sum, and the rounded sum may be zero where the exact one is not, or the other way round.
So where the computed sum is within its rounding error of zero, exact fractions decide.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from ..arrays.device import module_of, put, to_host
from ..arrays.floats import gamma
from ..arrays.types import Array, Floats, Mask, Numbers, Positions
from ..data.prefixes import Prefixes, distinct_rows, occurring_pairs
from ..data.stream_states import StreamStates
from ..data.tokens import Tokens
from .features import Features

_PIECE_BYTES = 64 << 20
"""Bytes of S that are formed at a time."""
_BITS = (0, 20)
"""Numbers of binary places for which it is tried whether sums of products are exact."""


# ------------------------------------------------------------------------------ sums without error


def sums_are_exact(tokens: Tokens) -> bool:
    """Whether sums of products of these tokens, on the host, are formed without rounding.

    That is so for small integers, such as one-hot tokens, and for fractions with few binary places.
    """
    largest = max(float(np.abs(rows).max()) for rows in distinct_rows(tokens))
    longest = int(tokens.lengths.max())
    return any(
        largest < 2.0**26  # whose square does not overflow
        and largest**2 * longest * 4**bits < 2.0**53
        and all(_whole(rows, bits) for rows in distinct_rows(tokens))
        for bits in _BITS
    )


def _whole(rows: Array, bits: int) -> bool:
    scaled = rows.astype(np.float64, copy=False) * 2.0**bits
    return bool((scaled == np.rint(scaled)).all())


def nonzero_sums(samples: Prefixes, pairs: Numbers, exact: bool = False) -> Mask:
    """Which S[j,k] are not zero in exact arithmetic, (M, m), for pairs (m, 2).

    ``exact`` says that sums of these tokens are formed without rounding.
    """
    sums = samples.pair_sums(pairs)
    found: Mask = sums != 0
    if exact:
        return found
    sizes = _absolute(samples).pair_sums(pairs)
    # Rounding errors, and underflow, which loses far less than 2^-1000
    near = np.abs(sums) <= gamma(int(samples.lengths.max()) + 4) * sizes + 2.0**-1000
    both = _absolute(samples, present=True).pair_sums(pairs) != 0
    for i, u in np.argwhere(near & both):
        tokens = samples.tokens.sequence(int(samples.sequences[i]))[: samples.lengths[i]]
        j, k = pairs[u]
        products = (Fraction(float(z[j])) * Fraction(float(z[k])) for z in tokens)
        found[i, u] = sum(products) != 0
    return found


def _absolute(samples: Prefixes, *, present: bool = False) -> Prefixes:
    """Take absolute values of the tokens, or put 1 in the place of numbers that are not zero."""

    def of(array: Array) -> Array:
        return (array != 0).astype(np.float64) if present else np.abs(array)

    tokens = samples.tokens
    storage = tokens.storage
    if not isinstance(storage, tuple):
        return Prefixes(
            Tokens(of(storage), tokens.offsets),
            samples.sequences,
            samples.lengths,
            samples.queries,
        )
    longest: dict[int, Array] = {}  # prefixes of one array stay prefixes of one
    for place, sequence in zip(tokens.beginnings, storage, strict=True):
        if len(sequence) > len(longest.get(int(place), ())):
            longest[int(place)] = sequence
    made = {place: of(sequence) for place, sequence in longest.items()}
    cut = tuple(
        made[int(place)][: len(sequence)]
        for place, sequence in zip(tokens.beginnings, storage, strict=True)
    )
    return Prefixes(Tokens(cut), samples.sequences, samples.lengths, samples.queries)


# ------------------------------------------------------------------------------ features that occur


@dataclass(frozen=True)
class Occurring:
    """Features that may be other than zero in the data; the others are exactly zero."""

    features: Features
    mask: Mask
    """Which features may be other than zero, (n_pairs, n_queries)."""

    @classmethod
    def in_data(cls, tokens: Tokens, positions: Positions, features: Features) -> Occurring:
        """Features of two coordinates that occur together in a token, and of one in a query.

        Telling them from the others takes no arithmetic.
        """
        pairs, queries = features.occurring(tokens.put(np.zeros(0)), positions)
        return cls(features, pairs[:, None] & queries)

    @classmethod
    def in_sums(cls, sizes: Floats, features: Features, *, underflow: bool) -> Occurring:
        """Features whose sum of w S_jj S_kk z_l^2, (p,), is not zero; all, if it may underflow."""
        shape = features.n_pairs, features.n_queries
        if underflow:
            return cls(features, np.ones(shape, dtype=bool))
        return cls(features, to_host(sizes).reshape(shape) > 0)

    @property
    def count(self) -> int:
        """Number of features that may be other than zero."""
        return int(self.mask.sum())

    def are_all_of(self, tokens: Tokens, positions: Positions) -> Mask:
        """Which queries have none of the other features, in exact arithmetic, (rows,)."""
        samples = Prefixes.of(tokens.put(np.zeros(0)), positions)
        inside = np.ones(len(samples), dtype=bool)
        others = np.flatnonzero(~self.mask.all(axis=1))  # pairs that do not occur with every query
        if len(others) == 0:
            return inside
        exact = not self.features.sums_cancel or sums_are_exact(samples.tokens)
        pairs = self.features.pairs[others]
        lacking = (~self.mask[others]).astype(np.float32)
        step = max(1, _PIECE_BYTES // (8 * (len(others) + self.features.d)))
        if isinstance(samples.tokens, StreamStates):  # what may be other than zero counts as such
            samples = replace(samples, tokens=samples.tokens.presence())
        for where, part in samples.parts(step):
            present = part.query_tokens()[:, self.features.queries] != 0
            with_pair = nonzero_sums(part, pairs, exact).astype(np.float32) @ lacking > 0
            inside[where] = ~(with_pair & present).any(axis=1)
        return inside


def with_features_left_out(tokens: Tokens, positions: Positions, features: Features) -> Mask:
    """Which queries have a feature that is not chosen, (rows,)."""
    d = features.d
    together = occurring_pairs(tokens.put(np.zeros(0)))  # other pairs are zero here
    together[features.pairs[:, 0], features.pairs[:, 1]] = True
    everything = Features(d, np.argwhere(np.triu(together)))
    pairs = np.isin(everything.pair_numbers, features.pair_numbers)
    queries = np.isin(np.arange(d), features.queries)
    return ~Occurring(everything, pairs[:, None] & queries).are_all_of(tokens, positions)


def require_none_left_out(
    tokens: Tokens, weights: Floats | None, positions: Positions, features: Features
) -> None:
    """Check that training data has none of the features that were left out as zero in the data.

    Samples of weight 0 are no part of the data.
    """
    if not features.others_are_zero:
        return
    found = with_features_left_out(tokens, positions, features)
    if weights is not None:
        counts = weights > 0
        found &= counts if positions == "last" else np.repeat(counts, tokens.lengths)
    if found.any():
        i = int(Prefixes.of(tokens, positions).sequences[np.argmax(found)])
        raise ValueError(
            f"features: Features.active left features out as zero in the data, but sequence {i} "
            "has some; find the active features of all data, or leave others out of the "
            "layer by choice: features.because(others_are_zero=False)"
        )


def unless_left_out(
    values: Array, otherwise: float, tokens: Tokens, positions: Positions, features: Features
) -> Array:
    """Values (rows,), replaced by ``otherwise`` at queries with features the data never has."""
    if features.everything or not features.others_are_zero:
        return values
    found = put(with_features_left_out(tokens, positions, features), like=values)
    chosen: Array = module_of(values).where(found, otherwise, values)
    return chosen
