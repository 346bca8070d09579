"""Least squares in the cubic features, in exact arithmetic.

Floats are integers times powers of two, so features, targets and weights are integers in some unit,
and ranks, solutions and leverages are rational numbers. FLINT computes with them; nothing here is
shared with the package.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
from flint import fmpq_mat, fmpz_mat

Rows = list[list[int]]


class Chosen(Protocol):
    """Which features take part: all of them, or ``la.Features``."""

    pairs: np.ndarray
    """(m, 2), j <= k."""
    queries: np.ndarray
    """(t,)"""


def as_integers(values: np.ndarray) -> tuple[np.ndarray, Fraction]:
    """Integers (Python's, same shape) and the unit u with values = u * integers, exactly."""
    fractions = [Fraction(float(x)) for x in np.asarray(values).ravel()]
    k = max((f.denominator.bit_length() - 1 for f in fractions), default=0)
    integers = np.array([int(f * 2**k) for f in fractions], dtype=object)
    return integers.reshape(np.shape(values)), Fraction(1, 2**k)


def _fraction(q: object) -> Fraction:
    return Fraction(int(q.p), int(q.q))  # type: ignore[attr-defined]  # of an fmpq


@dataclass(frozen=True)
class Exact:
    """The samples of a data set: features h (M, p) times ``unit``, weights w, targets y."""

    features: Rows
    summands: Rows
    """The same of absolute values: S[j,k] without cancellation."""
    unit: Fraction
    weights: list[int]
    weight_unit: Fraction
    targets: Rows
    target_unit: Fraction

    @classmethod
    def of(
        cls,
        sequences: Iterable[np.ndarray],
        positions: str = "last",
        weights: np.ndarray | None = None,
        features: Chosen | None = None,
        targets: np.ndarray | None = None,
    ) -> Exact:
        """Samples of positive weight; ``targets`` (M, d_out) has a row for every query."""
        arrays = [np.asarray(z) for z in sequences]
        w = np.ones(len(arrays)) if weights is None else weights
        per_sequence, weight_unit = as_integers(w)
        rows, sizes, kept, where = [], [], [], []
        number = 0
        integers, unit = _in_one_unit(arrays)
        for z, weight in zip(integers, per_sequence, strict=True):
            for t in _queries(z, positions):
                if weight > 0:
                    rows.append(_features(z, t, positions, features))
                    sizes.append(_features(np.abs(z), t, positions, features))
                    kept.append(int(weight))
                    where.append(number)
                number += 1
        y = np.zeros((number, 0)) if targets is None else targets
        whole, target_unit = as_integers(y)
        return cls(rows, sizes, unit**3, kept, weight_unit, whole[where].tolist(), target_unit)

    @property
    def p(self) -> int:
        """Number of features."""
        return len(self.features[0])

    @cached_property
    def H(self) -> fmpz_mat:
        """The features, (M, p), in units of ``unit``."""
        return fmpz_mat(self.features)

    @cached_property
    def weighted(self) -> fmpz_mat:
        """H' diag(w), (p, M)."""
        rows = [[w * h for h in row] for w, row in zip(self.weights, self.features, strict=True)]
        return fmpz_mat(rows).transpose()

    @cached_property
    def gram(self) -> fmpz_mat:
        """Sum of w h h', (p, p), in units of ``unit^2 weight_unit``."""
        return self.weighted * self.H

    @cached_property
    def total_weight(self) -> Fraction:
        """W, the sum of the weights."""
        return sum(self.weights) * self.weight_unit

    @cached_property
    def rank(self) -> int:
        """Rank of the features."""
        return int(self.H.rank())

    def _shifted(self, shift: Fraction) -> tuple[fmpz_mat, int]:
        """Lambda + shift I in the units of ``gram``, times a whole number; and that number."""
        own = shift * self.total_weight / (self.unit**2 * self.weight_unit)
        matrix = self.gram * own.denominator
        for i in range(self.p):
            matrix[i, i] += own.numerator
        return matrix, own.denominator

    def exceeds(self, bound: float) -> bool:
        """Whether lambda_min of the second moment is above ``bound``.

        A symmetric matrix has positive eigenvalues alone exactly when the signs of its
        characteristic polynomial's coefficients alternate.
        """
        matrix, _ = self._shifted(-Fraction(bound))
        signs = matrix.charpoly().coeffs()[::-1]  # from x^p down
        return all((c > 0) if i % 2 == 0 else (c < 0) for i, c in enumerate(signs)) and (
            len(signs) == self.p + 1
        )

    @cached_property
    def basis(self) -> fmpz_mat:
        """Independent rows of H that span all of them, (rank, p)."""
        reduced, _, rank = self.H.transpose().rref()
        chosen = []
        for i in range(rank):
            j = next(j for j in range(reduced.ncols()) if reduced[i, j] != 0)
            chosen.append(self.features[j])
        return fmpz_mat(chosen)

    @cached_property
    def _inner(self) -> fmpz_mat:
        """B gram B', (rank, rank), positive definite."""
        return self.basis * self.gram * self.basis.transpose()

    def coefficients(self, alpha: float) -> list[list[Fraction]]:
        """Best coefficients (d_out, p), of least norm among equal ones."""
        y = fmpz_mat(self.targets)
        right = self.weighted * y  # (p, d_out)
        d_out = right.ncols()
        scale = self.target_unit / self.unit
        if self.rank == 0:
            return [[Fraction(0)] * self.p for _ in range(d_out)]
        if alpha == 0:
            t = self._inner.solve(self.basis * right)
            C = fmpq_mat(self.basis.transpose()) * t
        else:
            matrix, times = self._shifted(Fraction(alpha))
            C = matrix.solve(right * times)
        return [[_fraction(C[i, a]) * scale for i in range(self.p)] for a in range(d_out)]

    def degrees_of_freedom(self, alpha: float) -> Fraction:
        """Trace of Lambda (Lambda + alpha I)^-1, for alpha > 0."""
        matrix, times = self._shifted(Fraction(alpha))
        solved = matrix.solve(self.gram * times)
        return sum((_fraction(solved[i, i]) for i in range(self.p)), Fraction(0))

    def mean_squared_error(self, coefficients: list[list[Fraction]]) -> Fraction:
        """(1/W) sum w ||C h - y||^2, of any coefficients (d_out, p)."""
        total = Fraction(0)
        common = [_over_common_denominator(row) for row in coefficients]
        for w, h, y in zip(self.weights, self.features, self.targets, strict=True):
            for (numbers, denominator), target in zip(common, y, strict=True):
                fitted = Fraction(sum(c * x for c, x in zip(numbers, h, strict=True)), denominator)
                total += w * (fitted * self.unit - target * self.target_unit) ** 2
        return total * self.weight_unit / self.total_weight

    @property
    def samples(self) -> int:
        """Samples of positive weight."""
        return len(self.weights)

    def sizes(self, coefficients: list[list[Fraction]]) -> Fraction:
        """Root mean square of |y| + |C| g, g the sizes of the summands of h; rounded up."""
        total = Fraction(0)
        for w, g, y in zip(self.weights, self.summands, self.targets, strict=True):
            for row, target in zip(coefficients, y, strict=True):
                fitted = sum(c * x for c, x in zip(row, g, strict=True) if c)
                total += w * (fitted * self.unit + abs(target) * self.target_unit) ** 2
        mean = total * self.weight_unit / self.total_weight
        return Fraction(root(mean)) * Fraction(1.0 + 1e-9)

    def leverage(self, h: list[int], unit: Fraction) -> Fraction | None:
        """h' Lambda^+ h for features h in ``unit``; None where h is outside the range."""
        row = fmpz_mat([h])
        if not any(h):
            return Fraction(0)
        if not self.contains(h):
            return None
        column = self.basis * row.transpose()
        t = self._inner.solve(column)
        value = (fmpq_mat(column.transpose()) * t)[0, 0]
        return _fraction(value) * (unit / self.unit) ** 2 * self.total_weight / self.weight_unit

    @cached_property
    def _null(self) -> fmpz_mat:
        null, count = self.H.nullspace()
        return fmpz_mat([[null[i, j] for j in range(count)] for i in range(self.p)])

    def contains(self, h: list[int]) -> bool:
        """Whether features h, in any unit, are a combination of those of the samples."""
        if self.rank == self.p:
            return True
        left = fmpz_mat([h]) * self._null
        return all(left[0, j] == 0 for j in range(left.ncols()))


def _over_common_denominator(row: list[Fraction]) -> tuple[list[int], int]:
    common = math.lcm(*(x.denominator for x in row))
    return [int(x * common) for x in row], common


def _in_one_unit(sequences: list[np.ndarray]) -> tuple[list[np.ndarray], Fraction]:
    """Tokens as integers, sequence by sequence, and their unit."""
    flat, unit = as_integers(np.concatenate(sequences))
    return np.split(flat, np.cumsum([len(z) for z in sequences])[:-1]), unit


def _queries(z: np.ndarray, positions: str) -> range:
    """Places of the tokens that query."""
    return range(len(z) - 1 if positions == "last" else 0, len(z))


def _features(z: np.ndarray, t: int, positions: str, chosen: Chosen | None) -> list[int]:
    """S[j,k] z_t[l] of every pair and query coordinate, or of chosen ones, as integers."""
    d = z.shape[1]
    pairs = [(j, k) for j in range(d) for k in range(j, d)] if chosen is None else chosen.pairs
    queries = range(d) if chosen is None else chosen.queries
    seen = z[: t + 1] if positions == "causal" else z
    sums = [sum(row[j] * row[k] for row in seen) for j, k in pairs]
    return [s * z[t][l] for s in sums for l in queries]


def features_of(
    sequences: Iterable[np.ndarray], positions: str = "last", chosen: Chosen | None = None
) -> tuple[Rows, Fraction]:
    """Features of every query of the sequences, (M, p), and their unit."""
    integers, unit = _in_one_unit([np.asarray(z) for z in sequences])
    return [
        _features(z, t, positions, chosen) for z in integers for t in _queries(z, positions)
    ], unit**3


def exact_features(
    sequences: Iterable[np.ndarray],
    positions: str,
    weights: np.ndarray | None = None,
    chosen: Chosen | None = None,
) -> np.ndarray:
    """Features of the samples of positive weight, times a power of two: whole numbers, (M, p)."""
    return np.array(Exact.of(sequences, positions, weights, chosen).features, dtype=object)


def exact_rank(matrix: np.ndarray) -> int:
    """Rank of a matrix of whole numbers."""
    return int(fmpz_mat(matrix.tolist()).rank())


def exact_loss(Z: np.ndarray, y: np.ndarray, C: np.ndarray) -> float:
    """(1/N) sum ||C h - y||^2 over "last" queries, rounded once, at the end."""
    return float(Exact.of(Z, targets=y).mean_squared_error(as_fractions(C)))


def as_fractions(coefficients: np.ndarray) -> list[list[Fraction]]:
    """Floats as the rational numbers that they are."""
    return [[Fraction(float(x)) for x in row] for row in coefficients]


def relative_error(found: np.ndarray, exact: list[list[Fraction]]) -> float:
    """||C - C*|| / ||C*||, in the Frobenius norm; of C* = 0, 0 or infinity."""
    pairs = [
        (Fraction(float(x)), y)
        for given, row in zip(found, exact, strict=True)
        for x, y in zip(given, row, strict=True)
    ]
    off = sum((x - y) ** 2 for x, y in pairs)
    size = sum(y**2 for _, y in pairs)
    if size == 0:
        return 0.0 if off == 0 else float("inf")
    return root(off / size)


def root(value: Fraction) -> float:
    """Square root as a float, also of numbers beyond the range of floats."""
    if value == 0:
        return 0.0
    shift = (value.numerator.bit_length() - value.denominator.bit_length()) // 2 * 2
    scaled = value / Fraction(2) ** shift
    try:
        return float(np.sqrt(float(scaled))) * 2.0 ** (shift // 2)
    except OverflowError:
        return float("inf")


def exact_of_states(states: Any, weights: np.ndarray | None = None) -> Exact:
    """The features s_u c_l in exact arithmetic: those of the token (1, s, c), chosen."""
    q, d_q = states.kind.entries, states.kind.query
    chosen = SimpleNamespace(
        pairs=np.array([(0, 1 + u) for u in range(q)]), queries=np.arange(1 + q, 1 + q + d_q)
    )
    return Exact.of(list(states.storage), weights=weights, features=chosen)
