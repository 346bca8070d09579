"""The cubic features of data as whole numbers, and their residues modulo a prime.

Tokens are first measured in units: the unit of coordinate j is the greatest u_j such that every
token has a whole multiple of it there. Floats are m 2^e, so it exists: the greatest common divisor
of the odd parts of m, times the least power of two. Queries have units v_l of their own. In units,
features are whole numbers,

    h'[(j,k), l] = h[(j,k), l] / (u_j u_k v_l)

with the rank of h, and with its null vectors up to factors. Units make these numbers small: for
tokens that are 0.3 times one-hot, and for constant coordinates, they are 0 and 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from math import log2
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ..arrays.types import Array, Floats, Positions
from ..data.prefixes import distinct_rows, last_tokens
from ..data.states import States
from ..data.tokens import Tokens
from ..features.features import Features
from ..features.samples import Samples
from .modular import Span, product, reduced, residues, whole_and_exponent

Reading: TypeAlias = "AbstractContextManager[Iterator[Samples]]"
"""One reading of the data, part by part."""

_SUMS_AT_ONCE = 1 << 20
"""Number of entries of S, or of products of tokens, formed together."""
_FEATURES_AT_ONCE = 1 << 22
"""Number of features formed together, at most, over all samples."""
_SLOWER = 64
"""Multiply-adds of a matrix product in the time that a residue of a feature takes."""
_PASS = 1e7
"""Multiply-adds of a matrix product in the time of a pass over next to nothing."""


@dataclass(frozen=True)
class Units:
    """The greatest common unit of each coordinate, divisor 2^exponent, and sizes in units.

    The first d entries are for tokens, the others for queries.
    """

    divisors: npt.NDArray[np.int64]
    """Odd parts of the units, (2 d,)."""
    exponents: npt.NDArray[np.int64]
    """Exponents of two in the units, (2 d,)."""
    bits: Floats
    """Upper bounds on log2 of the largest multiple, (2 d,)."""

    def factors(self, q: int) -> npt.NDArray[np.int64]:
        """The inverses 1 / u_j and 1 / v_l modulo q, (2 d,); q must divide no divisor."""
        pairs = zip(self.divisors.tolist(), self.exponents.tolist(), strict=True)
        return np.array([pow(m * pow(2, e, q), -1, q) for m, e in pairs], dtype=np.int64)

    def allow(self, q: int) -> bool:
        """Whether all units have an inverse modulo q."""
        return bool((self.divisors % q).all())


class _CommonUnits:
    """Units of the columns of a matrix that comes some rows at a time."""

    def __init__(self, columns: int) -> None:
        self.divisors = np.zeros(columns, np.int64)
        self.exponents = np.full(columns, 1 << 62)
        self.largest = np.zeros(columns)

    def take(self, rows: Array) -> None:
        """Make the units fit more rows, (m, columns), as well."""
        m, e = whole_and_exponent(rows)
        present = m != 0
        low = np.where(present, m & -m, 1)  # the lowest set bit, a power of two
        odd = np.abs(m) // low
        lowest = (e + np.log2(low).astype(np.int64)).min(axis=0, where=present, initial=1 << 62)
        self.exponents = np.minimum(self.exponents, lowest)
        self.divisors = np.gcd(self.divisors, np.gcd.reduce(odd, axis=0))
        self.largest = np.maximum(self.largest, np.abs(rows).max(axis=0))

    def units(self) -> tuple[Array, Array, Array]:
        """Divisors, exponents and bits; a column of zeros has 1, 0 and 0."""
        absent = self.divisors == 0
        divisors = np.where(absent, 1, self.divisors)
        exponents = np.where(absent, 0, self.exponents)
        largest = np.where(absent, 1.0, self.largest)
        # Rounding of the logarithms is far below the 0.01 added
        bits = np.log2(largest) - exponents - np.log2(divisors) + 0.01
        return divisors, exponents, bits


def is_rounded(tokens: Tokens) -> bool:
    """Whether the memory of states is rounded as it is read, so that nothing exact is known."""
    return isinstance(tokens, States) and tokens.summed


class Counts(NamedTuple):
    """How large the data is, counting sequences of positive weight."""

    samples: int = 0
    tokens: int = 0
    longest: int = 0
    """Number of tokens in the longest sequence."""


@dataclass(frozen=True)
class ModularData:
    """Data whose features are wanted modulo primes; read anew for every prime."""

    read: Callable[[], Reading]
    positions: Positions
    features: Features
    zeros_and_ones: bool = False
    """Whether tokens have no other entries, so that 1 is the unit of each coordinate."""
    spans: dict[int, Span] = field(default_factory=dict, repr=False, compare=False)
    """Spans of the samples' features modulo primes, where they were found before."""

    @classmethod
    def of(cls, samples: Samples) -> ModularData:
        """The features of samples that are in memory."""
        at_home = samples.put(np.zeros(0))
        return cls(lambda: nullcontext(iter([at_home])), samples.positions, samples.features)

    def sequences(self) -> Iterator[Tokens]:
        """Yield the sequences of positive weight, on the host."""
        with self.read() as parts:
            for part in parts:
                tokens, weights = part.tokens.put(np.zeros(0)), part.weights
                if weights is None or (weights > 0).all():
                    yield tokens
                elif (weights > 0).any():
                    yield tokens.kept(np.flatnonzero(weights > 0))

    @cached_property
    def counts(self) -> Counts:
        """How many samples and tokens there are, found by one pass over the data."""
        found = Counts()
        for tokens in self.sequences():
            found = Counts(
                found.samples + tokens.n_samples(self.positions),
                found.tokens + tokens.n_rows,
                max(found.longest, tokens.longest),
            )
        return found

    @cached_property
    def _looked_at(self) -> tuple[Units, int]:
        """Units of the tokens, and a digest of them all, found by one pass over the data."""
        d = self.features.d
        if self.zeros_and_ones:
            return Units(np.ones(2 * d, np.int64), np.zeros(2 * d, np.int64), np.zeros(2 * d)), 0
        digest = hashlib.blake2b(digest_size=8)
        every, asked = _CommonUnits(d), _CommonUnits(d)
        for tokens in self.sequences():
            for rows in distinct_rows(tokens):
                digest.update(np.ascontiguousarray(rows).data)
                every.take(rows)
            if self.positions == "last":
                for rows in last_tokens(tokens):
                    asked.take(rows)
        queries = (asked if self.positions == "last" else every).units()
        both = zip(every.units(), queries, strict=True)
        units = Units(*(np.concatenate(parts) for parts in both))
        return units, int.from_bytes(digest.digest(), "little")

    @property
    def units(self) -> Units:
        """Units of tokens and queries."""
        return self._looked_at[0]

    @property
    def seed(self) -> int:
        """A digest of the tokens, which decides the order of the primes."""
        return self._looked_at[1]

    @cached_property
    def feature_bits(self) -> Floats:
        """Upper bounds on log2 |h'| of each feature over all samples, (p,)."""
        bits, longest = self.units.bits, self.counts.longest
        j, k = self.features.pairs.T
        sums = bits[j] + bits[k] + log2(max(longest, 1)) + 0.01
        queries = bits[self.features.d + self.features.queries]
        return np.asarray((sums[:, None] + queries).reshape(-1))

    def work(self, columns: int | None = None) -> float:
        """Cost of a pass over so many features modulo a prime, in multiply-adds of a product."""
        samples, tokens, _ = self.counts
        pairs = self.features.n_pairs
        h = self.features.count if columns is None else columns
        formed = pairs * (samples if self.positions != "causal" else tokens)
        each = tokens * self.features.d + formed + samples * h
        return _SLOWER * float(each) + tokens * pairs + _PASS

    def rows(
        self, q: int, *, first: int = 64, columns: npt.NDArray[np.intp] | None = None
    ) -> Iterator[Floats]:
        """Yield h' modulo q of the samples of positive weight, (rows, p), or some columns of it.

        There are ``first`` rows at first, then more at a time, so that no more samples than
        necessary are formed for a caller who needs few.
        """
        count = self.features.count if columns is None else len(columns)
        most = max(64, _FEATURES_AT_ONCE // max(count, 1))
        wanted = min(first, most)
        factors = self.units.factors(q)
        for tokens in self.sequences():
            lengths = tokens.lengths
            ends = np.cumsum(np.ones_like(lengths) if self.positions == "last" else lengths)
            sums_a_token = self.features.n_pairs if self.positions == "causal" else tokens.d
            start, done = 0, 0
            while start < len(tokens):
                stop = max(start + 1, int(np.searchsorted(ends, done + wanted, side="right")))
                room = _SUMS_AT_ONCE // (sums_a_token * int(lengths[start:stop].max()))
                stop = min(stop, start + max(1, room))
                part = tokens.part(start, stop)
                s, z = sums_and_queries(part, self.positions, self.features, factors, q)
                for row in range(0, len(s), most):
                    here = slice(row, row + most)
                    yield features_modulo(s[here], z[here], q, columns)
                start, done = stop, int(ends[stop - 1])
                wanted = min(2 * wanted, most)


def features_modulo(
    s: Floats, z: Floats, q: int, columns: npt.NDArray[np.intp] | None = None
) -> Floats:
    """The features h = s (x) z modulo q, (rows, p), or some columns of them."""
    if columns is not None:
        u, l = np.divmod(columns, z.shape[1])
        return reduced(s[:, u] * z[:, l], q)
    return reduced((s[:, :, None] * z[:, None, :]).reshape(len(s), -1), q)


def sums_and_queries(
    tokens: Tokens,
    positions: Positions,
    features: Features,
    factors: npt.NDArray[np.int64],
    q: int,
) -> tuple[Floats, Floats]:
    """The factors s (samples, n_pairs) and z (samples, n_queries) of h' modulo q.

    ``factors``, (2 d,), are the inverses of the units (:meth:`Units.factors`).
    """
    lengths, d = tokens.lengths, tokens.d
    if isinstance(tokens, States):  # S[0, u] = 1 s_u, of which the rest of S is not formed
        s, z = features.samples(tokens)
        pairs, queries = features.pairs[:, 1], features.queries
        return residues(s, factors[pairs], q), residues(z, factors[d + queries], q)
    # Sequences side by side, zeros past the end of each: (N, longest, d)
    side = np.zeros((len(tokens), int(lengths.max()), d))
    inside = np.arange(side.shape[1]) < lengths[:, None]
    side[inside] = tokens.rows()
    Z = residues(side, factors[:d], q)
    j, k = features.pairs.T
    if positions == "causal":
        products = reduced(Z[:, :, j] * Z[:, :, k], q)
        s = reduced(np.cumsum(products, axis=1), q)[inside]
    else:
        S = product(Z.transpose(0, 2, 1), Z, q)
        s = S[:, j, k]
        if positions == "all":
            s = np.repeat(s, lengths, axis=0)
    z = side[inside] if positions != "last" else side[np.arange(len(Z)), lengths - 1]
    return s, residues(z[:, features.queries], factors[d + features.queries], q)
