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

from ..coverage import Coverage
from ..result import Fit
from ..solve import SpectralFactor
from ..tokens import Floats


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
        self.coverage: Coverage = certificate.source.coverage.get()
        self._asked: dict[bytes, Asked] = {}

    @property
    def rank(self) -> int:
        """Of the training features."""
        return int(self.coverage.factor.rank)

    @property
    def tolerance(self) -> float:
        """Residuals up to this count as zero."""
        return float(self.coverage.tolerance)

    def asked(self, z: Floats) -> Asked:
        """What decides where a token (d,) asks."""
        name = z.tobytes()
        if name not in self._asked:
            self._asked[name] = self._make(z)
        return self._asked[name]

    def _make(self, z: Floats) -> Asked:
        features, factor = self.features, self.coverage.factor
        q, k = features.n_pairs, features.n_queries
        known = np.count_nonzero(z) == np.count_nonzero(z[features.queries])
        weights = factor.scale.reshape(q, k) * z[features.queries]  # (q, k): column u of E_z
        scale = np.linalg.norm(weights, axis=1)
        if not isinstance(factor, SpectralFactor):  # every direction is determined
            return Asked(np.zeros((0, q)), scale, known)
        U: Any = factor.vectors.reshape(q, k, -1)
        inner = np.zeros((q, factor.rank))  # (U' E_z)'
        for l in np.flatnonzero(z[features.queries]):
            inner += weights[:, l, None] * U[:, l]
        outside = -(factor.vectors @ inner.T).reshape(q, k, q)
        outside[np.arange(q), :, np.arange(q)] += weights
        triangle = qr(outside.reshape(q * k, q), mode="r", overwrite_a=True, check_finite=False)[0]
        return Asked(np.ascontiguousarray(triangle[:q]), scale, known)
