"""Fits with an intercept: a constant coordinate whose own feature the ridge leaves out."""

import numpy as np
import pytest

import linattn_fast as la
from linattn_fast.data import sources
from linattn_fast.data.mapping import token_map

SOLVERS = ["auto", "cholesky", "eigh", "dual", "qr", "pcg", "blocks"]
POSITIONS = ["last", "all", "causal"]


def features_of(Z, positions):
    """The features of dense tokens written out, (samples, p)."""
    j, k = np.triu_indices(Z.shape[2])
    products = Z[:, :, j] * Z[:, :, k]
    if positions == "causal":
        s = np.cumsum(products, axis=1)
    else:
        s = np.repeat(products.sum(axis=1, keepdims=True), Z.shape[1], axis=1)
    z = Z
    if positions == "last":
        s, z = s[:, -1:], z[:, -1:]
    return (s[..., :, None] * z[..., None, :]).reshape(-1, len(j) * Z.shape[2])


def ridge(H, y, alpha, free, w=None):
    """Coefficients (d_out, p) by the normal equations, without a ridge on feature ``free``."""
    w = np.ones(len(H)) if w is None else w
    penalty = np.full(H.shape[1], alpha)
    if free is not None:
        penalty[free] = 0.0
    gram = (H.T * w) @ H / w.sum() + np.diag(penalty)
    return np.linalg.solve(gram, (H.T * w) @ y / w.sum()).T


@pytest.fixture(params=[False, True], ids=["at once", "in parts"])
def in_parts(request, monkeypatch):
    if request.param:
        monkeypatch.setattr(sources, "BATCH_BYTES", 1)
        monkeypatch.setattr(token_map, "PART_BYTES", 3000)


@pytest.fixture
def level(rng):
    """Tokens, and targets far from zero: Z (120, 5, 2), y (120, 2)."""
    Z = rng.standard_normal((120, 5, 2))
    return Z, 40.0 + Z[:, -1] + 0.1 * rng.standard_normal((120, 2))


def appended(Z):
    return np.concatenate([Z, np.ones((*Z.shape[:2], 1))], axis=2)


@pytest.mark.parametrize("alpha", [1e-3, 0.5, 1e4])
@pytest.mark.parametrize("solver", SOLVERS)
def test_the_ridge_leaves_out_the_constant_with_every_solver(level, in_parts, solver, alpha):
    Z, y = level
    w = np.linspace(0.5, 2.0, len(Z))
    fit = la.fit(Z, y, alpha=alpha, intercept=True, solver=solver, sample_weight=w)
    H = features_of(appended(Z), "last")
    C = ridge(H, y, alpha, free=17, w=w)
    assert np.allclose(fit.coefficients, C, rtol=0, atol=1e-10 * np.abs(C).max())
    loss = np.average(((y - H @ C.T) ** 2).sum(axis=1), weights=w)
    energy = np.average((y**2).sum(axis=1), weights=w)
    assert np.isclose(fit.info.mean_squared_error, loss, rtol=1e-8)
    assert np.isclose(fit.info.mean_squared_target, energy, rtol=1e-12)
    error = np.linalg.norm(fit.coefficients - C) / np.linalg.norm(C)
    assert fit.info.coefficient_error is None or error <= fit.info.coefficient_error + 1e-10
    assert "the constant is not penalised" in fit.info.reason
    # an ordinary ridge is another layer
    assert not np.allclose(C, ridge(H, y, alpha, free=None, w=w), rtol=1e-6)


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("form", ["dense", "list", "scalar"])
def test_every_position_and_form(rng, in_parts, positions, form):
    Z = rng.standard_normal((80, 4, 2))
    y = 9.0 + rng.standard_normal((80, 2) if positions == "last" else (80, 4, 2))
    if form == "scalar":
        y = y[..., 0]
    given = (list(Z), y if positions == "last" else list(y)) if form == "list" else (Z, y)
    fit = la.fit(*given, alpha=0.2, intercept=True, positions=positions)
    H = features_of(appended(Z), positions)
    C = ridge(H, y.reshape(len(H), -1), 0.2, free=17)
    assert np.allclose(fit.coefficients, C, rtol=0, atol=1e-11 * np.abs(C).max())
    found = fit.predict(given[0])
    assert np.shape(found) == np.shape(given[1])
    assert np.allclose(np.reshape(found, (len(H), -1)), H @ C.T, rtol=0, atol=1e-9)


