"""Predictions have the form of the targets, and a score is R^2 as scikit-learn has it."""

import json

import numpy as np
import pytest
from conftest import library, plant

import linattn_fast as la

SOLVERS = ["auto", "cholesky", "eigh", "qr", "dual", "pcg"]


def data(rng, positions, form, n_sequences=60, d=2):
    """Tokens and scalar targets in one of the forms, and offsets."""
    if form == "dense":
        Z = rng.standard_normal((n_sequences, 5, d))
        return (
            Z,
            rng.standard_normal(n_sequences if positions == "last" else (n_sequences, 5)),
            None,
        )
    lengths = rng.integers(1, 7, n_sequences)
    Z = [rng.standard_normal((n, d)) for n in lengths]
    y = [rng.standard_normal(n) for n in lengths]
    if positions == "last":
        y = rng.standard_normal(n_sequences)
    if form == "flat":
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        return np.concatenate(Z), y if positions == "last" else np.concatenate(y), offsets
    return Z, y, None


def with_axis(y):
    return [each[:, None] for each in y] if isinstance(y, list) else y[..., None]


def same_form(predicted, y):
    if isinstance(y, list):
        assert isinstance(predicted, list)
        assert [each.shape for each in predicted] == [each.shape for each in y]
    else:
        assert predicted.shape == y.shape


@pytest.mark.parametrize("form", ["dense", "list", "flat"])
def test_predictions_have_the_form_of_the_targets(rng, positions, form, tmp_path):
    Z, y, offsets = data(rng, positions, form)
    moments = la.Moments(2, 1, positions=positions).update(Z, y, offsets=offsets)
    for targets in (y, with_axis(y)):
        fit = la.fit(Z, targets, positions=positions, offsets=offsets)
        same_form(fit.predict(Z, offsets=offsets), targets)
        fit.save(tmp_path / "fit.npz")
        same_form(la.load(tmp_path / "fit.npz").predict(Z, offsets=offsets), targets)
        heads = fit.heads(Z, positions, offsets=offsets)
        same_form(heads, with_axis(y))  # a layer by itself has outputs, however many
    same_form(moments.fit().predict(Z, offsets=offsets), y)
    moments.save(tmp_path / "moments.npz")
    same_form(la.Moments.load(tmp_path / "moments.npz").fit().predict(Z, offsets=offsets), y)


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_mean_squared_error_is_what_the_fit_says_it_is(rng, solver):
    """With targets (N,) it would be that of N x N differences, were predictions (N, 1)."""
    Z, y = rng.standard_normal((80, 5, 2)), rng.standard_normal(80)
    fit = la.fit(Z, y, solver=solver)
    assert ((fit.predict(Z) - y) ** 2).mean() == pytest.approx(fit.info.mean_squared_error)


def test_blocks_and_exact_parts_have_the_form_of_their_targets(rng):
    Z = np.eye(6)[rng.integers(0, 6, (400, 5))]
    y = rng.standard_normal(400)
    assert la.fit(Z, y, solver="blocks", heads=None).predict(Z).shape == (400,)
    Z = rng.standard_normal((9000, 4, 2))
    exact = la.fit(Z, plant(rng, 2, 1, 1)(Z)[:, 0], certify=False, heads=None)
    assert "first" in exact.info.reason
    assert exact.predict(Z).shape == (9000,)


@pytest.mark.parametrize("solver", ["auto", "cholesky", "dual", "pcg"])
def test_a_stream_is_scalar_when_all_its_batches_are(rng, solver):
    scalar = [(rng.standard_normal((40, 4, 2)), rng.standard_normal(40)) for _ in range(3)]
    wide = [(Z, y[:, None]) for Z, y in scalar]
    Z = scalar[0][0]
    for stream, shape in [
        (scalar, (40,)),
        (wide, (40, 1)),
        ([*scalar[:2], *wide[2:]], (40, 1)),  # whichever came first
        ([*wide[:1], *scalar[1:]], (40, 1)),
    ]:
        assert la.fit(stream, solver=solver).predict(Z).shape == shape
        assert la.Moments(2, 1).update(stream).fit().predict(Z).shape == shape
        if solver in ("auto", "cholesky"):
            assert la.fit(iter(stream), solver=solver).predict(Z).shape == shape


def test_moments_merged_in_any_order_have_one_form(rng):
    Z, y = rng.standard_normal((90, 4, 2)), rng.standard_normal(90)
    a = la.Moments(2, 1).update(Z[:30], y[:30])
    b = la.Moments(2, 1).update(Z[30:60], y[30:60, None])
    c = la.Moments(2, 1).update(Z[60:], y[60:])
    none = la.Moments(2, 1)
    assert (a + c).scalar_targets
    assert (none + a).scalar_targets
    assert (a + none).scalar_targets
    for merged in (a + b + c, a + (b + c), b + a + c, c + b + a, c.merged([a, b])):
        assert not merged.scalar_targets
    assert not a.update(Z[30:60], y[30:60, None]).update(Z[60:], y[60:]).scalar_targets


