"""Which s a fit is determined at, for each token that may ask.

The prediction at features h = s (x) z is determined when D h lies in the range U of the training
features (:mod:`linattn_fast.coverage`). For a given z that is linear in s: with E_z the matrix that
maps s to D (s (x) z),

    residual(s) = || (I - U U') E_z s || / || E_z s || = || R_z s || / || E_z s ||

R_z the triangle of a QR decomposition, n_pairs x n_pairs: found once for each z, and then a whole
run, or a whole space of s, costs products with small matrices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import qr, solve_triangular
from scipy.sparse import csr_matrix

from ..block_coverage import BlockCoverage
from ..result import Fit
from ..solve import SpectralFactor
from ..tokens import Floats
from .layer import Indices


@dataclass(frozen=True)
class Asked:
    """What decides about the s of sequences that end with one token."""

    triangle: Floats
    """R_z, (m, n_pairs)."""
    scale: Floats
    """Length of each column of E_z, (n_pairs,); the columns are orthogonal."""
    known: bool
    """Whether every coordinate of the token has asked in training."""

    def residuals(self, s: Floats) -> Floats:
        """Relative distance from the range of each s (N, n_pairs): (N,)."""
        if not self.known:
            return np.ones(len(s))
        size = np.linalg.norm(s * self.scale, axis=1)
        left = np.linalg.norm(s @ self.triangle.T, axis=1)
        return np.asarray(np.where(size > 0, left / np.where(size > 0, size, 1.0), 0.0))

    def largest(self, span: Floats) -> float:
        """The largest residual in the span of the rows (m, n_pairs), which are independent."""
        if not self.known:
            return 1.0
        basis = qr((span * self.scale).T, mode="r", check_finite=False)[0][: len(span)]
        # (span * scale)' = Q basis: the combinations basis^-1 are orthonormal after E_z
        left = self.triangle @ span.T
        ratio = solve_triangular(basis, left.T, trans="T", check_finite=False).T
        return float(np.linalg.norm(ratio, 2))


@dataclass(frozen=True)
class _Block:
    """Part of the training features that no other part meets."""

    columns: Indices
    """Its features among all, (p_b,)."""
    scale: Floats
    """Diagonal of D, (p_b,)."""
    vectors: Floats | None
    """U, (p_b, r); None where every direction is in the range."""

    def outside(self, z: Floats, n_pairs: int) -> Floats:
        """(I - U U') E_z, reduced to a triangle (at most n_pairs, n_pairs), z of the queries."""
        u, l = np.divmod(self.columns, len(z))
        weights = self.scale * z[l]
        rows = np.flatnonzero(weights)
        if self.vectors is None or len(rows) == 0:
            return np.zeros((0, n_pairs))
        E: Any = csr_matrix((weights[rows], (rows, u[rows])), shape=(len(u), n_pairs))
        left = -self.vectors @ (E.T @ self.vectors).T  # (p_b, n_pairs)
        left[rows, u[rows]] += weights[rows]
        return _triangle(left)


def _triangle(matrix: Floats) -> Floats:
    """R of a QR decomposition, at most as many rows as columns."""
    R = qr(matrix, mode="r", overwrite_a=True, check_finite=False)[0]
    return np.ascontiguousarray(R[: matrix.shape[1]])


class Determined:
    """The range of a fit's training features, token by token."""

    def __init__(self, fit: Fit) -> None:
        certificate = fit.certificate
        if certificate is None or certificate.source is None:
            raise ValueError(
                "fit: one with a certificate that still has its moments or data is needed; it was "
                "made with certify=False, or loaded from a file"
            )
        self.features = fit.features
        coverage = certificate.source.coverage
        if isinstance(coverage, BlockCoverage):
            parts = [(each.columns, each.coverage) for each in coverage.blocks]
        else:
            parts = [(np.arange(self.features.count), coverage.get())]
        self._blocks = []
        self.rank = 0
        """Of the training features."""
        for columns, part in parts:
            factor = part.factor
            vectors = factor.vectors if isinstance(factor, SpectralFactor) else None
            self._blocks.append(_Block(columns, factor.scale, vectors))
            self.rank += int(factor.rank)
        self.tolerance = float(coverage.tolerance)
        """Residuals up to this count as zero."""
        self._asked: dict[bytes, Asked] = {}

    def asked(self, z: Floats) -> Asked:
        """What decides where a token (d,) asks."""
        name = z.tobytes()
        if name not in self._asked:
            self._asked[name] = self._make(z)
        return self._asked[name]

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
        triangle = np.concatenate(left) if left else np.zeros((0, q))
        if len(left) > 1:
            triangle = _triangle(triangle)
        return Asked(triangle, np.linalg.norm(weights, axis=1), known)
