"""Coordinates that also know what rotations do to the features.

A (x) B is not yet the second moment: the query z is one of the tokens in S, and features with three
indices that are alike are larger than A and B say. For tokens whose distribution no rotation
changes, Lambda commutes with rotations of T_jkl = coefficient of S_jk z_l. Such T are of four
kinds, on which Lambda is a number each, but for the two kinds of vectors, where it is 2 x 2:

    symmetric in all indices, without trace        2 (n - 1) + 6 for n Gaussian tokens
    of mixed symmetry, without trace               2 (n - 1)
    vectors u:  symmetric   (d_jk u_l + d_jl u_k + d_kl u_j) / (d + 2)
                mixed       (2 d_jk u_l - d_jl u_k - d_kl u_j) / (2 (d - 1))

Tokens that are not so are made so by a root of B, and their pairs by the root of A that commutes
with rotations, the symmetric one. On each kind, K is then measured, with one random vector, in one
pass for all of them, and divided out; so nothing is assumed of the tokens, and where A (x) B was
right already, nothing changes. To take T apart takes as many operations as it has entries.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ...arrays.device import module_of, put, to_host
from ...arrays.types import Floats
from ...backend.normal_operator import KroneckerFactors, NormalOperator
from ...features.compact import pair_table
from ...features.features import Features
from ...linalg.algebra import algebra_of, two_sided
from .narrow import WORTHWHILE
from .whitening import Whitening

_LARGEST_CONDITION = 1e18
"""Condition number of A (x) B above which roots of A and B are not exact enough to be alike."""
_SMALL_RIDGE = 1e-2
"""Share in the identity, A (x) B with its ridge whitened, that the ridge may have in any direction:
the roots leave it out."""
_FEWEST = 3
"""Coordinates of a token from which on all four kinds exist."""


@dataclass(frozen=True)
class Kinds:
    """A number for each kind of T, and a matrix for the two kinds of vectors."""

    symmetric: float
    mixed: float
    vectors: Floats
    """(2, 2), symmetric; on the host."""

    @property
    def largest(self) -> float:
        """The largest eigenvalue, for numbers that are positive."""
        return max(self.symmetric, self.mixed, float(np.linalg.eigvalsh(self.vectors)[-1]))

    @property
    def least(self) -> float:
        """The least eigenvalue."""
        return min(self.symmetric, self.mixed, float(np.linalg.eigvalsh(self.vectors)[0]))

    def inverse_root(self) -> Kinds:
        """The inverse square root, of numbers that are positive."""
        values, vectors = np.linalg.eigh(self.vectors)
        root = (vectors / np.sqrt(values)) @ vectors.T
        return Kinds(self.symmetric**-0.5, self.mixed**-0.5, root)


class Tensors:
    """Tensors T_jkl, symmetric in j and k, as (m, n_pairs, d) of orthonormal coordinates.

    A pair of different coordinates counts sqrt(2) T_jkl, so that lengths are those of T.
    """

    def __init__(self, d: int, place: Floats) -> None:
        table, xp = pair_table(d), module_of(place)
        j, k = np.triu_indices(d)
        indices = np.arange(d)
        self.d = d
        # the entry (k, l), j and the entry (j, l), k at each (j, k), l; flat
        self._turned = [
            xp.asarray((table[a] * d + b[:, None]).ravel()) for a, b in ((k, j), (j, k))
        ]
        self._twice = xp.asarray(np.diagonal(table).copy())  # pairs (j, j)
        # (j, k), l with l = j, and with l = k; of each the other index
        self._first = xp.asarray(table * d + indices[:, None]).ravel()
        self.weights = xp.asarray(np.where(j == k, 1.0, np.sqrt(2.0)))
        # lengths of the tensors of a vector of length one
        self._length = np.sqrt([3 / (d + 2), 3 / (2 * (d - 1))])

    def _apart(self, T: Floats) -> tuple[Floats, Floats]:
        """The symmetric part of T (m, n_pairs, d), and the traces of both parts, (2, m, d)."""
        xp = module_of(T)
        flat = T.reshape(len(T), -1)
        symmetric = flat.copy()
        for turned in self._turned:
            symmetric += flat[:, turned]
        symmetric = symmetric.reshape(T.shape) / 3
        whole, part = (x[:, self._twice].sum(axis=1) for x in (T, symmetric))
        return symmetric, xp.stack([part, whole - part])

    def _add_vectors(self, T: Floats, traces: Floats) -> None:
        """T += the tensors of vectors that have these traces, (2, m, d)."""
        d = self.d
        even, odd = traces[0] / (d + 2), traces[1] / (2 * (d - 1))
        T[:, self._twice] += (even + 2 * odd)[:, None]
        # T_jkl has h_k where l = j, and h_j where l = k: both where all are the same
        h = even - odd
        flat = T.reshape(len(T), -1)
        xp = module_of(T)
        added = xp.broadcast_to(h[:, None, :], (len(T), d, d)).copy()  # [l, other index]
        diagonal = xp.arange(d)
        added[:, diagonal, diagonal] *= 2
        flat[:, self._first] += added.reshape(len(T), -1)

    def times(self, kinds: Kinds, v: Floats) -> Floats:
        """Multiply each kind in v (m, n_pairs, d) by its number."""
        xp, weights = module_of(v), self.weights[:, None]
        T = v / weights
        symmetric, traces = self._apart(T)
        T = kinds.mixed * T + (kinds.symmetric - kinds.mixed) * symmetric
        numbers = kinds.vectors - np.diag([kinds.symmetric, kinds.mixed])
        numbers = numbers * self._length / self._length[:, None]
        self._add_vectors(T, xp.einsum("ij,jml->iml", xp.asarray(numbers), traces))
        product: Floats = T * weights
        return product

    def of_each_kind(self, v: Floats, u: Floats) -> Floats:
        """One tensor of each kind, of length one, (4, n_pairs, d): from v (1, ...) and u (d,)."""
        xp, none = module_of(v), np.zeros((2, 2))
        found = [self.times(kind, v) for kind in (Kinds(1.0, 0.0, none), Kinds(0.0, 1.0, none))]
        for traces in ((1.0, 0.0), (0.0, 1.0)):
            T = xp.zeros_like(v)
            self._add_vectors(T, xp.asarray(traces)[:, None, None] * u)
            found.append(T * self.weights[:, None])
        rows = xp.concatenate(found)
        of_length_one: Floats = rows / xp.sqrt((rows**2).sum(axis=(1, 2)))[:, None, None]
        return of_length_one


@dataclass(frozen=True)
class Rotations:
    """The coordinates C = L (F v) R', with F a number on each kind of tensor."""

    whitening: Whitening
    """The maps L and R, with the scale one."""
    tensors: Tensors
    kinds: Kinds
    """The numbers of F."""
    full = True

    @property
    def condition(self) -> float:
        """See :attr:`.whitening.Coordinates.condition`."""
        return self.whitening.condition

    @property
    def shape(self) -> tuple[int, int]:
        """The shape (r, t) of v for one output."""
        return self.whitening.shape

    @cached_property
    def norm(self) -> float:
        """At least the largest length of C for v of length one."""
        return self.whitening.norm * self.kinds.largest

    def row_squares(self) -> Floats:
        """At least the squared length of each row of the map, (p,)."""
        return self.whitening.row_squares() * self.kinds.largest**2

    def coefficients(self, v: Floats) -> Floats:
        """See :meth:`.whitening.Coordinates.coefficients`."""
        return self.whitening.coefficients(self.tensors.times(self.kinds, v))

    def transpose(self, gradient: Floats) -> Floats:
        """See :meth:`.whitening.Coordinates.transpose`."""
        return self.tensors.times(self.kinds, self.whitening.transpose(gradient))


