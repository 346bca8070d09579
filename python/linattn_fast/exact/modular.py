"""Arithmetic modulo primes of 23 bits, by float64 matrix products that round nothing.

A float is m 2^e with whole m and e, so it has a residue modulo every odd prime q, whatever its
size. Residues are kept balanced, |x| <= q/2 < 2^22: a product is below 2^44, and 256 of them add up
to at most 2^52, which float64 holds exactly. So BLAS forms the products, and a remainder is taken
after every 256 terms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ..arrays.types import Array, Floats, Numbers

BITS = 22
"""Bits that each prime is sure to have: every prime is above 2^BITS."""
_LOW, _HIGH = 1 << BITS, (1 << BITS + 1) - (1 << 12)
"""Primes lie between these two numbers."""
_TERMS = 256
"""Number of products of residues that may be added before a remainder is taken."""
_PANEL = 32
"""Number of columns eliminated one by one; the rest follows in a matrix product."""
_LEAST_EXPONENT = -1130
"""A lower bound on the exponents e of floats m 2^e with whole m, |m| < 2^53."""
_SMALL = 2.0**29
"""Bound on whole numbers whose product with a residue is exact."""


def primes(seed: int) -> Iterator[int]:
    """Yield distinct primes of 23 bits in an order that depends on the seed alone."""
    rng = np.random.default_rng(seed)
    divisors = np.arange(3, int(_HIGH**0.5) + 2, 2)
    known: set[int] = set()
    while True:
        q = int(rng.integers(_LOW, _HIGH)) | 1
        if q not in known and (q % divisors).all():
            known.add(q)
            yield q


def reduced(x: Floats, q: int) -> Floats:
    """Balanced remainders of whole numbers |x| <= 2^52; a multiple of q gives 0."""
    multiple = x * (1.0 / q)
    np.rint(multiple, out=multiple)
    multiple *= q
    return np.subtract(x, multiple, out=multiple)


def product(a: Floats, b: Floats, q: int) -> Floats:
    """The matrix product a @ b modulo q of balanced residues."""
    inner = a.shape[-1]
    if inner <= _TERMS:
        return reduced(a @ b, q)
    total = reduced(a[..., :_TERMS] @ b[..., :_TERMS, :], q)
    for first in range(_TERMS, inner, _TERMS):
        terms = slice(first, first + _TERMS)
        total += reduced(a[..., terms] @ b[..., terms, :], q)
        total = reduced(total, q)
    return total


@lru_cache(maxsize=64)
def _powers_of_two(q: int) -> npt.NDArray[np.int64]:
    """Powers 2^k modulo q for k = _LEAST_EXPONENT, .., 1024."""
    power = pow(2, _LEAST_EXPONENT, q)
    powers = []
    for _ in range(_LEAST_EXPONENT, 1025):
        powers.append(power)
        power = 2 * power % q
    return np.array(powers, dtype=np.int64)


def whole_and_exponent(x: Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Split x = m 2^e exactly, with whole |m| < 2^53 that is 0 or has its leading bit at 2^52."""
    fraction, exponent = np.frexp(x.astype(np.float64, copy=False))
    return (fraction * 2.0**53).astype(np.int64), exponent.astype(np.int64) - 53


def residues(x: Array, factors: npt.NDArray[np.int64], q: int) -> Floats:
    """Balanced residues of finite floats (.., d) times ``factors``, (d,), residues themselves."""
    if np.abs(x).max(initial=0) <= _SMALL and bool((np.rint(x) == x).all()):
        return reduced(x.astype(np.float64) * factors, q)  # at most 2^29 2^23
    m, e = whole_and_exponent(x)
    m %= q
    m *= _powers_of_two(q)[e - _LEAST_EXPONENT]
    m %= q
    m *= factors
    m %= q
    return reduced(m.astype(np.float64), q)


def _panel_pivots(P: Floats, L: Floats, q: int) -> tuple[list[int], Numbers]:
    """Eliminate the columns of a panel P in place, and write the multipliers to L.

    Returns the columns that have a pivot, and the new order of the rows.
    """
    columns: list[int] = []
    order = np.arange(len(P))
    for column in range(P.shape[1]):
        k = len(columns)
        candidates = np.flatnonzero(P[k:, column])
        if len(candidates) == 0:
            continue
        other = k + int(candidates[0])
        if other != k:
            for rows in (P, L, order):
                rows[[k, other]] = rows[[other, k]]
        inverse = pow(int(P[k, column]), -1, q)
        L[k + 1 :, k] = reduced(P[k + 1 :, column] * inverse, q)
        P[k + 1 :, column] = 0.0
        right = slice(column + 1, None)
        P[k + 1 :, right] = reduced(P[k + 1 :, right] - L[k + 1 :, k, None] * P[k, right], q)
        columns.append(column)
        if len(columns) == len(P):
            break
    return columns, order


