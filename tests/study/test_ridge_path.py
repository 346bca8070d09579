"""Ridge paths and the choice of alpha, held to explicit features and to a fit for each alpha."""

import importlib

import numpy as np
import pytest
from conftest import EPS, plant, ragged, rows_of, targets_for
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import loops
from oracles.exact import Exact, relative_error

import linattn_fast as la


def explicit(Z, y, w, positions):
    """Features (samples, p), targets (samples, d_out) and weights (samples,) by loops."""
    H = loops.all_features(Z, positions)
    return H, rows_of(y, positions), loops.per_sample(w, Z, positions)


def brute_force(H, y, w, alpha):
    """C (d_out, p), training error and degrees of freedom, from a square-root of the problem.

    Ridge rows below the features: the condition number is not squared.
    """
    W, p = w.sum(), H.shape[1]
    root = np.sqrt(w / W)[:, None]
    stacked = np.vstack([root * H, np.sqrt(alpha) * np.eye(p)])
    C = np.linalg.lstsq(stacked, np.vstack([root * y, np.zeros((p, y.shape[1]))]), rcond=None)[0]
    error = float((w @ (H @ C - y) ** 2).sum() / W)
    singular = np.linalg.svd(root * H, compute_uv=False) ** 2
    return C.T, error, float((singular / (singular + alpha)).sum())


def rounding(moments, alpha):
    """Rounding of the Gram, relative to the smallest eigenvalue of Lambda + alpha I."""
    values = np.linalg.eigvalsh(moments.second_moment())
    level = 10 * (moments.dimension + moments.rounding_steps) * EPS
    return level * (values[-1] + alpha) / (max(values[0], 0.0) + alpha)


def tolerance(moments, alpha, C):
    """Error of C: that of the Gram, and that of b, a sum of terms |h| |y|, through the inverse.

    |dC| <= (level |Lambda + alpha I| |C| + level mean |h| |y|) / lambda_min(Lambda + alpha I), with
    mean |h| |y| <= sqrt(trace Lambda * mean y^2). Orthogonal least squares with a residual of up to
    sqrt(mean y^2) errs by no more.
    """
    largest = np.linalg.eigvalsh(moments.second_moment())[-1] + alpha
    trace = moments.gram_diagonal().sum() / moments.total_weight + alpha
    target = moments.sums.energy.sum() / moments.total_weight
    return rounding(moments, alpha) * (np.linalg.norm(C) + np.sqrt(trace * target) / largest)


@settings(max_examples=40)
@given(
    d=st.integers(1, 3),
    d_out=st.integers(1, 3),
    N=st.integers(1, 40),
    positions=st.sampled_from(["last", "all", "causal"]),
    seed=st.integers(0, 999),
)
def test_every_alpha_has_the_solution_of_explicit_least_squares(d, d_out, N, positions, seed):
    rng = np.random.default_rng(seed)
    Z = ragged(rng, N, d)
    y, w = targets_for(rng, Z, positions, d_out), rng.uniform(0.1, 3, N)
    moments = la.Moments(d, d_out, positions=positions).update(Z, y, sample_weight=w)
    alphas = [3.0, 1e-4, 1.0, 1e-2, 1e4]
    path = la.ridge_path(moments, alphas)
    assert path.factorisations == 1
    samples = explicit(Z, y, w, positions)
    target = moments.sums.energy.sum() / moments.total_weight
    for i, alpha in enumerate(alphas):
        C, error, freedom = brute_force(*samples, alpha)
        relative = rounding(moments, alpha)
        assert np.linalg.norm(path.coefficients[i] - C) <= tolerance(moments, alpha, C)
        assert abs(path.mean_squared_errors[i] - error) <= relative * target
        assert abs(path.degrees_of_freedom[i] - freedom) <= relative * moments.dimension