def test_predictions_go_to_the_mean_of_the_targets_as_the_ridge_grows(level):
    Z, y = level
    with_it = la.fit(Z, y, alpha=1e12, intercept=True)
    assert np.allclose(with_it.predict(Z), y.mean(axis=0), rtol=0, atol=1e-6)
    assert np.allclose(la.fit(Z, y, alpha=1e12).predict(Z), 0.0, rtol=0, atol=1e-6)


@pytest.mark.parametrize("shift", [1e-9, 1.0, 1e9])
def test_targets_may_have_any_size(level, shift):
    Z, y = level
    C = ridge(features_of(appended(Z), "last"), shift * y, 0.1, free=17)
    fit = la.fit(Z, shift * y, alpha=0.1, intercept=True)
    assert np.allclose(fit.coefficients, C, rtol=0, atol=1e-11 * np.abs(C).max())
    assert fit.info.coefficient_error < 1e-6
    zero = la.fit(Z, 0 * y, alpha=0.1, intercept=True)
    assert not zero.coefficients.any()


def test_without_a_ridge_it_is_the_map(level):
    Z, y = level
    mine, plain = la.fit(Z, y, intercept=True), la.fit(Z, y, map=la.maps.with_constant)
    assert np.array_equal(mine.coefficients, plain.coefficients)
    assert mine.map == plain.map == la.maps.with_constant


def test_the_constant_of_a_map_is_not_appended_again(level):
    Z, y = level
    fit = la.fit(Z, y, alpha=0.1, map=la.maps.taylor2, intercept=True)
    assert fit.map == la.maps.taylor2
    assert fit.heads.constant_coordinate == 0
    phi = la.maps.taylor2(Z.reshape(-1, 2)).reshape(120, 5, 6)
    C = ridge(features_of(phi, "last"), y, 0.1, free=0)
    assert np.allclose(fit.coefficients, C, rtol=0, atol=1e-9 * np.abs(C).max())
    other = la.fit(Z, y, alpha=0.1, map=la.maps.relu, intercept=True)
    assert other.map == la.maps.chain(la.maps.relu, la.maps.with_constant)
    assert other.heads.constant_coordinate == 2


def test_chosen_features_must_have_it(level):
    Z, y = level
    features = la.Features(3, pairs=[(0, 1), (1, 2), (2, 2)], queries=[0, 2])
    fit = la.fit(Z, y, alpha=0.1, intercept=True, features=features)
    j, k = features.pairs.T
    phi = appended(Z)
    s, z = (phi[:, :, j] * phi[:, :, k]).sum(axis=1), phi[:, -1, features.queries]
    C = ridge((s[:, :, None] * z[:, None]).reshape(120, -1), y, 0.1, free=5)
    assert np.allclose(fit.coefficients, C, rtol=0, atol=1e-10 * np.abs(C).max())
    for missing in ({"pairs": [(0, 1)]}, {"queries": [0, 1]}):
        with pytest.raises(ValueError, match=r"^intercept: .* leave out .* the pair \(2, 2\) with"):
            la.fit(Z, y, alpha=0.1, intercept=True, features=la.Features(3, **missing))


