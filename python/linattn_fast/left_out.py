"""Queries with features that the data never has, decided without rounding.

    h[(j,k), l] = S[j,k] z[l] != 0    where the pair or the query is not among those that occur

Nothing is determined there: such a feature is zero in every sample, so that its coefficients have
no part in any prediction on the data. (Features that were left out by choice are another matter:
they have no part in the layer.)

S[j,k] is a sum, and what rounding leaves of it may be zero where the sum is not, or the other way
round. So where the computed sum is within its rounding of zero, integers decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from .device import module_of, put
from .features import Features
from .lower_bound import gamma
from .prefixes import Numbers, Samples, distinct_rows, occurring_pairs
from .tokens import Array, Positions, Tokens

Mask = npt.NDArray[np.bool_]

_BATCH_BYTES = 64 << 20
"""Of S formed at a time."""
_BITS = (0, 20)
"""Binary places of numbers whose products and sums are tried for being exact."""


# ------------------------------------------------------------------------------ sums without error


def sums_are_exact(tokens: Tokens) -> bool:
    """Whether sums of products of these tokens, on the host, are formed without rounding.

    That is so of small integers, such as one-hot tokens, and of fractions with few binary places.
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


def nonzero_sums(samples: Samples, pairs: Numbers, exact: bool = False) -> Mask:
    """Which S[j,k] are not zero in exact arithmetic, (M, m), for pairs (m, 2).

    ``exact`` says that sums of these tokens are formed without rounding.
    """
    sums = samples.pair_sums(pairs)
    found: Mask = sums != 0
    if exact:
        return found
    sizes = _absolute(samples).pair_sums(pairs)
    # Rounding, and underflow, which takes far less than 2^-1000
    near = np.abs(sums) <= gamma(int(samples.lengths.max()) + 4) * sizes + 2.0**-1000
    both = _absolute(samples, present=True).pair_sums(pairs) != 0
    for i, u in np.argwhere(near & both):
        tokens = samples.tokens.sequence(int(samples.sequences[i]))[: samples.lengths[i]]
        j, k = pairs[u]
        products = (Fraction(float(z[j])) * Fraction(float(z[k])) for z in tokens)
        found[i, u] = sum(products) != 0
    return found


def _absolute(samples: Samples, *, present: bool = False) -> Samples:
    """The same samples of the absolute values, or of 1 where a number is not zero."""

    def of(array: Array) -> Array:
        return (array != 0).astype(np.float64) if present else np.abs(array)

    tokens = samples.tokens
    storage = tokens.storage
    if not isinstance(storage, tuple):
        return Samples(
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
    return Samples(Tokens(cut), samples.sequences, samples.lengths, samples.queries)


# ------------------------------------------------------------------------------ features that occur


@dataclass(frozen=True)
class Occurring:
    """Which pairs and queries of some features can be other than zero in the data, at all."""

    features: Features
    pairs: Mask
    """Whether some token has both coordinates, (n_pairs,)."""
    queries: Mask
    """Whether some querying token has the coordinate, (n_queries,)."""

    @classmethod
    def of(cls, tokens: Tokens, positions: Positions, features: Features) -> Occurring:
        """Look at the tokens, without arithmetic."""
        tokens = tokens.put(np.zeros(0))
        together = occurring_pairs(tokens)
        j, k = features.pairs.T
        asked = np.diagonal(together)
        if positions == "last":
            ends = Samples.of(tokens, positions)
            asked = (ends.query_tokens() != 0).any(axis=0)
        return cls(features, together[j, k], asked[features.queries])

    @property
    def everything(self) -> bool:
        """Whether all of them occur."""
        return bool(self.pairs.all() and self.queries.all())

    @property
    def mask(self) -> Mask:
        """Features of a pair and a query that both occur, (p,)."""
        return np.asarray((self.pairs[:, None] & self.queries[None, :]).reshape(-1))

    def has_all_of(self, tokens: Tokens, positions: Positions) -> Mask:
        """Which queries have no feature that is not zero but these, (rows,)."""
        return ~_outside(tokens, positions, self.features, self.pairs, self.queries)


def _outside(
    tokens: Tokens, positions: Positions, features: Features, pairs: Mask, queries: Mask
) -> Mask:
    """Which queries have one of the features, with a pair or query that is not marked, (rows,)."""
    samples = Samples.of(tokens.put(np.zeros(0)), positions)
    found = np.zeros(len(samples), dtype=bool)
    if pairs.all() and queries.all():
        return found
    exact = sums_are_exact(samples.tokens)
    others = features.pairs[~pairs]
    step = max(1, _BATCH_BYTES // (8 * (features.n_pairs + features.d)))
    for where, part in samples.parts(step):
        z = part.query_tokens()[:, features.queries]
        asked = z[:, ~queries].any(axis=1)
        if asked.any():  # of any pair at all
            found[where.start + np.flatnonzero(asked)] = nonzero_sums(
                part.take(np.flatnonzero(asked)), features.pairs, exact
            ).any(axis=1)
        if len(others):
            found[where] |= z.any(axis=1) & nonzero_sums(part, others, exact).any(axis=1)
    return found


def with_features_left_out(tokens: Tokens, positions: Positions, features: Features) -> Mask:
    """Which queries have a feature that is not chosen, (rows,)."""
    tokens = tokens.put(np.zeros(0))
    together = occurring_pairs(tokens)
    together[features.pairs[:, 0], features.pairs[:, 1]] = False
    # Chosen pairs, and those that occur in these tokens: the others are zero here
    left_out = np.argwhere(np.triu(together))
    queries = np.zeros(features.d, dtype=bool)
    queries[features.queries] = True
    squares = np.stack([np.arange(features.d)] * 2, axis=1)
    both = np.concatenate([features.pairs, left_out, squares])
    everything = Features(features.d, np.unique(both, axis=0))
    chosen = np.isin(everything.pair_numbers, features.pair_numbers)
    return _outside(tokens, positions, everything, chosen, queries)


def unless_left_out(
    values: Array, otherwise: float, tokens: Tokens, positions: Positions, features: Features
) -> Array:
    """Values (rows,), and ``otherwise`` at queries with features that the data never has."""
    if features.everything or not features.others_are_zero:
        return values
    found = put(with_features_left_out(tokens, positions, features), like=values)
    chosen: Array = module_of(values).where(found, otherwise, values)
    return chosen