def test_one_factorisation_gives_what_a_fit_for_each_alpha_gives(rng, positions):
    truth = plant(rng, 4, 2, 3)
    Z = rng.standard_normal((300, 6, 4))
    y = truth(Z, positions)
    y = y + rng.standard_normal(y.shape)
    moments = la.Moments(4, 3, positions=positions).update(Z, y)
    alphas = np.array([0.0, 1e-6, 1e-2, 1.0, 1e3])
    path = la.ridge_path(moments, alphas)
    assert path.factorisations == 1
    assert path.coefficients.shape == (5, 3, moments.dimension)
    for i, alpha in enumerate(alphas):
        fit = la.fit(Z, y, positions=positions, alpha=alpha, heads=None, certify=False)
        relative = rounding(moments, alpha)
        C = fit.coefficients
        assert np.linalg.norm(path.coefficients[i] - C) <= tolerance(moments, alpha, C)
        assert abs(path.mean_squared_errors[i] - fit.info.mean_squared_error) <= (
            relative * fit.info.mean_squared_target
        )
    assert path.degrees_of_freedom[0] == pytest.approx(moments.dimension, abs=1e-12)
    assert (np.diff(path.degrees_of_freedom) < 0).all()
    assert (np.diff(path.mean_squared_errors) > 0).all()


def test_alphas_keep_their_order_and_do_not_see_each_other(rng):
    moments = la.Moments(3, 1).update(rng.standard_normal((80, 4, 3)), rng.standard_normal(80))
    alphas = np.array([1.0, 1e-3, 50.0])
    path, back = la.ridge_path(moments, alphas), la.ridge_path(moments, alphas[::-1])
    np.testing.assert_array_equal(path.alphas, alphas)
    np.testing.assert_allclose(path.coefficients, back.coefficients[::-1], rtol=1e-12, atol=1e-15)
    alphas[:] = 0  # what was given is not kept
    assert path.alphas[2] == 50.0


@pytest.mark.parametrize("alpha", [0.0, 1e-18])
def test_what_is_singular_to_rounding_gets_the_solution_of_a_fit(rng, alpha):
    """Fewer samples than features, an unused coordinate: least norm, as from Moments.fit."""
    Z = rng.standard_normal((12, 4, 4))
    Z[:, :, 3] = 0
    y = rng.standard_normal((12, 2))
    moments = la.Moments(4, 2).update(Z, y)
    path = la.ridge_path(moments, [alpha, 1.0])
    assert path.factorisations == 2
    fit = moments.fit(alpha=alpha, heads=None, certify=False)
    np.testing.assert_array_equal(path.coefficients[0], fit.coefficients)
    if alpha > 0:
        return
    H = loops.all_features(list(Z), "last")
    expected = np.linalg.lstsq(H, y, rcond=1e-10)[0].T
    s = np.linalg.svd(H, compute_uv=False)[:12]
    size = np.linalg.norm(expected)
    relative = 1000 * moments.dimension * EPS * (s[0] / s[-1]) ** 2
    assert np.linalg.norm(path.coefficients[0] - expected) <= relative * size
    assert path.degrees_of_freedom[0] == pytest.approx(12, abs=relative * 12)
    assert path.mean_squared_errors[0] <= relative * np.mean((y**2).sum(axis=1))


def test_units_of_tokens_are_resolved_where_no_ridge_is_asked_for(rng):
    """Features from 1e-9 to 1e9: Lambda itself is singular to rounding, equilibrated it is not."""
    units = np.array([1e-3, 1.0, 1e3])
    truth = plant(rng, 3, 1, 2)
    Z = rng.standard_normal((200, 5, 3))
    moments = la.Moments(3, 2).update(Z * units, truth(Z))
    path = la.ridge_path(moments, [0.0])
    assert path.factorisations == 2
    plain = la.Moments(3, 2).update(Z, truth(Z))
    j, k = np.triu_indices(3)
    scale = (units[j] * units[k])[:, None] * units
    found = path.coefficients[0] * scale.ravel()
    C = truth.coefficients()
    # Equilibrated to a factor of 2, not exactly: at most a factor of 4 in the condition
    assert np.linalg.norm(found - C) <= 4 * tolerance(plain, 0.0, C)
    assert path.degrees_of_freedom[0] == plain.dimension