def _row_echelon(M: Floats, q: int) -> tuple[Floats, Numbers]:
    """Bring M into row echelon form in place; return its non-zero rows and the pivot columns."""
    pivots: list[int] = []
    for first in range(0, M.shape[1], _PANEL):
        row = len(pivots)
        if row == len(M):
            break
        below, last = M[row:], first + _PANEL
        panel = below[:, first:last].copy()
        L = np.zeros(panel.shape)
        columns, order = _panel_pivots(panel, L, q)
        k = len(columns)
        if k == 0:
            continue
        if (order != np.arange(len(order))).any():
            M[row:] = below[order]
        below[:, first:last] = panel
        top, rest = below[:k, last:], below[k:, last:]
        for i in range(1, k):  # the unit lower triangle of L, solved for the pivots' rows
            top[i] = reduced(top[i] - L[i, :i] @ top[:i], q)
        rest[:] = reduced(rest - L[k:, :k] @ top, q)
        pivots.extend(first + column for column in columns)
    return M[: len(pivots)], np.array(pivots, dtype=np.intp)


def _solve_upper(U: Floats, rhs: Floats, q: int) -> Floats:
    """The solution U^-1 rhs modulo q for an upper triangle U without zeros on its diagonal."""
    x = rhs.copy()
    for last in range(len(U), 0, -_PANEL):
        first = max(last - _PANEL, 0)
        if last < len(U):
            x[first:last] = reduced(x[first:last] - product(U[first:last, last:], x[last:], q), q)
        for i in range(last - 1, first - 1, -1):
            left = x[i] - U[i, i + 1 : last] @ x[i + 1 : last]
            x[i] = reduced(reduced(left, q) * pow(int(U[i, i]), -1, q), q)
    return x


@dataclass(frozen=True)
class Span:
    """A space of rows modulo q in reduced echelon form: [I B] on pivots and free columns."""

    q: int
    pivots: Numbers
    """Columns with a pivot, (r,)."""
    free: Numbers
    """Columns without a pivot, (p - r,)."""
    B: Floats
    """Entries of the rows in the free columns, (r, p - r)."""

    @classmethod
    def empty(cls, p: int, q: int) -> Span:
        """The span of no rows, in p columns: it holds zero alone."""
        return cls(q, np.zeros(0, np.intp), np.arange(p), np.zeros((0, p)))

    @property
    def rank(self) -> int:
        """Dimension of the span."""
        return len(self.pivots)

    def left_over(self, H: Floats) -> Floats:
        """Remainders (m, p - r) of rows (m, p) after elimination: zero for rows in the span."""
        if self.rank == 0:
            return H[:, self.free]
        return reduced(H[:, self.free] - product(H[:, self.pivots], self.B, self.q), self.q)

    def extended(self, H: Floats) -> Span:
        """The span of these rows and the rows of H, (m, p)."""
        q = self.q
        U, columns = _row_echelon(np.ascontiguousarray(self.left_over(H)), q)
        if len(columns) == 0:
            return self
        others = np.setdiff1d(np.arange(len(self.free)), columns)
        new = _solve_upper(U[:, columns], U[:, others], q)
        old = self.B[:, others]
        if len(old):
            old = reduced(old - product(self.B[:, columns], new, q), q)
        pivots = np.concatenate([self.pivots, self.free[columns]])
        order = np.argsort(pivots)
        return Span(q, pivots[order], self.free[others], np.concatenate([old, new])[order])

    def null_vectors(self, k: int, rng: np.random.Generator) -> Floats:
        """Random vectors (p, k) that every row of the span is orthogonal to."""
        V = np.zeros((self.rank + len(self.free), k))
        V[self.free] = reduced(rng.integers(0, self.q, (len(self.free), k)).astype(float), self.q)
        if self.rank:
            V[self.pivots] = -product(self.B, V[self.free], self.q)
        return V
