"""Ridges far below rounding, features of any size: the best answer, or one that says it is not."""

import numpy as np
import pytest
from conftest import EPS, plant, relative
from hypothesis import given, settings
from hypothesis import strategies as st

import linattn_fast as la
from linattn_fast.linalg.least_norm import ridge_among, shortest_lift


def best(H, y, alpha):
    """V diag(s / (s^2 + alpha)) U'y of the features in one unit: null directions see no ridge."""
    U, s, Vt = np.linalg.svd(H / np.sqrt(len(H)), full_matrices=False)
    kept = s > 1e-10 * s[0]
    U, s, Vt = U[:, kept], s[kept], Vt[kept]
    filtered = (s / (s**2 + alpha))[:, None] * (U.T @ y / np.sqrt(len(H)))
    return (Vt.T @ filtered).T


@pytest.mark.parametrize("alpha", [1e-300, 1e-18, 1e-15, 1e-14, 1e-12, 1e-9, 1e-6])
@pytest.mark.parametrize("kind", ["signs", "repeated", "one-hot"])
def test_a_tiny_ridge_on_singular_data_is_near_the_least_norm(rng, alpha, kind):
    Z = rng.choice([-1.0, 1.0], (90, 4, 3))
    if kind == "repeated":
        Z = rng.standard_normal((8, 4, 3))[rng.integers(0, 8, 90)]
    if kind == "one-hot":
        Z = np.eye(3)[rng.integers(0, 3, (90, 4))]
    y = rng.standard_normal((90, 2))
    expected = best(la.cubic_features(Z), y, alpha)
    given = {"alpha": alpha, "heads": None, "certify": False}
    for solver in ("auto", "qr", "blocks", "dual"):
        fit = la.fit(Z, y, solver=solver, **given)
        assert relative(fit.coefficients, expected) < 1e-10, solver
    moments = la.Moments(3, 2).update(Z, y)
    for solver in ("auto", "eigh"):
        assert relative(moments.fit(solver=solver, **given).coefficients, expected) < 1e-7
    path = la.ridge_path(moments, [alpha]).coefficients[0]
    # From the Gram alone: beyond 1e-12 the ridge is what rounding of a null direction is divided by
    assert relative(path, expected) < max(1e-7, 1e4 * EPS / alpha if alpha > 1e-12 else 0.0)


@settings(max_examples=60)
@given(
    scales=st.lists(st.floats(-18, 18), min_size=3, max_size=3),
    kind=st.sampled_from(["signs", "one-hot", "repeated", "normal"]),
    ridge=st.sampled_from([0.0, 1e-30, 1e-10, 1.0]),
    seed=st.integers(0, 999),
)
def test_singular_features_of_any_size_are_fitted_to_the_optimum(scales, kind, ridge, seed):
    rng = np.random.default_rng(seed)
    Z = rng.standard_normal((40, 4, 3))
    if kind == "signs":
        Z = rng.choice([-1.0, 1.0], (40, 4, 3))
    if kind == "one-hot":
        Z = np.eye(3)[rng.integers(0, 3, (40, 4))]
    if kind == "repeated":
        Z = Z[rng.integers(0, 9, 40)]
    Z = Z * 10.0 ** np.array(scales)
    y = rng.standard_normal((40, 1))
    H = la.cubic_features(Z)
    alpha = ridge * float(np.median((H**2).mean(axis=0)))
    sizes = np.sqrt((H**2).mean(axis=0) + alpha)
    sizes[sizes == 0] = 1.0
    augmented = np.concatenate([H / np.sqrt(40) / sizes, np.diag(np.sqrt(alpha) / sizes)])
    targets = np.concatenate([y / np.sqrt(40), np.zeros((len(sizes), 1))])

    def objective(x):
        return float(np.linalg.norm(augmented @ x - targets))

    least = objective(np.linalg.lstsq(augmented, targets, rcond=1e-12)[0])
    for solver in ("auto", "qr", "dual", "blocks", "eigh"):
        fit = la.fit(Z, y, alpha=alpha, solver=solver, heads=None, certify=False)
        assert objective(fit.coefficients.T * sizes[:, None]) <= least * (1 + 1e-9) + 1e-9, solver