@pytest.mark.parametrize("alpha", [1e-10, 1e-5, 1.0, 1e4])
def test_units_of_tokens_are_resolved_beside_a_ridge_that_is_small_for_some(rng, alpha):
    """Eigenvalues from 1e-11 to 1e13: a ridge takes away the features that are small beside it."""
    Z = rng.standard_normal((60, 5, 2)) * [1e-2, 1e2]
    y = rng.standard_normal((60, 1))
    exact = Exact.of(Z, targets=y)
    path = la.ridge_path(la.Moments(2, 1).update(Z, y), [alpha])
    freedom = float(exact.degrees_of_freedom(alpha))
    assert 0.01 < path.degrees_of_freedom[0] < 5.99
    assert path.degrees_of_freedom[0] == pytest.approx(freedom, abs=1e-9)
    assert relative_error(path.coefficients[0], exact.coefficients(alpha)) < 1e-9


def test_queries_that_never_meet_are_decomposed_block_by_block(rng):
    d, N = 4, 300
    Z = rng.standard_normal((N, 5, d))
    Z[:, -1] = np.eye(d)[rng.integers(0, d, N)]
    y = rng.standard_normal((N, 2))
    moments = la.Moments(d, 2).update(Z, y)
    path = la.ridge_path(moments, [0.1, 10.0])
    samples = explicit(list(Z), y, np.ones(N), "last")
    for i, alpha in enumerate([0.1, 10.0]):
        C, error, freedom = brute_force(*samples, alpha)
        assert np.linalg.norm(path.coefficients[i] - C) <= tolerance(moments, alpha, C)
        assert path.mean_squared_errors[i] == pytest.approx(error, rel=1e-10)
        assert path.degrees_of_freedom[i] == pytest.approx(freedom, rel=1e-10)


def test_chosen_features_and_zero_data(rng):
    features = la.Features(3, pairs=[(0, 2), (2, 2)], queries=[0, 1])
    Z, y = rng.standard_normal((50, 4, 3)), rng.standard_normal(50)
    moments = la.Moments(3, 1, features=features).update(Z, y)
    path = la.ridge_path(moments, [0.5])
    expected = moments.fit(alpha=0.5, heads=None, certify=False).coefficients
    np.testing.assert_allclose(path.coefficients[0], expected, rtol=1e-11, atol=1e-14)

    nothing = la.Moments(2, 1).update(np.zeros((5, 3, 2)), np.arange(5.0))
    path = la.ridge_path(nothing, [0.0, 1.0])
    assert not path.coefficients.any()
    np.testing.assert_array_equal(path.degrees_of_freedom, 0)
    np.testing.assert_array_equal(path.mean_squared_errors, 6.0)


# ------------------------------------------------------------------------------- choice of alpha


def test_errors_of_folds_are_those_of_layers_fitted_to_the_other_data(rng, positions):
    d, d_out, K = 3, 2, 4
    Z = ragged(rng, 80, d)
    y, w = targets_for(rng, Z, positions, d_out), rng.uniform(0.1, 3, 80)
    alphas = [1e-3, 0.3, 30.0]
    fold = rng.integers(0, K, 80)  # of unequal weights

    def part(of):
        where = np.flatnonzero(of)
        chosen = y[where] if positions == "last" else [y[i] for i in where]
        return [Z[i] for i in where], chosen, w[where]

    folds = []
    for k in range(K):
        Zk, yk, wk = part(fold == k)
        moments = la.Moments(d, d_out, positions=positions)
        folds.append(moments.update(Zk, yk, sample_weight=wk))
    choice = la.choose_alpha(folds, alphas)
    expected = np.empty((3, K))
    total = np.zeros(3)
    for k in range(K):
        H, t, v = explicit(*part(fold == k), positions)
        for i, alpha in enumerate(alphas):
            C = brute_force(*explicit(*part(fold != k), positions), alpha)[0]
            squares = v @ ((H @ C.T - t) ** 2).sum(axis=1)
            expected[i, k], total[i] = squares / v.sum(), total[i] + squares
    # Coefficients err by eps times the condition, at most 1e6 here; predictions are a few targets
    np.testing.assert_allclose(choice.errors, expected, rtol=1e-9)
    np.testing.assert_allclose(choice.mean_errors, total / choice.moments.total_weight, rtol=1e-9)
    assert choice.alpha == alphas[int(np.argmin(total))]
    assert choice.moments.n_samples == sum(each.n_samples for each in folds)


