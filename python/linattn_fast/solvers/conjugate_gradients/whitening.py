"""Coordinates in which the normal equations are close to the identity.

The second moment Lambda = mean w (s s') (x) (z z') is near the Kronecker product of its factors
A = mean w s s' and B = mean w z z'. In coordinates v with

    C = L (scale * v) R'        L (n_pairs, r), R (n_queries, t), scale (r, t)

chosen so that A (x) B + alpha I becomes the identity, conjugate gradients see neither how tokens
are scaled nor how they are mixed. Nothing of size p x p is formed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from ...arrays.device import module_of, to_host
from ...arrays.types import Floats
from ...backend.normal_operator import KroneckerFactors
from ...features.features import Features
from ...linalg.algebra import algebra_of, two_sided
from ...linalg.cholesky import power_of_two_scale, rounding_level
from ...linalg.factors import EPS, MARGIN
from ...linalg.spectral import SpectralFactor, decompose

_CANCELLED = 1e-12
"""Share of its summands below which an entry of S is rounding: ten times that of 900 tokens."""


class Coordinates(Protocol):
    """Coordinates v of coefficients: a linear map, and its transpose."""

    @property
    def condition(self) -> float:
        """Condition number of the matrix that becomes the identity, equilibrated."""

    @property
    def shape(self) -> tuple[int, int]:
        """The shape (r, t) of v for one output."""

    @property
    def norm(self) -> float:
        """Largest length of C for v of length one."""

    def row_squares(self) -> Floats:
        """Squared length of each row of the map, from v to one coefficient, (p,)."""

    def coefficients(self, v: Floats) -> Floats:
        """The coefficients C (m, p) of v (m, r, t)."""

    def transpose(self, gradient: Floats) -> Floats:
        """Coordinates (m, r, t) of a gradient (m, p), by the transposed map."""


@dataclass(frozen=True)
class Whitening:
    """The coordinates C = L (scale * v) R'."""

    left: Floats
    right: Floats
    scale: Floats
    condition: float
    tilt: float = 0.0
    """Share of directions left out that rounding may have mixed into the others; 0 without any."""

    @cached_property
    def _transposed(self) -> tuple[Floats, Floats]:
        """The matrices L' and R', row by row in memory."""
        xp = module_of(self.left)
        return xp.ascontiguousarray(self.left.T), xp.ascontiguousarray(self.right.T)

    @property
    def shape(self) -> tuple[int, int]:
        """The shape (r, t) of v for one output."""
        return self.left.shape[1], self.right.shape[1]

    @cached_property
    def norm(self) -> float:
        """See :attr:`Coordinates.norm`."""
        if 0 in self.shape:
            return 0.0
        squares = (algebra_of(x).eigenvalues(x.T @ x)[-1] for x in (self.left, self.right))
        left, right = (math.sqrt(float(value)) for value in squares)
        return left * right * float(self.scale.max())

    def row_squares(self) -> Floats:
        """See :meth:`Coordinates.row_squares`."""
        squares: Floats = self.left**2 @ self.scale**2 @ (self.right**2).T
        return squares.reshape(-1)

    @property
    def full(self) -> bool:
        """Whether every coefficient can be reached."""
        return self.shape == (len(self.left), len(self.right))

    def coefficients(self, v: Floats) -> Floats:
        """See :meth:`Coordinates.coefficients`."""
        return two_sided(self.left, v * self.scale, self.right).reshape(len(v), -1)

    def transpose(self, gradient: Floats) -> Floats:
        """See :meth:`Coordinates.transpose`."""
        maps = gradient.reshape(len(gradient), len(self.left), len(self.right))
        left, right = self._transposed
        return two_sided(left, maps, right) * self.scale


@dataclass(frozen=True)
class PlainCoordinates:
    """The coordinates C = v: slow for features of several scales, but they lead to least norm."""

    n_pairs: int
    n_queries: int
    condition: float = 1.0
    norm: float = 1.0

    @property
    def shape(self) -> tuple[int, int]:
        """The shape (r, t) of v for one output."""
        return self.n_pairs, self.n_queries

    def coefficients(self, v: Floats) -> Floats:
        """See :meth:`Coordinates.coefficients`."""
        return v.reshape(len(v), -1)

    def row_squares(self) -> Floats:
        """See :meth:`Coordinates.row_squares`."""
        return np.ones(self.n_pairs * self.n_queries)

    def transpose(self, gradient: Floats) -> Floats:
        """See :meth:`Coordinates.transpose`."""
        return gradient.reshape(len(gradient), self.n_pairs, self.n_queries)