@given(r=st.integers(1, 5), spread=st.floats(0, 60), seed=st.integers(0, 999))
def test_the_lift_keeps_outputs_and_is_orthogonal_to_the_null_space(r, spread, seed):
    rng = np.random.default_rng(seed)
    V, null = np.split(np.linalg.qr(rng.standard_normal((6, 6)))[0], [r], axis=1)
    D = 2.0 ** np.rint(rng.uniform(-spread, spread, 6))
    lift = shortest_lift(V, D, 1e-13)
    K = lift(np.eye(r))
    np.testing.assert_allclose(V.T @ (K / D[:, None]), np.eye(r), atol=1e-9)
    # x = K a is the shortest: orthogonal to D N, the directions without output
    shadow = (D[:, None] * null).T @ K
    lengths = np.linalg.norm(D[:, None] * null, axis=0)[:, None] * np.linalg.norm(K, axis=0)
    assert (np.abs(shadow) <= 1e-9 * lengths).all()


@pytest.mark.parametrize("alpha", [1e-250, 1e-8, 1.0, 1e8, 1e250])
def test_a_ridge_loses_neither_itself_nor_the_data(rng, alpha):
    s, V = np.array([1e-3, 1.0, 2.0]), np.linalg.qr(rng.standard_normal((5, 3)))[0]
    c = rng.standard_normal((3, 2))
    x, triangle = ridge_among(s, shortest_lift(V, np.ones(5), 1e-13), alpha, c)
    expected = V @ ((s / (s**2 + alpha))[:, None] * c)
    np.testing.assert_allclose(x, expected, rtol=1e-10, atol=1e-13 * np.abs(expected).max())
    again = triangle.solve(V @ (s[:, None] * c))
    np.testing.assert_allclose(again, expected, rtol=1e-8, atol=1e-8 * np.abs(expected).max())


@pytest.mark.parametrize("mean", [0.0, 3.0, 30.0, 300.0])
@pytest.mark.parametrize("precision", ["float64", "mixed"])
def test_coefficients_are_within_the_stated_error_or_it_is_unknown(rng, mean, precision):
    truth = plant(rng, 3, 2, 2)
    Z = mean + rng.standard_normal((80, 6, 3))
    y, C = truth(Z), truth.coefficients()
    moments = la.Moments(3, 2, precision=precision).update(Z, y)
    fits = [la.fit(Z, y, solver=s, precision=precision) for s in ("auto", "qr", "dual", "eigh")]
    for fit in [*fits, moments.fit(), moments.fit(solver="eigh")]:
        stated = fit.info.coefficient_error
        # Targets are rounded too: by eps of their size, or some 1e-14 of ill-conditioned data
        assert stated is None or relative(fit.coefficients, C) <= stated, fit.info
        if stated is None:
            assert "uncertain" in fit.info.reason or "lost" in fit.info.reason, fit.info
    assert "relative error of the coefficients" in str(fits[0].info)


def test_a_gram_says_what_it_may_have_lost(rng):
    Z = 1e4 + rng.standard_normal((80, 6, 3))
    fit = la.Moments(3, 1).update(Z, rng.standard_normal(80)).fit(heads=None)
    assert fit.info.coefficient_error is None
    assert "may be lost" in fit.info.reason


def test_coefficients_beyond_float64_are_an_error_that_says_so(rng):
    Z = 1e-50 * rng.standard_normal((40, 4, 2))
    for solver in ("auto", "qr", "dual", "blocks", "eigh"):
        with pytest.raises(ValueError, match=r"^(y|Z): .*(overflow|underflow)"):
            la.fit(Z, 1e170 * rng.standard_normal(40), solver=solver, heads=None)


def test_refinement_does_not_spoil_fewer_samples_than_features(rng):
    Z, y = rng.choice([-1.0, 1.0], (12, 3, 3)), rng.standard_normal((12, 1))
    for alpha in (0.0, 1e-16, 1e-13):
        expected = best(la.cubic_features(Z), y, alpha)
        for solver in ("eigh", "qr", "dual", "auto"):
            fit = la.fit(Z, y, alpha=alpha, solver=solver, heads=None, certify=False)
            assert relative(fit.coefficients, expected) < 1e-10