def test_moments_leave_it_out_too(level):
    Z, y = level
    data = la.fit(Z, y, alpha=0.3, intercept=True)
    moments = la.Moments(3, 2).update(Z, y, map=la.maps.with_constant)
    fit = moments.fit(alpha=0.3, intercept=True)
    assert np.allclose(fit.coefficients, data.coefficients, rtol=0, atol=1e-10)
    assert np.isclose(fit.info.mean_squared_error, data.info.mean_squared_error, rtol=1e-9)
    assert np.isclose(fit.info.mean_squared_target, data.info.mean_squared_target, rtol=1e-12)
    assert moments.d_out == 2
    plain = moments.fit(alpha=0.3)
    assert not np.allclose(plain.coefficients, data.coefficients, rtol=1e-3)
    with pytest.raises(ValueError, match="^intercept: no coordinate .* is known to be constant"):
        la.Moments(2, 2).update(Z, y).fit(alpha=0.3, intercept=True)


def test_a_stream_that_is_read_once(level):
    Z, y = level
    batches = ((Z[i : i + 40], y[i : i + 40]) for i in (0, 40, 80))
    fit = la.fit(batches, alpha=0.3, intercept=True)
    data = la.fit(Z, y, alpha=0.3, intercept=True)
    assert np.allclose(fit.coefficients, data.coefficients, rtol=0, atol=1e-9)
    assert np.isclose(fit.info.mean_squared_error, data.info.mean_squared_error, rtol=1e-8)
    assert fit.info.mean_squared_error_bound > 0


def test_certificates_do_not_know_of_the_ridge(level):
    Z, y = level
    mine = la.fit(Z, y, alpha=0.3, intercept=True).certificate
    plain = la.certify(Z, intercept=True)
    assert (
        (mine.verdict, mine.dimension) == (plain.verdict, plain.dimension) == ("identifiable", 18)
    )
    assert 0 < mine.lower_bound <= plain.lambda_min * (1 + 1e-9)
    assert np.array_equal(mine.covers(Z[:3]), [True] * 3)
    assert np.allclose(mine.leverage(Z[:3]), plain.leverage(Z[:3]), rtol=1e-5)


def test_files_keep_the_constant_coordinate(level, tmp_path):
    Z, y = level
    fit = la.fit(Z, y, alpha=0.3, intercept=True)
    fit.save(tmp_path / "fit.npz")
    again = la.load(tmp_path / "fit.npz")
    assert again.heads.constant_coordinate == 2
    assert "coordinate 2 constant" in repr(again.heads)
    assert np.array_equal(again.predict(Z), fit.predict(Z))
    assert la.fit(Z, y).heads.constant_coordinate is None


def test_what_cannot_be_is_refused(level):
    Z, y = level
    with pytest.raises(ValueError, match="^intercept: the best layer with a number of heads"):
        la.fit(Z, y, alpha=0.1, intercept=True, heads=1)
    with pytest.raises(TypeError, match="^intercept: True or False is needed, got 1"):
        la.fit(Z, y, intercept=1)
    with pytest.raises(ValueError, match="^offsets, .* intercept: moments carry their own"):
        la.certify(la.Moments(2, 0).update(Z), intercept=True)


def lagged(series):
    """Sequences of four tokens (x_t, x_(t-1)), (N, 4, 2), and the value after each, (N,)."""
    view = np.lib.stride_tricks.sliding_window_view
    tokens = view(series, 2)[:, ::-1]
    return view(tokens, 4, axis=0).transpose(0, 2, 1)[:-1], series[5:]


def test_a_level_with_an_oscillation_needs_an_intercept(rng):
    """A series like sunspots: a cycle of changing size around a level, with noise."""
    t = np.arange(700)
    cycle = (1 + 0.3 * np.sin(t / 90)) * np.sin(2 * np.pi * t / 11)
    Z, y = lagged(5.0 + cycle + 0.05 * rng.standard_normal(len(t)))
    error = {}
    for intercept in (False, True):
        fit = la.fit(Z[:500], y[:500], alpha=1.0, intercept=intercept)
        error[intercept] = ((fit.predict(Z[500:]) - y[500:]) ** 2).mean() / y[500:].var()
    assert error[True] < 0.02
    assert error[False] > 0.2
