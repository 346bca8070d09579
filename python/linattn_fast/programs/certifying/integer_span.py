"""Spans of whole-number vectors, exactly.

Rows are kept in reduced echelon form: each has a pivot, a column in which the other rows are zero.
Everything is whole numbers, held in float64 because matrix products of that are fast; a number that
might not be exact in it raises OverflowError, so what is computed is the span over the rationals.
"""

from __future__ import annotations

import math

import numpy as np

from ...arrays.types import Array, Floats
from ...linalg.host_algebra import product

_EXACT = 2.0**52
"""Whole numbers up to this are exact in float64, and so are sums of them."""


def _largest(matrix: Floats) -> float:
    return float(np.abs(matrix).max(initial=0.0))


def _product(left: Floats, right: Floats) -> Floats:
    """Matrix product, when every partial sum is exact."""
    if _largest(left) * _largest(right) * left.shape[1] > _EXACT:
        raise OverflowError("numbers too large for exact arithmetic")
    return product(left, right)


def _primitive(rows: Floats) -> Floats:
    """Rows divided by the greatest common divisor of their entries; rows of zeros left out."""
    if _largest(rows) > _EXACT:
        raise OverflowError("numbers too large for exact arithmetic")
    rows = rows[rows.any(axis=1)]
    divisors = np.gcd.reduce(rows.astype(np.int64), axis=1) if len(rows) else np.ones(0)
    return np.asarray(rows / divisors[:, None])


def eliminated(rows: Floats, columns: Array) -> tuple[Floats, Array]:
    """Reduce rows by their entries in some columns, one after another: Gauss and Jordan.

    Returns
    -------
    rows
        Rows with the same span; the first ones have a pivot each.
    pivots
        Columns in which these rows, and no others, are not zero.
    """
    rows = rows.copy()
    pivots: list[int] = []
    for column in columns[rows[:, columns].any(axis=0)]:  # a column of zeros stays one
        done = len(pivots)
        if done == len(rows):
            break
        free = done + np.flatnonzero(rows[done:, column])
        if len(free) == 0:
            continue
        # A pivot of one leaves the numbers small
        pivot = free[np.abs(rows[free, column]).argmin()]
        rows[[done, pivot]] = rows[[pivot, done]]
        others = np.flatnonzero(rows[:, column])
        others = others[others != done]
        if len(others):
            value, factors = rows[done, column], rows[others, column, None]
            if 2 * _largest(rows) ** 2 > _EXACT:
                raise OverflowError("numbers too large for exact arithmetic")
            changed = rows[others] * value - factors * rows[done]
            divisors = np.gcd.reduce(changed.astype(np.int64), axis=1)
            rows[others] = changed / np.maximum(divisors, 1)[:, None]
        pivots.append(int(column))
    return rows, np.array(pivots, dtype=np.intp)


class IntegerSpan:
    """A span that grows, of vectors with ``n`` whole numbers."""

    def __init__(self, n: int) -> None:
        self.rows: Floats = np.zeros((0, n))
        """A basis (rank, n), in reduced echelon form."""
        self._pivots: Array = np.zeros(0, np.intp)

    def __len__(self) -> int:
        """Return the rank."""
        return len(self.rows)

    def outside(self, vectors: Floats) -> Floats:
        """What vectors (m, n) have outside the span, up to a factor each; zeros are left out."""
        if len(self.rows) == 0:
            return _primitive(vectors)
        own = self.rows[np.arange(len(self.rows)), self._pivots]
        common = math.lcm(*{int(pivot) for pivot in own})  # of any size, unlike numpy's
        if _largest(vectors) * common > _EXACT:
            raise OverflowError("numbers too large for exact arithmetic")
        factors = vectors[:, self._pivots] * (common / own)
        return _primitive(common * vectors - _product(factors, self.rows))

    def add(self, vectors: Floats) -> bool:
        """Take vectors (m, n) into the span; whether it has grown."""
        new = self.outside(vectors)
        if len(new) == 0:
            return False
        reduced, _ = eliminated(new, np.arange(new.shape[1]))
        joined = np.concatenate([self.rows, _primitive(reduced)])
        pivots = [int(np.flatnonzero(row)[0]) for row in joined[len(self.rows) :]]
        # The older rows are cleared in the new pivots; their own pivots stay, being zero in the new
        order = np.concatenate([self._pivots, np.array(pivots, dtype=np.intp)])
        self.rows, self._pivots = eliminated(joined, order)
        return True
