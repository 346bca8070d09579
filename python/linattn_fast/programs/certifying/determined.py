"""Which s a fit is determined at, for each token that may ask.

The prediction at features h = s (x) z is determined when D h lies in the range U of the training
features (:mod:`linattn_fast.certificate.coverage`). For a given z that is linear in s: with E_z the
matrix that maps s to D (s (x) z),

    residual(s) = || (I - U U') E_z s || / || E_z s || = || N' E_z s || / || E_z s ||

N an orthonormal basis of what is not in the range, found once. E_z has an entry for each pair and
each coordinate of z, so N' E_z is a sparse product; its triangle R_z of a QR decomposition, n_pairs
x n_pairs, has the same lengths, and then a whole run, or a whole space of s, costs products with
small matrices.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular
from scipy.sparse import csr_matrix

from ...arrays.types import Floats
from ...certificate.block_coverage import BlockCoverage
from ...fitting.result import Fit
from ...linalg.cholesky import CholeskyFactor
from ...linalg.host_algebra import complement_of, product, triangle_of
from ...linalg.spectral import SpectralFactor
from ..running.layer import Indices

_CACHE_BYTES = 256 << 20
"""Bytes of matrices N' E_z that are kept; past it, they are worked out again."""


@dataclass(frozen=True)
class Asked:
    """What decides about the s of sequences that end with one token."""

    outside: Floats
    """The matrix N' E_z, (m, n_pairs)."""
    scale: Floats
    """Length of each column of E_z, (n_pairs,); the columns are orthogonal."""
    known: bool
    """Whether every coordinate of the token has asked in training."""

    @cached_property
    def _triangle(self) -> Floats:
        """The triangle R_z, (at most n_pairs, n_pairs): || R_z s || = || N' E_z s ||."""
        return self.outside if len(self.outside) <= len(self.scale) else triangle_of(self.outside)

    def residuals(self, s: Floats) -> Floats:
        """Relative distance from the range of each s (N, n_pairs): (N,)."""
        if not self.known:
            return np.ones(len(s))
        size = np.linalg.norm(s * self.scale, axis=1)
        left = np.linalg.norm(product(s, self._triangle.T), axis=1)
        return np.asarray(np.where(size > 0, left / np.where(size > 0, size, 1.0), 0.0))

    def largest(self, span: Floats) -> float:
        """At least the largest residual in the span of the rows (m, n_pairs), independent ones."""
        if not self.known:
            return 1.0
        # (span * scale)' = Q basis: the combinations basis^-1 are orthonormal after E_z, so that
        # their residuals are a matrix whose largest singular value is the largest residual
        basis = triangle_of((span * self.scale).T)
        left = product(self.outside, span.T)
        ratio = solve_triangular(basis, left.T, trans="T", check_finite=False)
        return min(1.0, float(np.sqrt((ratio**2).sum())))  # of all singular values together


@dataclass(frozen=True)
class _Block:
    """Part of the training features that no other part meets."""

    columns: Indices
    """Its features among all, (p_b,)."""
    scale: Floats
    """Diagonal of D, (p_b,)."""
    null: Floats
    """The basis N, (p_b, p_b - r): orthonormal, and orthogonal to the range."""

    def outside(self, z: Floats, n_pairs: int) -> Floats:
        """The block's rows of N' E_z, (p_b - r, n_pairs); none where z asks for none of it."""
        u, l = np.divmod(self.columns, len(z))
        weights = self.scale * z[l]
        rows = np.flatnonzero(weights)
        if len(rows) == 0:
            return np.zeros((0, n_pairs))
        E: Any = csr_matrix((weights[rows], (rows, u[rows])), shape=(len(u), n_pairs))
        return np.asarray((E.T @ self.null).T)


def _null(factor: CholeskyFactor | SpectralFactor) -> Floats:
    """The basis N, (p, p - r), of what is not in the range of a factorisation."""
    if isinstance(factor, CholeskyFactor):
        return np.zeros((len(factor.scale), 0))
    return np.ascontiguousarray(complement_of(factor.vectors))


class Determined:
    """The range of a fit's training features, token by token."""

    def __init__(self, fit: Fit) -> None:
        certificate = fit.certificate
        if certificate is None or certificate.determined is None:
            raise ValueError(
                "fit: one with a certificate that still has its moments or data is needed; it was "
                "made with certify=False, or loaded from a file"
            )
        self.features = fit.features
        coverage = certificate.determined.coverage
        if isinstance(coverage, BlockCoverage):
            parts = [(each.columns, each.coverage) for each in coverage.blocks]
        else:
            parts = [(np.arange(self.features.count), coverage.get())]
        self._blocks = []
        self.rank = 0
        """Rank of the training features."""
        for columns, part in parts:
            factor = part.factor
            self._blocks.append(_Block(columns, factor.scale, _null(factor)))
            self.rank += int(factor.rank)
        self.tolerance = float(coverage.tolerance)
        """Residuals up to this count as zero."""
        self._asked: dict[bytes, Asked] = {}
        self._bytes = 0

    def asked(self, z: Floats) -> Asked:
        """What decides where a token (d,) asks."""
        name = z.tobytes()
        known = self._asked.get(name)
        if known is None:
            known = self._make(z)
            self._bytes += known.outside.nbytes
            if self._bytes <= _CACHE_BYTES:
                self._asked[name] = known
        return known

    def _make(self, z: Floats) -> Asked:
        q, k = self.features.n_pairs, self.features.n_queries
        asking = z[self.features.queries]
        known = np.count_nonzero(z) == np.count_nonzero(asking)
        units = np.ones(q * k)
        left = []
        seen = np.zeros(q * k, bool)
        for block in self._blocks:
            units[block.columns] = block.scale
            seen[block.columns] = True
            part = block.outside(asking, q)
            if len(part):
                left.append(part)
        weights = units.reshape(q, k) * asking
        unseen = np.linalg.norm(np.where(seen.reshape(q, k), 0.0, weights), axis=1)
        if unseen.any():  # features of no block are outside whatever else is there
            left.append(np.diag(unseen)[unseen > 0])
        outside = np.concatenate(left) if left else np.zeros((0, q))
        return Asked(outside, np.linalg.norm(weights, axis=1), known)
