"""Tokens whose queries never occur together, and what numpy makes of them."""

from dataclasses import dataclass

import numpy as np
import pytest
from conftest import rows_of

from linattn_fast.data.tokens import as_tokens

from . import loops

POSITIONS = ["last", "causal", "all"]


@dataclass
class Expected:
    """Everything the slow, obvious way, in numpy, from the features themselves."""

    h: np.ndarray
    """Features of the training samples, (N, p)."""
    w: np.ndarray
    """Weights over W."""

    @classmethod
    def of(cls, sequences, positions, features, weights=None):
        h = features.of(as_tokens(sequences), positions)
        w = np.ones(len(sequences)) if weights is None else np.asarray(weights)
        w = loops.per_sample(w, sequences, positions)
        return cls(h, w / w.sum())

    @property
    def second_moment(self):
        return (self.w[:, None] * self.h).T @ self.h

    def coefficients(self, y, alpha):
        root = np.sqrt(self.w)[:, None]
        if alpha == 0:
            return np.linalg.lstsq(root * self.h, root * y, rcond=1e-11)[0].T
        matrix = self.second_moment + alpha * np.eye(self.h.shape[1])
        return np.linalg.solve(matrix, (self.w[:, None] * self.h).T @ y).T

    @property
    def rank(self):
        return np.linalg.matrix_rank(np.sqrt(self.w)[:, None] * self.h, rtol=1e-11)

    def leverages(self, h):
        """h' Lambda^+ h, infinite outside the range."""
        _, sigma, Vt = np.linalg.svd(np.sqrt(self.w)[:, None] * self.h, full_matrices=False)
        keep = sigma > 1e-11 * sigma[0]
        inside = h @ Vt[keep].T
        left = np.linalg.norm(h - inside @ Vt[keep], axis=1)
        covered = left <= 1e-7 * np.linalg.norm(h, axis=1)
        return np.where(covered, ((inside / sigma[keep]) ** 2).sum(axis=1), np.inf)


def one_hot(rng, shape, d):
    return np.eye(d)[rng.integers(0, d, shape)]


def two_groups(rng, shape, d):
    """Integers whose odd or even coordinates are zero, token by token."""
    Z = rng.integers(-2, 3, (*shape, d)).astype(float)
    odd = rng.random(shape) < 0.5
    Z[..., 1::2] *= odd[..., None]
    Z[..., ::2] *= ~odd[..., None]
    return Z


def gaussian(rng, shape, d):
    """One group."""
    return rng.standard_normal((*shape, d))


def agrees(fit, expected, y, positions, alpha, asked):
    """Coefficients, error, rank, verdict, coverage and leverage are those of numpy."""
    C = expected.coefficients(rows_of(y, positions), alpha)
    scale = np.abs(C).max() + 1e-300
    np.testing.assert_allclose(fit.coefficients, C, rtol=0, atol=1e-8 * scale)
    rest = rows_of(y, positions) - expected.h @ C.T
    error = float(expected.w @ (rest**2).sum(axis=1))
    assert fit.info.mean_squared_error == pytest.approx(error, rel=1e-8, abs=1e-12)
    target = float(expected.w @ (rows_of(y, positions) ** 2).sum(axis=1))
    assert fit.info.mean_squared_target == pytest.approx(target)
    certificate = fit.certificate
    p = expected.h.shape[1]
    assert certificate.rank == expected.rank
    assert certificate.dimension == p
    if expected.rank < p:
        assert certificate.verdict == "not identifiable"
        assert certificate.lambda_min == certificate.lower_bound == 0.0
    else:
        smallest = np.linalg.eigvalsh(expected.second_moment)[0]
        assert certificate.lambda_min == pytest.approx(smallest, rel=1e-6)
        assert certificate.verdict == "identifiable"
        assert 0 < certificate.lower_bound <= smallest * (1 + 1e-9)
    leverages = expected.leverages(fit.features.of(as_tokens(asked), positions))
    ours = rows_of(certificate.leverage(asked, positions=positions), positions)
    np.testing.assert_array_equal(np.isinf(ours), np.isinf(leverages))
    finite = np.isfinite(leverages)
    np.testing.assert_allclose(ours[finite], leverages[finite], rtol=1e-6, atol=1e-12)
    covered = rows_of(certificate.covers(asked, positions=positions), positions)
    np.testing.assert_array_equal(covered, finite)