def _times_inverse_root(left: Floats, matrix: Floats) -> Floats | None:
    """L M^-1/2 with the symmetric root of M; None if rounding has left no such thing."""
    values, vectors = algebra_of(matrix).eigenpairs(matrix)
    if not float(values[0]) > 0:
        return None
    xp = module_of(matrix)
    scaled = xp.ascontiguousarray(vectors / xp.sqrt(values))
    product: Floats = two_sided(left, scaled[None], xp.ascontiguousarray(vectors))[0]
    return product


def _alike(
    factors: KroneckerFactors, weight: float, features: Features, base: Whitening
) -> Rotations | None:
    """Coordinates C = L v R with R B R' = I and L' A L = I that no rotation of tokens changes.

    They come from tokens R z, whose pairs have the second moment A'; so L is the map of S to
    R S R', transposed, times A'^-1/2.
    """
    A, B = factors.pairs / weight, factors.queries / weight
    xp, tensors = module_of(A), Tensors(features.d, A)
    sizes = xp.sqrt(B.diagonal())
    root = _times_inverse_root(xp.eye(len(B)), B / sizes / sizes[:, None])
    if root is None:
        return None
    R, w = root / sizes, tensors.weights
    j, k = (xp.asarray(index) for index in features.pairs.T)
    # S -> R S R' on orthonormal coordinates of S
    both = R[j][:, j] * R[k][:, k]
    both += R[j][:, k] * R[k][:, j]
    both *= w[:, None]
    both *= w / 2
    pairs = two_sided(both, (w[:, None] * A * w)[None], both)[0]
    del A
    left = _times_inverse_root(xp.ascontiguousarray(both.T), pairs)
    if left is None:
        return None
    left *= w[:, None]
    scale = xp.ones((len(left), len(R)))
    maps = Whitening(left, xp.ascontiguousarray(R.T), scale, base.condition)
    return Rotations(maps, tensors, Kinds(1.0, 1.0, np.eye(2)))


def aware_of_rotations(
    operator: NormalOperator, factors: KroneckerFactors, alpha: float, whitening: Whitening
) -> Rotations | None:
    """Coordinates in which K is one on each kind of tensor, in the mean; None where none are used.

    They take one pass, of four rows.
    """
    features, weight = operator.features, operator.total_weight
    work = 4.0 * operator.n_samples * features.count
    # What rotations do to tokens they do not do to states, whose memory is of any meaning
    usable = features.everything and features.sums_cancel and whitening.full
    usable = usable and features.d >= _FEWEST
    if not usable or work < WORTHWHILE or whitening.condition > _LARGEST_CONDITION:
        return None
    if alpha > 0 and alpha * whitening.norm**2 > _SMALL_RIDGE:
        return None
    alike = _alike(factors, weight, features, whitening)
    if alike is None:
        return None
    rng = np.random.default_rng(2)
    v, u = rng.standard_normal((1, *alike.shape)), rng.standard_normal(features.d)
    place = alike.whitening.left
    rows = alike.tensors.of_each_kind(put(v, like=place), put(u, like=place))  # (4, r, t)
    C = module_of(rows).ascontiguousarray(alike.coefficients(rows))
    product = operator.normal(C).product / weight + alpha * C
    K = to_host(rows.reshape(4, -1) @ alike.transpose(product).reshape(4, -1).T)
    kinds = Kinds(float(K[0, 0]), float(K[1, 1]), (K[2:, 2:] + K[2:, 2:].T) / 2)
    if not (np.isfinite(K).all() and kinds.least > 0):
        return None
    return replace(alike, kinds=kinds.inverse_root())
