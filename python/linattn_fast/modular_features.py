"""The cubic features of data as whole numbers, and what they are modulo a prime.

Tokens are first measured in units: that of coordinate l is the greatest u_l such that every token
has a whole multiple of it there. Floats are m 2^e, so there is one: the greatest common divisor of
the odd parts of m, times the least power of two. In units, features are whole numbers,

    h'[(j,k), l] = h[(j,k), l] / (u_j u_k u_l)

and the rank and its null vectors are those of h up to factors. Units make whole numbers small: of
tokens 0.3 times one-hot, or of a constant coordinate, they are 0 and 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from math import log2
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from .features import Features
from .modular import product, reduced, residues, whole_and_exponent
from .tokens import Array, Floats, Positions, Tokens

Reading: TypeAlias = "AbstractContextManager[Iterator[tuple[Tokens, Floats | None]]]"
"""One reading of the data: batches of tokens with their weights."""

_SUMS_AT_ONCE = 1 << 20
"""Numbers S, or products of tokens, formed together."""
_FEATURES_AT_ONCE = 1 << 22
"""Numbers h formed together, at most."""
_SLOWER = 64
"""Multiply-adds of a matrix product in the time that a residue of a feature takes."""


@dataclass(frozen=True)
class Units:
    """The greatest common unit of each coordinate, divisor 2^exponent, and sizes in units."""

    divisors: npt.NDArray[np.int64]
    """Odd, (d,)."""
    exponents: npt.NDArray[np.int64]
    """(d,)."""
    bits: Floats
    """At least log2 of the largest token in units, (d,)."""

    def factors(self, q: int) -> npt.NDArray[np.int64]:
        """1 / u_l modulo q, (d,); q must divide no divisor."""
        pairs = zip(self.divisors.tolist(), self.exponents.tolist(), strict=True)
        return np.array([pow(m * pow(2, e, q), -1, q) for m, e in pairs], dtype=np.int64)

    def allow(self, q: int) -> bool:
        """Whether units have an inverse modulo q."""
        return bool((self.divisors % q).all())


def _units_of(batches: Iterator[Array], d: int) -> Units:
    """Units of tokens (rows, d), a batch at a time."""
    divisors = np.zeros(d, np.int64)
    exponents = np.full(d, np.iinfo(np.int64).max)
    largest = np.zeros(d)
    for rows in batches:
        m, e = whole_and_exponent(rows)
        low = m & -m  # the lowest set bit, a power of two
        present = m != 0
        odd = np.where(present, np.abs(m) // np.where(present, low, 1), 0)
        lowest = e + np.log2(np.where(present, low, 1)).astype(np.int64)
        exponents = np.minimum(exponents, lowest.min(axis=0, where=present, initial=2**62))
        divisors = np.gcd(divisors, np.gcd.reduce(odd, axis=0))
        largest = np.maximum(largest, np.abs(rows).max(axis=0))
    absent = divisors == 0
    divisors[absent], exponents[absent] = 1, 0
    # Rounding of the logarithms is far below the 0.01 added
    with np.errstate(divide="ignore"):
        bits = np.log2(largest) - exponents - np.log2(divisors) + 0.01
    bits[absent] = 0.0
    return Units(divisors, exponents, bits)


@dataclass(frozen=True)
class ModularData:
    """Data whose features are wanted modulo primes; read anew for every prime."""

    read: Callable[[], Reading]
    positions: Positions
    features: Features

    @classmethod
    def of(
        cls, tokens: Tokens, weights: Floats | None, positions: Positions, features: Features
    ) -> ModularData:
        """Data in memory."""
        at_home = tokens.put(np.zeros(0))
        return cls(lambda: nullcontext(iter([(at_home, weights)])), positions, features)

    def _sequences(self) -> Iterator[Tokens]:
        """Sequences of positive weight, on the host."""
        with self.read() as batches:
            for given, weights in batches:
                tokens = given.put(np.zeros(0))
                if weights is None or (weights > 0).all():
                    yield tokens
                elif (weights > 0).any():
                    kept = np.flatnonzero(weights > 0)
                    yield Tokens(tuple(tokens.sequence(int(i)) for i in kept))

    @cached_property
    def _looked_at(self) -> tuple[Units, int, int, int, int]:
        """Units, samples, tokens, the longest sequence, and a number that depends on all tokens."""
        counts = np.zeros(2, np.int64)
        longest = 0
        digest = hashlib.blake2b(digest_size=8)

        def rows() -> Iterator[Array]:
            nonlocal longest
            for tokens in self._sequences():
                counts[:] += tokens.n_samples(self.positions), tokens.n_rows
                longest = max(longest, int(tokens.lengths.max()))
                for array in tokens.arrays:
                    flat = array.reshape(-1, tokens.d)
                    digest.update(np.ascontiguousarray(flat))
                    yield flat

        units = _units_of(rows(), self.features.d)
        seed = int.from_bytes(digest.digest(), "little")
        return units, int(counts[0]), int(counts[1]), longest, seed

    @property
    def units(self) -> Units:
        """Units of the tokens."""
        return self._looked_at[0]

    @property
    def n_samples(self) -> int:
        """Samples of positive weight."""
        return self._looked_at[1]

    @property
    def seed(self) -> int:
        """A digest of the tokens, which primes are chosen by."""
        return self._looked_at[4]

    @cached_property
    def feature_bits(self) -> Floats:
        """At least log2 |h'| of each feature in every sample, (p,)."""
        bits, longest = self.units.bits, self._looked_at[3]
        j, k = self.features.pairs.T
        sums = bits[j] + bits[k] + log2(max(longest, 1)) + 0.01
        return (sums[:, None] + bits[self.features.queries]).reshape(-1)

    @property
    def work(self) -> float:
        """One pass over the data modulo a prime, in multiply-adds of a matrix product."""
        _, samples, tokens, _, _ = self._looked_at
        formed = self.features.n_pairs * (samples if self.positions != "causal" else tokens)
        multiplied = tokens * self.features.n_pairs
        each = tokens * self.features.d + formed + samples * self.features.count
        return _SLOWER * float(each) + multiplied

    def rows(self, q: int, first: int = 64) -> Iterator[Floats]:
        """h' modulo q of the samples of positive weight, (rows, p), ``first`` rows to begin with.

        Later there are more at a time, so that what needs few samples does not form many.
        """
        most = max(64, _FEATURES_AT_ONCE // self.features.count)
        wanted = min(first, most)
        for tokens in self._sequences():
            lengths = tokens.lengths
            ends = np.cumsum(np.ones_like(lengths) if self.positions == "last" else lengths)
            sums_a_token = self.features.n_pairs if self.positions == "causal" else tokens.d
            start, done = 0, 0
            while start < len(tokens):
                stop = max(start + 1, int(np.searchsorted(ends, done + wanted, side="right")))
                room = _SUMS_AT_ONCE // (sums_a_token * int(lengths[start:stop].max()))
                stop = min(stop, start + max(1, room))
                yield from self._rows_of(tokens.part(start, stop), q, most)
                start, done = stop, int(ends[stop - 1])
                wanted = min(2 * wanted, most)

    def _rows_of(self, tokens: Tokens, q: int, most: int) -> Iterator[Floats]:
        s, z = sums_and_queries(tokens, self.positions, self.features, self.units.factors(q), q)
        for first in range(0, len(s), most):
            here = slice(first, first + most)
            h = s[here, :, None] * z[here, None, :]
            yield reduced(h.reshape(len(h), -1), q)


def sums_and_queries(
    tokens: Tokens,
    positions: Positions,
    features: Features,
    factors: npt.NDArray[np.int64],
    q: int,
) -> tuple[Floats, Floats]:
    """s (samples, n_pairs) and z (samples, n_queries) modulo q, of tokens times ``factors``."""
    lengths = tokens.lengths
    # Sequences side by side, zeros past the end of each: (N, longest, d)
    side = np.zeros((len(tokens), int(lengths.max()), tokens.d))
    inside = np.arange(side.shape[1]) < lengths[:, None]
    side[inside] = tokens.rows()
    Z = residues(side, factors, q)
    j, k = features.pairs.T
    if positions == "causal":
        products = reduced(Z[:, :, j] * Z[:, :, k], q)
        s = reduced(np.cumsum(products, axis=1), q)[inside]
    else:
        S = product(Z.transpose(0, 2, 1), Z, q)
        s = S[:, j, k]
        if positions == "all":
            s = np.repeat(s, lengths, axis=0)
    z = Z[inside] if positions != "last" else Z[np.arange(len(Z)), lengths - 1]
    return s, z[:, features.queries]
