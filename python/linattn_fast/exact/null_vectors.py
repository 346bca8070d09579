"""Linear equations that the features of every sample obey, found modulo primes and then proved.

Modulo q the span of the samples is [I B] (:class:`linattn_fast.exact.modular.Span`), so that

    h[free f] = sum_i B[i, f] h[pivot i]    in every sample, modulo q

for each free column f. Where the same holds over the rationals, with small numerators and
denominators, these follow from B modulo two primes. The equation is then checked: times the common
denominator it is an equation of whole numbers, whose sides differ by less than a known bound, and a
whole number below the bound that is zero modulo primes whose product exceeds it is zero. That is a
proof.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from math import isqrt, lcm

import numpy as np
import numpy.typing as npt

from ..arrays.types import Floats
from .modular import BITS, Span, product, reduced
from .modular_features import ModularData

Whole = npt.NDArray[np.int64]

_ENTRIES = 1 << 20
"""Number of entries of B that are made rational, at most."""


def rationals(residues: Whole, modulus: int) -> tuple[Whole, Whole]:
    """Numerators and denominators of at most sqrt(modulus / 2); denominator 0 if there are none.

    This is Euclid's algorithm on (modulus, residue), stopped half way (Wang). The modulus must be
    below 2^50.
    """
    bound = isqrt(modulus // 2)
    r0, r1 = np.full(residues.shape, modulus), residues % modulus
    t0, t1 = np.zeros_like(r1), np.ones_like(r1)
    while (going := np.flatnonzero(r1 > bound)).size:
        quotient = r0[going] // r1[going]
        r0[going], r1[going] = r1[going], r0[going] - quotient * r1[going]
        t0[going], t1[going] = t1[going], t0[going] - quotient * t1[going]
    none = (np.abs(t1) > bound) | (np.gcd(r1, t1) != 1)
    sign = np.where(t1 < 0, -1, 1)
    return np.where(none, 0, sign * r1), np.where(none, 0, np.abs(t1))


def _rational_entries(first: Span, second: Span, columns: npt.NDArray[np.intp]) -> list[Whole]:
    """Numerators and denominators of B, (r, columns), from two primes."""
    q, other = first.q, second.q
    a, b = first.B[:, columns].astype(np.int64), second.B[:, columns].astype(np.int64)
    combined = a + q * ((b - a) * pow(q, -1, other) % other)
    few, where = np.unique(combined, return_inverse=True)
    numerators, denominators = rationals(few, q * other)
    return [values[where].reshape(combined.shape) for values in (numerators, denominators)]


class Equations:
    """Candidate null vectors with rational entries, one for each free column.

    They are ordered by the size of the whole numbers in them, the smallest first.
    """

    def __init__(self, data: ModularData, first: Span, second: Span) -> None:
        self.data = data
        shortest = np.argsort((first.B != 0).sum(axis=0), kind="stable")
        columns = shortest[: max(1, _ENTRIES // max(first.rank, 1))]
        above, below = _rational_entries(first, second, columns)
        known = np.flatnonzero((below != 0).all(axis=0))
        columns, above, below = columns[known], above[:, known], below[:, known]
        common = [lcm(*np.unique(column).tolist()) for column in below.T]
        bits = self._bits(first, columns, above, below, common)
        order = np.argsort(bits, kind="stable")
        self.bits = bits[order]
        """Upper bounds on log2 of the whole numbers that must be zero, (k,)."""
        self._common = [common[i] for i in order]
        self._above = np.zeros((data.features.count, len(order)), np.int64)
        self._below = np.ones_like(self._above)
        self._above[first.pivots], self._below[first.pivots] = above[:, order], below[:, order]
        self._above[first.free[columns[order]], np.arange(len(order))] = -1

    def _bits(
        self,
        span: Span,
        columns: npt.NDArray[np.intp],
        above: Whole,
        below: Whole,
        common: list[int],
    ) -> Floats:
        sizes = self.data.feature_bits
        with np.errstate(divide="ignore"):  # log2 0 = -inf is right
            entries = np.log2(np.abs(above)) - np.log2(below) + sizes[span.pivots][:, None]
        largest = np.maximum(entries.max(axis=0, initial=0.0), sizes[span.free[columns]])
        scale = np.array([c.bit_length() for c in common], dtype=np.float64)
        terms = (above != 0).sum(axis=0) + 1
        return np.asarray(largest + scale + np.log2(terms) + 0.1)  # 0.1: rounding of logarithms

    def _modulo(self, q: int, columns: npt.NDArray[np.intp], k: int) -> Floats:
        """Residues modulo q of the first k null vectors, (columns, k)."""
        above, below = self._above[columns, :k], self._below[columns, :k]
        few, where = np.unique(below, return_inverse=True)
        inverse = np.array([pow(int(x), -1, q) for x in few], dtype=np.int64)
        values = above % q * inverse[where].reshape(below.shape) % q
        return reduced(values.astype(np.float64), q)

    def proved(self, primes: Iterator[int], budget: float) -> int:
        """Count the equations that are proved to hold in every sample, within the budget."""
        data = self.data
        needed = self.bits // BITS + 1  # primes, (k,), ascending
        used = np.logical_or.accumulate(self._above != 0, axis=1)  # (p, k)
        sizes = used.sum(axis=0)
        work = [
            data.work(int(m)) + data.counts.samples * int(m) * k for k, m in enumerate(sizes, 1)
        ]
        k = int((needed * np.array(work) <= budget).sum())
        if k == 0:
            return 0
        columns = np.flatnonzero(used[:, k - 1])
        usable = (q for q in primes if all(c % q for c in self._common[:k]))
        holds = np.ones(k, dtype=bool)
        for q in islice(usable, int(needed[k - 1])):
            vectors = self._modulo(q, columns, k)
            for H in data.rows(q, columns=columns):
                holds &= ~product(H, vectors, q).any(axis=0)
            if not holds.any():
                break
        return int(holds.sum())
