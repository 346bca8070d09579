"""Features that are nothing but cancellation are zero, whatever rounding made of them."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import targets_for

import linattn_fast as la
from linattn_fast.data.tokens import as_tokens
from linattn_fast.features.features import as_features, feature_count
from linattn_fast.moments.sums import rounding_of_feature, sizes

D, N = 4, 600


def orthonormal_keys(rng, n_sequences):
    """Sequences of D orthonormal tokens, (n_sequences, D, D): S is I up to rounding."""
    return np.linalg.qr(rng.standard_normal((n_sequences, D, D)))[0]


def least_squares(Z, y, positions="last"):
    """Coefficients of least norm in the features' own units, and their rank."""
    H = as_features(None, Z.shape[2]).of(as_tokens(Z), positions)
    C, _, rank, _ = np.linalg.lstsq(H, y.reshape(len(H), -1), rcond=1e-13)
    return C.T, rank


SOLVERS = ["auto", "eigh", "qr", "pcg", "blocks"]


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("positions", ["last", "all"])
def test_coefficients_are_those_of_least_norm(rng, solver, positions, backend):
    Z = orthonormal_keys(rng, N)
    y = targets_for(rng, Z, positions)
    expected, rank = least_squares(Z, y, positions)
    assert rank == D  # S is the identity: only the trace of S times z is there
    fit = la.fit(Z, y, solver=solver, heads=None, positions=positions, backend=backend)
    np.testing.assert_allclose(fit.coefficients, expected, atol=1e-11 * np.abs(expected).max())
    assert fit.certificate.verdict != "identifiable"
    assert fit.certificate.rank == (None if solver == "pcg" else rank)


@pytest.mark.parametrize("solver", ["auto", "eigh"])
def test_moments_alone_tell_cancellation_from_data(rng, solver):
    Z = orthonormal_keys(rng, N)
    y = targets_for(rng, Z, "last")
    expected, rank = least_squares(Z, y)
    fit = la.Moments(D, 2).update(Z, y).fit(solver=solver, heads=None)
    np.testing.assert_allclose(fit.coefficients, expected, atol=1e-11 * np.abs(expected).max())
    assert fit.certificate.rank == rank


def test_one_hot_queries_in_blocks(rng):
    """Tables of orthonormal keys, queried by one-hot tokens: blocks, in which pairs cancel."""
    keys = np.linalg.qr(rng.standard_normal((N, D, D)))[0]
    Z = np.zeros((N, D + 1, 2 * D))
    Z[:, :D, :D] = keys
    Z[np.arange(N), D, D + rng.integers(D, size=N)] = 1.0
    y = rng.standard_normal((N, 2))
    expected, rank = least_squares(Z, y)
    for solver in ("blocks", "qr", "eigh"):
        fit = la.fit(Z, y, solver=solver, heads=None)
        np.testing.assert_allclose(fit.coefficients, expected, atol=1e-11 * np.abs(expected).max())
        assert fit.certificate.rank == rank
        assert fit.certificate.covers(Z[:50]).all()


@pytest.mark.parametrize("n_sequences", [10, N])
@pytest.mark.parametrize("solver", ["qr", "eigh", "blocks"])
def test_what_is_covered(rng, solver, n_sequences):
    """Other orthonormal keys are covered; keys that are not bring features never seen.

    Keys are orthonormal to rounding alone. Of fewer samples than features, features that are
    rounding are not in the exact range of others, whatever it is to rounding.
    """
    Z = orthonormal_keys(rng, n_sequences)
    if n_sequences < feature_count(D) and solver != "blocks":
        certificate = la.certify(Z)  # counted: the range is that of the samples
    else:
        certificate = la.fit(Z, targets_for(rng, Z, "last"), solver=solver, heads=None).certificate
    others = orthonormal_keys(rng, 20)
    assert certificate.covers(others, tol=1e-12).all()
    assert (certificate.covers(others) == (n_sequences >= feature_count(D))).all()
    assert not certificate.covers(rng.standard_normal((20, D, D))).any()


def test_units_do_not_matter(rng):
    """Coordinates in other units: the same features cancel, and the same fit is found."""
    Z = orthonormal_keys(rng, N)
    y = targets_for(rng, Z, "last")
    units = 2.0 ** np.array([-20, 0, 7, 15])
    for solver in ("qr", "eigh"):
        one, other = (la.fit(x, y, solver=solver, heads=None) for x in (Z, Z * units))
        assert one.certificate.rank == other.certificate.rank == D
        np.testing.assert_allclose(other.predict(Z * units), one.predict(Z), atol=1e-9)


@pytest.mark.parametrize("share", [1e-9, 1e-5])
def test_what_is_small_but_there_is_learned(rng, share):
    """S that differs from I by a share far above rounding is data, and determines the layer."""
    keys = orthonormal_keys(rng, N) + share * rng.standard_normal((N, D, D))
    Z = np.concatenate([keys, rng.standard_normal((N, 1, D)) * np.sqrt(share)], axis=1)
    moments = la.Moments(D, 0).update(Z)
    np.testing.assert_array_equal(
        moments.feature_sizes(), moments.gram_diagonal() / moments.total_weight
    )


def test_the_level_is_a_bound_on_the_error_of_a_feature(rng):
    """S of a few digits only, which are exact in integers, against S of the same tokens scaled."""
    for n in (2, 50, 1000):
        z = rng.standard_normal((n, 2))
        exact = np.sum(np.prod(z.astype(np.longdouble), axis=1))
        computed = (z[:, 0] * z[:, 1]).cumsum()[-1]
        size = np.sqrt((z[:, 0] ** 2).sum() * (z[:, 1] ** 2).sum())
        assert abs(computed - exact) <= rounding_of_feature(n) / 10 * size


def test_a_ridge_above_rounding_leaves_scales_alone():
    diagonal, magnitudes = np.array([1e-30, 1.0]), np.ones(2)
    np.testing.assert_array_equal(sizes(diagonal, magnitudes, 8), [1.0, 1.0])
    np.testing.assert_array_equal(sizes(diagonal + 1e-6, magnitudes, 8), diagonal + 1e-6)
