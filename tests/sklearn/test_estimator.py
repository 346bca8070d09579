"""The scikit-learn regressor: its own promises, and scikit-learn's tools."""

import pickle

import numpy as np
import pytest
from conftest import EPS, import_error_without, plant, run_python

import linattn_fast as la

pytest.importorskip("sklearn", reason="scikit-learn is an optional extra")

from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import r2_score
from sklearn.model_selection import (
    GridSearchCV,
    KFold,
    cross_val_predict,
    cross_val_score,
    learning_curve,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

Regressor = la.LinearAttentionRegressor


def rows(y):
    return np.concatenate([np.asarray(each) for each in y])


def in_form(arrays, form):
    """Arrays (n_i, m) as a dense array, a list, or an object array."""
    if form == "dense":
        return np.stack(arrays)
    if form == "list":
        return list(arrays)
    objects = np.empty(len(arrays), dtype=object)
    for i, array in enumerate(arrays):
        objects[i] = array
    return objects


@pytest.fixture(params=["dense", "list", "objects"])
def form(request):
    return request.param


@pytest.fixture
def data(rng, form, positions):
    """Tokens and noisy targets with two outputs, in each form and for each positions."""
    truth = plant(rng, 3, 1, 2)
    lengths = np.full(60, 5) if form == "dense" else rng.integers(1, 7, 60)
    Z = [rng.standard_normal((n, 3)) for n in lengths]
    y = truth(Z, positions)
    if positions == "last":
        return in_form(Z, form), y + rng.standard_normal(y.shape)
    return in_form(Z, form), in_form([each + rng.standard_normal(each.shape) for each in y], form)


# ------------------------------------------------------------------------------------- learning


def test_fit_predict_and_score_are_those_of_the_package(data, positions, form, rng):
    X, y = data
    w = rng.uniform(0.5, 2, len(X))
    model = Regressor(positions=positions, alpha=0.1, heads=None)
    assert model.fit(X, y, sample_weight=w) is model
    Z = list(X) if form == "objects" else X
    t = list(y) if form == "objects" and positions != "last" else y
    fit = la.fit(Z, t, positions=positions, alpha=0.1, heads=None, sample_weight=w)
    np.testing.assert_array_equal(model.coef_, fit.coefficients)
    assert (model.heads_, model.n_features_in_) == (None, 3)
    assert model.certificate_.lambda_min == fit.certificate.lambda_min
    assert model.info_.solver == fit.info.solver
    predicted, expected = model.predict(X), fit.predict(Z)
    assert type(predicted) is (np.ndarray if positions == "last" else type(y))
    assert len(predicted) == len(X)
    for one, other in zip(predicted, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    if positions == "last":
        a, b, v = y, predicted, w
    else:
        a, b, v = rows(y), rows(predicted), np.repeat(w, [len(z) for z in X])
    score = model.score(X, y, sample_weight=w)
    assert score == r2_score(a, b, sample_weight=v)
    assert 0.5 < score < 1


def test_predictions_have_the_shape_of_the_targets(rng, positions):
    X = rng.standard_normal((30, 4, 2))
    ragged = [x[: 1 + i % 4] for i, x in enumerate(X)]
    shape = (30,) if positions == "last" else (30, 4)
    y = rng.standard_normal(shape)
    model = Regressor(positions=positions, heads=None, certify=False).fit(X, y)
    assert model.predict(X).shape == shape
    assert model.coef_.shape[0] == 1
    assert model.fit(X, y[..., None]).predict(X).shape == (*shape, 1)
    if positions != "last":
        targets = [t[: len(x)] for t, x in zip(y, ragged, strict=True)]
        model.fit(ragged, targets)
        assert [t.shape for t in model.predict(ragged)] == [t.shape for t in targets]
        assert -1 < model.score(ragged, targets) < 1


def test_a_planted_layer_is_learned_certified_and_taken_apart(rng):
    truth = plant(rng, 4, 2, 4)
    X = rng.standard_normal((300, 6, 4))
    model = Regressor().fit(X, truth(X))
    assert len(model.heads_) == 2
    assert model.heads_.distance(truth) < 1e-9
    assert model.certificate_.verdict == "identifiable"
    assert model.score(X, truth(X)) == 1
    few = Regressor(heads=1).fit(X, truth(X))
    assert len(few.heads_) == 1
    assert few.score(X, truth(X)) < 0.99


def assert_equal_to_rounding(found, expected):
    """Solved from two Grams that differ by rounding."""
    condition = max(found.info_.condition, expected.info_.condition)
    steps = found.moments_.dimension + found.moments_.rounding_steps
    relative = 10 * steps * EPS * condition
    change = np.linalg.norm(found.coef_ - expected.coef_)
    # Targets as large as the noise: b is no smaller than its terms by more than a factor of ten
    assert change <= 10 * relative * np.linalg.norm(expected.coef_)


def test_partial_fit_in_ten_pieces_equals_fit(data, positions, rng):
    X, y = data
    w = rng.uniform(0.5, 2, len(X))
    whole = Regressor(positions=positions, alpha=0.01, heads=None, certify=False).fit(X, y, w)
    pieces = clone(whole)
    for k in range(0, 60, 6):
        part = slice(k, k + 6)
        assert pieces.partial_fit(X[part], y[part], w[part]) is pieces
    assert_equal_to_rounding(pieces, whole)
    assert pieces.moments_.n_samples == (60 if positions == "last" else sum(len(x) for x in X))
    assert pieces.score(X, y) == pytest.approx(whole.score(X, y), abs=1e-12)
    np.testing.assert_allclose(rows(pieces.predict(X)), rows(whole.predict(X)), atol=1e-10)


def test_partial_fit_solves_anew_only_when_asked_after_a_batch(rng):
    X, y = rng.standard_normal((40, 3, 2)), rng.standard_normal(40)
    model = Regressor(heads=None, certify=False).partial_fit(X[:20], y[:20])
    assert model.n_features_in_ == 2
    early = model.coef_
    assert model.coef_ is early
    model.set_params(alpha=5.0)
    assert model.coef_ is early  # a parameter counts from the next batch on
    model.partial_fit(X[20:], y[20:])
    assert_equal_to_rounding(model, clone(model).fit(X, y))
    assert model.predict(X).shape == (40,)


def test_a_bad_batch_changes_nothing(rng):
    X, y = rng.standard_normal((20, 3, 2)), rng.standard_normal(20)
    model = Regressor(heads=None).partial_fit(X, y)
    before = model.coef_
    bad = X.copy()
    bad[3, 1, 0] = np.nan
    for message, call in (
        ("X: must be finite", lambda: model.partial_fit(bad, y)),
        ("X has 1 features, but", lambda: model.partial_fit(X[..., :1], y)),
        ("d_out: moments to merge must agree", lambda: model.partial_fit(X, np.ones((20, 2)))),
        ("X: must be finite", lambda: model.fit(bad, y)),
    ):
        with pytest.raises(ValueError, match=f"^{message}"):
            call()
        assert model.coef_ is before
        assert model.moments_.n_samples == 20


def test_fit_forgets_what_partial_fit_learned_and_cannot_be_continued(rng):
    X, y = rng.standard_normal((20, 3, 2)), rng.standard_normal(20)
    model = Regressor(heads=None).partial_fit(X, y).fit(X[:9], y[:9])
    np.testing.assert_array_equal(model.coef_, Regressor(heads=None).fit(X[:9], y[:9]).coef_)
    assert not hasattr(model, "moments_")
    with pytest.raises(ValueError, match="^partial_fit: the moments of what fit has learned"):
        model.partial_fit(X, y)


def test_mistakes_name_the_argument_as_it_is_called_here(rng):
    X, y = rng.standard_normal((20, 3, 2)), rng.standard_normal(20)
    model = Regressor(heads=None).fit(X, y)
    bad = X.copy()
    bad[3, 1, 0] = np.nan
    cases = [
        (ValueError, "^X: must be finite, got nan in sequence 3", lambda: model.fit(bad, y)),
        (ValueError, "^X: an array .* pass X\\[None\\]", lambda: model.fit(X[0], y)),
        (ValueError, "^X: must be finite", lambda: model.predict(bad)),
        (ValueError, "^X has 1 features, but .* 2 features", lambda: model.predict(X[..., :1])),
        (ValueError, "^y: targets are needed", lambda: model.fit(X, None)),
        (ValueError, "^y: one row of targets", lambda: model.fit(X, y[:9])),
        (ValueError, "^y: one row of targets", lambda: model.score(X, y[:9])),
        (ValueError, "^sample_weight: one weight", lambda: model.score(X, y, y[:9] ** 2)),
        (ValueError, "^sample_weight: must be", lambda: model.fit(X, y, -np.ones(20))),
        (ValueError, "^positions: must be", lambda: Regressor(positions="first").fit(X, y)),
        (ValueError, "^alpha: must be", lambda: Regressor(alpha=-1.0).partial_fit(X, y)),
        (ValueError, "^solver: 'pcg' needs", lambda: Regressor(solver="pcg").partial_fit(X, y)),
    ]
    for kind, message, call in cases:
        with pytest.raises(kind, match=message):
            call()
    with pytest.raises(NotFittedError, match="^This LinearAttentionRegressor instance"):
        Regressor().predict(X)
    assert not hasattr(Regressor(), "coef_")
    begun = Regressor(heads=None).partial_fit(X, y)
    with pytest.raises(ValueError, match="^positions: moments to merge must agree"):
        begun.set_params(positions="all").partial_fit(X, np.ones((20, 3)))


def test_estimators_pickle_and_clone(rng):
    X, y = rng.standard_normal((30, 3, 2)), rng.standard_normal((30, 2))
    features = la.Features(2, queries=[1])
    for model in (
        Regressor(alpha=0.1, features=features).fit(X, y),
        Regressor(alpha=0.1, features=features).partial_fit(X, y),
    ):
        again = pickle.loads(pickle.dumps(model))
        np.testing.assert_array_equal(again.predict(X), model.predict(X))
        assert again.certificate_.verdict == model.certificate_.verdict
        fresh = clone(model)
        assert fresh.get_params()["features"] == features
        assert fresh.get_params()["alpha"] == 0.1
        with pytest.raises(NotFittedError, match="^This LinearAttentionRegressor instance"):
            fresh.predict(X)
    model.partial_fit(X, y)  # what was unpickled and this one do not share anything
    assert (model.moments_.n_samples, again.moments_.n_samples) == (60, 30)
    assert again.partial_fit(X, y).moments_.n_samples == 60


def test_a_memory_map_may_stand_in_the_place_of_an_array(rng, tmp_path):
    X, y = rng.standard_normal((50, 3, 2)), rng.standard_normal(50)
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    model = Regressor(heads=None).fit(mapped, y)
    np.testing.assert_allclose(model.coef_, Regressor(heads=None).fit(X, y).coef_, rtol=1e-10)
    assert model.score(mapped, y) == pytest.approx(model.score(X, y), abs=1e-12)


# --------------------------------------------------------------------------- scikit-learn's tools


def test_grid_search_over_alpha_finds_what_a_loop_finds(data, positions):
    X, y = data
    model = Regressor(positions=positions, heads=None, certify=False)
    alphas = [1e-4, 1.0, 1e4]
    search = GridSearchCV(model, {"alpha": alphas}, cv=KFold(3)).fit(X, y)

    def taken(values, where):
        return values[where] if isinstance(values, np.ndarray) else [values[i] for i in where]

    expected = np.empty((3, 3))
    for k, (train, test) in enumerate(KFold(3).split(np.arange(60))):
        for i, alpha in enumerate(alphas):
            fitted = clone(model).set_params(alpha=alpha).fit(taken(X, train), taken(y, train))
            expected[i, k] = fitted.score(taken(X, test), taken(y, test))
    found = np.array([search.cv_results_[f"split{k}_test_score"] for k in range(3)]).T
    np.testing.assert_array_equal(found, expected)
    assert search.best_params_["alpha"] == alphas[int(expected.mean(axis=1).argmax())]
    np.testing.assert_array_equal(cross_val_score(search.best_estimator_, X, y, cv=3).shape, 3)
    assert len(search.predict(X)) == 60
    assert search.score(X, y) > 0.5


def test_predictions_of_held_out_data(rng):
    X, y = rng.standard_normal((40, 3, 2)), rng.standard_normal((40, 4))
    model = Regressor(heads=None, certify=False)
    assert cross_val_predict(model, X, y[:, 0], cv=4).shape == (40,)
    assert cross_val_predict(model.set_params(positions="all"), X, y[:, :3], cv=4).shape == (40, 3)
    ragged = in_form([x[: 1 + i % 3] for i, x in enumerate(X)], "objects")
    targets = in_form([np.ones((len(x), 2)) for x in ragged], "objects")
    found = cross_val_predict(model, ragged, targets, cv=4)
    assert [each.shape for each in found] == [each.shape for each in targets]


def test_weights_reach_every_fold(rng):
    X, y = rng.standard_normal((40, 3, 2)), rng.standard_normal(40)
    w = np.r_[np.ones(20), np.zeros(20)]
    model = Regressor(heads=None, certify=False, alpha=0.1)
    search = GridSearchCV(model, {"alpha": [0.1]}, cv=KFold(2, shuffle=True, random_state=0))
    search.fit(X, y, sample_weight=w)
    assert_close = np.testing.assert_allclose
    assert_close(search.best_estimator_.coef_, clone(model).fit(X[:20], y[:20]).coef_, rtol=1e-10)


def test_pipelines_pass_sequences_on(data, positions):
    X, y = data
    halved = FunctionTransformer(_halved)
    model = Regressor(positions=positions, heads=None, alpha=0.1, certify=False)
    pipeline = make_pipeline(halved, model).fit(X, y)
    expected = clone(model).fit(_halved(X), y)
    np.testing.assert_array_equal(pipeline[-1].coef_, expected.coef_)
    assert pipeline.score(X, y) == expected.score(_halved(X), y)
    search = GridSearchCV(pipeline, {"linearattentionregressor__alpha": [0.1, 1.0]}, cv=2)
    assert search.fit(X, y).score(X, y) > 0.5


def _halved(X):
    return X / 2 if isinstance(X, np.ndarray) else [x / 2 for x in X]


def test_learning_curves_go_on_with_partial_fit(rng):
    X = rng.standard_normal((200, 4, 2))
    y = plant(rng, 2, 1, 1)(X)[:, 0]
    model = Regressor(heads=None, certify=False)
    sizes = [20, 80, 150]
    _, _, scores = learning_curve(
        model, X, y, train_sizes=sizes, cv=4, exploit_incremental_learning=True
    )
    np.testing.assert_allclose(scores, 1, atol=1e-9)


# ------------------------------------------------------------------------- without scikit-learn


@pytest.mark.parametrize("value", [None, la.maps.elu1, np.tanh])
def test_maps_and_intercepts_are_those_of_the_package(rng, value):
    X, y = rng.standard_normal((80, 5, 2)), 7 + rng.standard_normal(80)
    model = Regressor(alpha=0.1, map=value, intercept=True).fit(X, y)
    fit = la.fit(X, y, alpha=0.1, map=value, intercept=True)
    assert np.array_equal(model.coef_, fit.coefficients)
    assert np.array_equal(model.predict(X), fit.predict(X))
    assert model.n_features_in_ == 2
    assert model.heads_.constant_coordinate == 2
    assert np.isclose(model.score(X, y), r2_score(y, fit.predict(X)))
    with pytest.raises(ValueError, match="X has 3 features, but LinearAttentionRegressor"):
        model.predict(rng.standard_normal((4, 5, 3)))
    parts = clone(model).partial_fit(X[:50], y[:50]).partial_fit(X[50:], y[50:])
    assert parts.n_features_in_ == 2
    assert np.allclose(parts.coef_, fit.coefficients, rtol=0, atol=1e-10)
    assert parts.moments_.d == 3
    again = pickle.loads(pickle.dumps(parts))
    assert np.array_equal(again.predict(X), parts.predict(X))


def test_maps_are_searched_over(rng):
    X = rng.standard_normal((120, 4, 2))
    y = la.Heads([[[1.0, 2.0]]], [np.eye(2)], map=la.maps.relu)(X)[:, 0]
    maps = [None, la.maps.elu1, la.maps.relu]
    search = GridSearchCV(Regressor(heads=None), {"map": maps}, cv=3).fit(X, y)
    assert search.best_params_ == {"map": la.maps.relu}
    assert search.best_score_ > 1 - 1e-9


def test_the_package_needs_no_scikit_learn():
    said = import_error_without(
        "sklearn",
        "la.LinearAttentionRegressor",
        before="from linattn_fast import *; import linattn_fast as la\n"
        "assert 'LinearAttentionRegressor' in dir(la)",
    )
    assert said.startswith("LinearAttentionRegressor: scikit-learn is needed")
    assert "pip install 'linattn_fast[sklearn]'" in said


def test_importing_the_package_does_not_import_scikit_learn():
    outcome = run_python("import sys, linattn_fast; print('sklearn' in sys.modules)")
    assert outcome.stdout.strip() == "False", outcome.stderr
    with pytest.raises(AttributeError, match="has no attribute 'LinearAttention'"):
        la.LinearAttention  # noqa: B018