def _inverse_root(factor: SpectralFactor) -> Floats:
    """The matrix L in the range of A with L' A L = I, one column for each nonzero direction."""
    kept = factor.values[len(factor.values) - factor.rank :]
    xp = module_of(kept)
    return factor.shortest(xp.diag(1 / xp.sqrt(kept)))


def _pair_sizes(A: Floats, features: Features) -> Floats:
    """The diagonal of A, (n_pairs,), except for pairs that may be nothing but cancellation.

    For these it is mean w S_jj S_kk, which is an entry of A where both squares take part; see
    :mod:`linattn_fast.moments.sums`.
    """
    if not features.sums_cancel:
        return A.diagonal()
    xp, d = module_of(A), features.d
    where = np.full((d, d), -1)
    where[tuple(features.pairs.T)] = np.arange(features.n_pairs)
    first, second = np.diagonal(where)[features.pairs.T]  # of (j, j) and (k, k)
    diagonal = A.diagonal()
    magnitudes = xp.where(
        xp.asarray((first >= 0) & (second >= 0)), A[xp.asarray(first), xp.asarray(second)], 0.0
    )
    sizes: Floats = xp.where(diagonal <= _CANCELLED**2 * magnitudes, magnitudes, diagonal)
    return sizes


def _bounded_inverse_root(matrix: Floats, sizes: Floats) -> Floats:
    """The matrix L with L' A L = I, except that directions lost to rounding become small.

    Their eigenvalues in the equilibrated matrix count as what rounding may have made of them. So
    every direction is reached except features that are always zero, and none is blown up.
    """
    xp = module_of(matrix)
    occurring = xp.asarray(np.flatnonzero(to_host(matrix.diagonal()) > 0))
    scale = power_of_two_scale(sizes[occurring])
    values, vectors = algebra_of(matrix).eigenpairs(
        matrix[occurring][:, occurring] * scale * scale[:, None]
    )
    least = MARGIN * rounding_level(len(matrix)) * float(values[-1])
    root = xp.zeros((len(matrix), len(occurring)))
    root[occurring] = scale[:, None] * vectors / xp.sqrt(xp.maximum(values, least))
    contiguous: Floats = xp.ascontiguousarray(root)
    return contiguous


def whiten_all(factors: KroneckerFactors, total_weight: float, features: Features) -> Whitening:
    """Whiten A (x) B as far as rounding in A and B allows, and leave no direction out.

    This is for data that sees directions which :func:`whiten` leaves out: A and B are Grams, and
    lose singular values below sqrt(eps) that the features have.
    """
    A, B = factors.pairs / total_weight, factors.queries / total_weight
    left = _bounded_inverse_root(A, _pair_sizes(A, features))
    right = _bounded_inverse_root(B, B.diagonal())
    scale = module_of(A).ones((left.shape[1], right.shape[1]))
    most = 1 / (MARGIN * rounding_level(len(A))) / (MARGIN * rounding_level(len(B)))
    return Whitening(left, right, scale, most)


def whiten(
    factors: KroneckerFactors, total_weight: float, alpha: float, features: Features
) -> Whitening:
    """Whiten A (x) B + alpha I.

    With a ridge, both factors are diagonal in their eigenvectors, and so is the sum. Without one
    (or with one below the rounding level of the product) the factors are equilibrated first, so
    that what counts as zero is a matter of rounding; directions that do are left out, and what is
    reached is the range of A (x) B.
    """
    A, B = factors.pairs / total_weight, factors.queries / total_weight
    xp = module_of(A)
    if alpha > EPS * float(A.trace() * B.trace()):
        a, left = algebra_of(A).eigenpairs(A)
        b, right = algebra_of(B).eigenpairs(B)
        products = xp.maximum(a, 0.0)[:, None] * xp.maximum(b, 0.0)
        condition = float((products[-1, -1] + alpha) / (products[0, 0] + alpha))
        scale = 1 / xp.sqrt(products + alpha)
        return Whitening(xp.ascontiguousarray(left), xp.ascontiguousarray(right), scale, condition)
    first = decompose(A, sizes=_pair_sizes(A, features))
    second = decompose(B)
    left, right = _inverse_root(first), _inverse_root(second)
    scale = xp.ones((first.rank, second.rank))
    condition = first.condition * second.condition
    # Eigenvectors of A are as exact as its eigenvalues are apart: eps over the least one kept
    tilt = EPS * sum(
        len(matrix) * factor.condition
        for matrix, factor in ((factors.pairs, first), (factors.queries, second))
        if 0 < factor.rank < int((matrix.diagonal() > 0).sum())
    )
    left, right = xp.ascontiguousarray(left), xp.ascontiguousarray(right)
    return Whitening(left, right, scale, condition, tilt)