def test_the_chosen_alpha_depends_on_the_noise(rng):
    truth = plant(rng, 3, 1, 1)
    Z = rng.standard_normal((60, 5, 3))
    alphas = [1e-8, 1e-2, 1e2, 1e4]
    noise = rng.standard_normal((60, 1))

    def chosen(y):
        folds = [la.Moments(3, 1).update(Z[k::3], y[k::3]) for k in range(3)]
        return la.choose_alpha(folds, alphas).alpha

    assert chosen(truth(Z)) == 1e-8
    assert chosen(noise) >= 1e2
    assert 1e-8 < chosen(truth(Z) + 20 * noise) < 1e4


def test_of_equal_errors_the_largest_alpha_is_taken(rng):
    Z = rng.standard_normal((20, 3, 2))
    folds = [la.Moments(2, 1).update(Z[k::2], np.zeros(10)) for k in range(2)]
    assert la.choose_alpha(folds, [1.0, 7.0, 0.1]).alpha == 7.0


def test_mistakes_are_named(rng):
    Z, y = rng.standard_normal((9, 3, 2)), rng.standard_normal(9)
    moments = la.Moments(2, 1).update(Z, y)
    with pytest.raises(TypeError, match="^moments: Moments are needed, got ndarray"):
        la.ridge_path(Z, [1.0])
    with pytest.raises(ValueError, match="^moments: these have no targets"):
        la.ridge_path(la.Moments(2, 0).update(Z), [1.0])
    with pytest.raises(ValueError, match="^moments: 0 samples of total weight 0"):
        la.ridge_path(la.Moments(2, 1), [1.0])
    for bad in ([], 1.0, [[1.0]], [[1.0], [1.0, 2.0]]):
        with pytest.raises(ValueError, match="^alphas: numbers \\(m,\\) are needed"):
            la.ridge_path(moments, bad)
    for bad in ([-1.0], [np.nan], [1.0, np.inf]):
        with pytest.raises(ValueError, match="^alphas: must be finite and not negative, got \\["):
            la.ridge_path(moments, bad)
    for bad in (["a"], [True], [1j], None):
        with pytest.raises(TypeError, match="^alphas: real numbers are needed"):
            la.ridge_path(moments, bad)
    with pytest.raises(TypeError, match="^folds: a list of Moments is needed, got Moments"):
        la.choose_alpha(moments, [1.0])
    with pytest.raises(ValueError, match="^folds: at least two are needed, got 1"):
        la.choose_alpha([moments], [1.0])
    with pytest.raises(ValueError, match="^folds\\[1\\]: 0 samples"):
        la.choose_alpha([moments, la.Moments(2, 1)], [1.0])
    other = la.Moments(2, 2).update(Z, np.ones((9, 2)))
    with pytest.raises(ValueError, match="^d_out: moments to merge must agree"):
        la.choose_alpha([moments, other], [1.0])


def test_too_large_a_path_is_refused_before_any_work(rng, monkeypatch):
    moments = la.Moments(2, 1).update(rng.standard_normal((9, 3, 2)), rng.standard_normal(9))
    monkeypatch.setattr("linattn_fast.system.machine._read_memory", lambda: 1000)
    with pytest.raises(MemoryError, match="^ridge_path: d = 2 \\(6 features\\), 1 alphas, needs"):
        la.ridge_path(moments, [1.0])
    with pytest.raises(
        MemoryError, match="^leave_one_out: d = 2 \\(6 features\\), 2 alphas, needs"
    ):
        la.leave_one_out(np.ones((9, 3, 2)), np.ones(9), [1.0, 2.0])


