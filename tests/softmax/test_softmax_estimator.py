"""The scikit-learn regressor of softmax layers."""

import numpy as np
import pytest
from conftest import import_error_without

import linattn_fast as la
from linattn_fast.softmax.layer.planted import planted_layer, uniform_tokens

pytest.importorskip("sklearn", reason="scikit-learn is an optional extra")

from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

Regressor = la.softmax.SoftmaxAttentionRegressor


@pytest.fixture
def data(rng):
    layer = planted_layer(rng, 2, 3, logits=2.0)
    X = uniform_tokens(rng, 150, 4, 3)
    return X, layer(X)


def test_it_learns_what_fit_learns(data):
    X, Y = data
    model = Regressor(heads=2, seed=3).fit(X, Y)
    fit = la.softmax.fit(X, Y, heads=2, seed=3)
    assert np.array_equal(model.theta_, fit.Theta)
    assert np.array_equal(model.values_, fit.W)
    assert model.report_.verdict == "learned"
    assert model.n_features_in_ == 3
    assert np.abs(model.predict(X) - Y).max() < 1e-9
    assert model.score(X, Y) > 1 - 1e-12


@pytest.mark.parametrize("form", ["dense", "list", "object"])
@pytest.mark.parametrize("flat", [True, False])
def test_predictions_have_the_form_of_the_targets(data, form, flat):
    X, Y = data
    Y = Y[..., 0] if flat else Y
    model = Regressor(heads=2, starts=1)
    if form == "dense":
        assert model.fit(X, Y).predict(X).shape == Y.shape
        return
    given = list(X), list(Y)
    if form == "object":
        given = tuple(np.empty(len(X), dtype=object) for _ in range(2))
        for i in range(len(X)):
            given[0][i], given[1][i] = X[i], Y[i]
    y = model.fit(*given).predict(given[0])
    assert type(y) is type(given[1])
    assert all(a.shape == b.shape for a, b in zip(y, Y, strict=True))


def test_searches_and_clones(data):
    X, Y = data
    search = GridSearchCV(Regressor(starts=2), {"heads": [1, 2]}, cv=3).fit(X, Y)
    assert search.best_params_ == {"heads": 2}
    assert cross_val_score(Regressor(heads=2), X, Y, cv=3).min() > 1 - 1e-9
    assert clone(Regressor(heads=3)).get_params()["heads"] == 3
    begun = la.softmax.fit(X, Y, heads=2)
    again = clone(Regressor(heads=2, start=begun)).fit(X, Y)
    assert [each.kind for each in again.report_.starts] == ["given"]
    doubled = make_pipeline(FunctionTransformer(lambda X: 2 * X), Regressor(heads=2)).fit(X, Y)
    assert doubled.score(X, Y) > 1 - 1e-12


def test_weights_are_passed_on(data):
    X, Y = data
    Y, weights = Y.copy(), np.arange(150) % 3 > 0
    Y[weights == 0] = 100.0
    model = Regressor(heads=2).fit(X, Y, sample_weight=weights.astype(float))
    assert np.abs(model.predict(X) - Y)[weights].max() < 1e-9
    assert model.score(X, Y, sample_weight=weights.astype(float)) > 1 - 1e-12
    assert model.score(X, Y) < 0.9
    with pytest.raises(ValueError, match="^sample_weight: one weight a sequence is needed"):
        Regressor().fit(X, Y, sample_weight=np.ones(3))


def test_errors_call_the_arguments_by_their_names(data):
    X, Y = data
    with pytest.raises(NotFittedError, match="^This SoftmaxAttentionRegressor instance is not"):
        Regressor().predict(X)
    with pytest.raises(ValueError, match="^y: one row of targets a token"):
        Regressor().fit(X, Y[:, 0])
    with pytest.raises(ValueError, match="^y: targets are needed; SoftmaxAttentionRegressor"):
        Regressor().fit(X, None)
    with pytest.raises(ValueError, match="^heads: must be at least 1"):
        Regressor(heads=0).fit(X, Y)
    model = Regressor(heads=1, starts=1).fit(X, Y)
    with pytest.raises(ValueError, match="X has 2 features, but SoftmaxAttentionRegressor"):
        model.predict(X[:, :, :2])


def test_the_rest_needs_no_scikit_learn():
    names = "from linattn_fast.softmax import *; from linattn_fast import softmax"
    listed = "assert 'SoftmaxAttentionRegressor' in dir(softmax)"
    said = import_error_without(
        "sklearn", "softmax.SoftmaxAttentionRegressor", before=f"{names}\n{listed}"
    )
    assert said.startswith("SoftmaxAttentionRegressor: scikit-learn is needed")