def test_dask_predictions_have_the_form_of_the_targets(rng):
    da, lad = pytest.importorskip("dask.array"), pytest.importorskip("linattn_fast.dask")
    Z, y = rng.standard_normal((80, 4, 2)), rng.standard_normal(80)
    chunked = da.from_array(Z, chunks=(20, 4, 2))
    for solver in ("cholesky", "pcg"):
        assert lad.fit(chunked, y, solver=solver).predict(Z).shape == (80,)
        assert lad.fit(chunked, y[:, None], solver=solver).predict(Z).shape == (80, 1)
    assert lad.moments(chunked, y).scalar_targets


def test_files_of_older_versions_predict_an_axis_of_outputs(rng, tmp_path):
    Z, y = rng.standard_normal((80, 4, 2)), rng.standard_normal(80)
    fit = la.fit(Z, y)
    fit.save(tmp_path / "fit.npz")
    with np.load(tmp_path / "fit.npz") as archive:
        arrays = dict(archive)
    meta = json.loads(str(arrays["meta"]))
    del meta["scalar_targets"], meta["others_are_zero"]
    np.savez(tmp_path / "old.npz", **{**arrays, "meta": np.array(json.dumps(meta))})
    assert la.load(tmp_path / "old.npz").predict(Z).shape == (80, 1)


@pytest.mark.parametrize("form", ["dense", "list", "flat"])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_score_is_that_of_scikit_learn(rng, positions, form, weighted):
    r2_score = pytest.importorskip("sklearn.metrics").r2_score
    Z, y, offsets = data(rng, positions, form)
    rows = np.concatenate(y) if isinstance(y, list) else y.reshape(-1)
    lengths = [5] * 60 if form == "dense" else np.diff(offsets) if form == "flat" else map(len, Z)
    w = rng.random(60) if weighted else None
    each = w if positions == "last" or w is None else np.repeat(w, list(lengths))
    fit = la.fit(Z, y, offsets=offsets, positions=positions, alpha=0.1, sample_weight=w)
    predicted = fit.predict(Z, offsets=offsets)
    predicted = np.concatenate(predicted) if isinstance(predicted, list) else predicted.reshape(-1)
    expected = r2_score(rows, predicted, sample_weight=each)
    assert fit.score(Z, y, w, offsets=offsets) == pytest.approx(expected, rel=1e-12)
    if form == "dense":
        model = la.LinearAttentionRegressor(positions=positions, alpha=0.1)
        model.fit(Z, y, sample_weight=w)
        assert model.score(Z, y, sample_weight=w) == pytest.approx(expected, rel=1e-12)


def test_the_score_of_many_outputs_and_of_constant_ones_is_that_of_scikit_learn(rng):
    r2_score = pytest.importorskip("sklearn.metrics").r2_score
    Z = rng.standard_normal((50, 4, 2))
    y = np.stack([rng.standard_normal(50), np.zeros(50), np.full(50, 3.0)], axis=1)
    fit = la.fit(Z, y)  # zeros are predicted exactly, threes are not
    assert fit.score(Z, y) == pytest.approx(r2_score(y, fit.predict(Z)), rel=1e-12)
    assert fit.score(Z, y) == pytest.approx(
        (1 - ((fit.predict(Z) - y)[:, 0] ** 2).sum() / (50 * y[:, 0].var()) + 1 + 0) / 3
    )


def test_a_score_of_one_sample_is_not_a_number_and_says_so(rng):
    Z, y = rng.standard_normal((50, 4, 2)), rng.standard_normal(50)
    fit = la.fit(Z, y)
    with pytest.warns(la.DataWarning, match="^y: R.2 needs two samples"):
        assert np.isnan(fit.score(Z[:1], y[:1]))
    with pytest.raises(ValueError, match="^sample_weight: at least one"):
        fit.score(Z, y, np.zeros(50))
    with pytest.raises(ValueError, match="^y: one row of targets a sequence"):
        fit.score(Z, y[:7])


def test_tensors_have_the_form_of_the_targets(rng):
    torch = library("torch")
    Z, y = torch.randn(60, 4, 2), torch.randn(60)
    fit = la.fit(Z, y)
    assert fit.predict(Z, like=Z).shape == y.shape
    assert np.isfinite(fit.score(Z, y))


def test_softmax_predictions_have_the_form_of_the_targets(rng, tmp_path):
    X = rng.choice([-1.0, 1.0], size=(40, 3, 2))
    truth = la.softmax.Layer(rng.standard_normal((1, 2, 2)), rng.standard_normal((1, 2, 1)))
    y = truth(X)[..., 0]
    for targets in (y, y[..., None]):
        fit = la.softmax.fit(X, targets, heads=1, starts=2, agreeing=1)
        assert fit.predict(X).shape == targets.shape
        assert fit.predict(list(X))[0].shape == targets[0].shape
        rest = ((fit.predict(X) - targets) ** 2).mean() / targets.var()
        assert fit.score(X, targets) == pytest.approx(1 - rest)
        fit.save(tmp_path / "softmax.npz")
        assert la.softmax.load(tmp_path / "softmax.npz").predict(X).shape == targets.shape