# --------------------------------------------------------------------------------- leave one out


@pytest.mark.parametrize("weighted", [False, True])
def test_leaving_one_out_is_fitting_to_the_others(rng, positions, weighted):
    d, d_out, N = 2, 2, 25
    Z = ragged(rng, N, d, longest=4)
    y = targets_for(rng, Z, positions, d_out)
    w = rng.uniform(0.1, 3, N) if weighted else np.ones(N)
    alphas = [0.3, 1e-3, 30.0]
    choice = la.leave_one_out(
        Z, y, alphas, positions=positions, sample_weight=w if weighted else None
    )
    total = np.zeros(3)
    for k in range(N):
        H, t, v = explicit(Z[k : k + 1], y[k : k + 1], w[k : k + 1], positions)
        others = [i for i in range(N) if i != k]
        rest = explicit([Z[i] for i in others], [y[i] for i in others], w[others], positions)
        for i, alpha in enumerate(alphas):
            C = brute_force(*rest, alpha)[0]
            squares = ((H @ C.T - t) ** 2).sum(axis=1)
            # Errors of 1e-16 grow by the condition, at most 1e6 here, and by 1 / (1 - leverage)
            assert choice.errors[i, k] == pytest.approx(squares.mean(), rel=1e-8)
            total[i] += v @ squares
    np.testing.assert_allclose(choice.mean_errors, total / choice.moments.total_weight, rtol=1e-8)
    assert choice.alpha == alphas[int(np.argmin(total))]


def test_what_the_others_do_not_determine_is_infinite(rng):
    """One sequence alone has the second coordinate; without a ridge the rest says nothing of it."""
    Z = rng.standard_normal((20, 3, 2))
    Z[:-1, :, 1] = 0
    y = rng.standard_normal(20)
    choice = la.leave_one_out(Z, y, [0.0, 1.0])
    assert np.isinf(choice.mean_errors[0])
    assert np.isfinite(choice.errors[1]).all()
    assert choice.alpha == 1.0
    with pytest.raises(ValueError, match="^alphas: with none of them do the other sequences"):
        la.leave_one_out(Z, y, [0.0])
    one = np.zeros(20)
    one[3] = 1
    with pytest.raises(ValueError, match="^sample_weight: at least two sequences"):
        la.leave_one_out(Z, y, [1.0], sample_weight=one)
    with pytest.raises(ValueError, match="^Z: the data is read twice"):
        la.leave_one_out(iter([(Z, y)]), None, [1.0])


def test_leaving_one_out_in_chunks_and_from_a_stream(rng, monkeypatch):
    Z, y = rng.standard_normal((40, 3, 2)), rng.standard_normal((40, 3))
    expected = la.leave_one_out(Z, y, [0.1], positions="all")
    module = importlib.import_module(
        "linattn_fast.study.leave_one_out"
    )  # the function has its name
    monkeypatch.setattr(module, "_PIECE_BYTES", 8 * 6 * 7)
    found = la.leave_one_out(Z, y, [0.1], positions="all")
    np.testing.assert_allclose(found.errors, expected.errors, rtol=1e-10)
    batches = [(Z[:15], y[:15]), (Z[15:], y[15:])]
    streamed = la.leave_one_out(batches, None, [0.1], positions="all")
    np.testing.assert_allclose(streamed.errors, expected.errors, rtol=1e-10)


def test_a_sequence_that_alone_determines_something_is_infinite_without_it(positions):
    """One coordinate, and only sequence 2 is not zero: all data together determine the layer."""
    Z = np.zeros((5, 1, 1))
    Z[2] = 1.5
    y = np.arange(5.0) if positions == "last" else np.arange(5.0)[:, None]
    choice = la.leave_one_out(Z, y, [0.0, 1.0], positions=positions)
    np.testing.assert_allclose(choice.errors[0], [0, 1, np.inf, 9, 16], rtol=1e-14)
    np.testing.assert_allclose(choice.errors[1], np.arange(5.0) ** 2, rtol=1e-14)
    assert choice.alpha == 1.0
