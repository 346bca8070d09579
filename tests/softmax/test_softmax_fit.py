"""Learning planted softmax layers: exactly, in every form, the same every time."""

import dataclasses

import numpy as np
import pytest
from conftest import needs_cpu

import linattn_fast as la
from linattn_fast.data.tokens import as_tokens
from linattn_fast.softmax.examples.groups import Examples
from linattn_fast.softmax.examples.units import Units
from linattn_fast.softmax.layer.planted import KINDS, planted_layer, uniform_tokens
from linattn_fast.softmax.search.given_start import theta_of_linear
from linattn_fast.softmax.search.many_starts import head_distance
from linattn_fast.softmax.search.token_space import NORMS, TokenSpace

softmax = la.softmax
EXACT = 1e-9


def new_error(fit, truth, rng):
    """Relative error on new sequences."""
    X = uniform_tokens(rng, 200, 5, truth.d)
    return np.linalg.norm(fit.predict(X) - truth(X)) / np.linalg.norm(truth(X))


@pytest.mark.parametrize("logits", [1.0, 4.0, 16.0])
@pytest.mark.parametrize(("m", "d", "k"), [(1, 4, 3), (2, 5, 4), (3, 4, 6)])
def test_generic_layers_are_learned(rng, m, d, k, logits):
    truth = planted_layer(rng, m, d, d_out=d - 1, logits=logits)
    X = uniform_tokens(rng, 300, k, d)
    fit = softmax.fit(X, truth(X), heads=m)
    assert new_error(fit, truth, rng) < EXACT
    assert fit.report.verdict == "learned", str(fit.report)
    # Nothing but the order of the heads is free
    assert head_distance(fit.Theta, truth.Theta) < 1e-6


@pytest.mark.parametrize("kind", KINDS[1:])
def test_structured_heads_are_learned_as_functions(rng, kind):
    truth = planted_layer(rng, 2, 5, logits=4.0, kind=kind)
    X = uniform_tokens(rng, 400, 4, 5)
    assert new_error(softmax.fit(X, truth(X), heads=2), truth, rng) < EXACT


def test_heads_that_attend_to_single_tokens_are_learned(rng):
    truth = planted_layer(rng, 2, 4, logits=256.0)
    X = uniform_tokens(rng, 800, 4, 4)
    fit = softmax.fit(X, truth(X), heads=2)
    assert new_error(fit, truth, rng) < EXACT
    assert np.linalg.norm(fit.Theta[0]) > 50  # the norm is not capped


@pytest.mark.parametrize("noise", [0.01, 0.1, 0.5])
def test_noise_costs_no_more_than_its_share(rng, noise):
    truth = planted_layer(rng, 2, 4, logits=4.0)
    X = uniform_tokens(rng, 500, 4, 4)
    Y = truth(X)
    Y = Y + noise * Y.std() * rng.standard_normal(Y.shape)
    fit = softmax.fit(X, Y, heads=2, tolerance=max(0.1, 1.2 * noise))
    known = fit.report.identifiability
    bound = 3 * noise * np.sqrt(known.unknowns / known.equations)
    assert new_error(fit, truth, rng) < bound
    assert fit.report.verdict == "learned", str(fit.report)
    assert fit.report.agreeing == 3  # and no further start is made
    assert fit.report.starts[-1].agrees


def test_ragged_data_is_fitted_as_dense_data_is(rng):
    truth = planted_layer(rng, 2, 4, d_out=3, logits=3.0)
    X = uniform_tokens(rng, 200, 4, 4)
    Y = truth(X)
    dense = softmax.fit(X, Y, heads=2)
    as_list = softmax.fit(list(X), list(Y), heads=2)
    flat = softmax.fit(X.reshape(-1, 4), Y.reshape(-1, 3), heads=2, offsets=np.arange(0, 801, 4))
    assert np.array_equal(as_list.Theta, dense.Theta)
    assert np.array_equal(flat.W, dense.W)
    lengths = rng.integers(2, 7, size=150)
    X = [uniform_tokens(rng, 1, k, 4)[0] for k in lengths]
    fit = softmax.fit(X, truth(X), heads=2)
    assert fit.report.verdict == "learned"
    assert new_error(fit, truth, rng) < EXACT


def test_units_of_tokens_and_targets_do_not_matter(rng):
    truth = planted_layer(rng, 2, 4, logits=3.0)
    X = rng.standard_normal((200, 4, 4))
    Y = truth(X)
    for size, scale in ((1.0, 1.0), (1e6, 1e-8), (1e-5, 1e9)):
        fit = softmax.fit(X * size, Y * scale, heads=2)
        assert np.abs(fit.predict(X * size) / scale - Y).max() < 1e-8, (size, scale)
        assert head_distance(fit.Theta * size**2, truth.Theta) < 1e-6


def test_tokens_of_mixed_scales_with_a_large_mean_are_learned(rng):
    mixing = rng.standard_normal((4, 4)) * np.array([1.0, 10.0, 0.1, 1.0])
    X = rng.standard_normal((400, 5, 4)) @ mixing
    X += 2 * mixing.sum(axis=0)  # the mean is twice the deviation
    unmix, planted = np.linalg.inv(mixing), planted_layer(rng, 2, 4, logits=2.0)
    truth = softmax.Layer(unmix @ planted.Theta @ unmix.T, rng.standard_normal((2, 4, 3)))
    Y = truth(X)
    fit = softmax.fit(X, Y, heads=2)
    assert np.linalg.norm(fit.predict(X) - Y) < 1e-7 * np.linalg.norm(Y)


def test_random_starts_have_the_norms_asked_for(rng):
    space = TokenSpace.of(_examples(uniform_tokens(rng, 3000, 6, 3)))
    for norm in NORMS:
        Theta = space.random(rng, 2, norm)
        assert np.allclose(np.linalg.norm(Theta, axis=(1, 2)), norm, rtol=0.1)


def _examples(X):
    return Examples.of(as_tokens(X), None)


def test_the_same_seed_gives_the_same_bits(rng):
    truth = planted_layer(rng, 2, 4, logits=4.0)
    X = uniform_tokens(rng, 200, 4, 4)
    Y = truth(X) + 0.1 * rng.standard_normal((200, 4, 4))
    given = X.copy(), Y.copy()
    results = []
    for threads in (1, 2, 3):
        la.set_num_threads(threads)
        results.append(softmax.fit(X, Y, heads=2, seed=5))
    for other in results[1:]:
        assert np.array_equal(other.Theta, results[0].Theta)
        assert np.array_equal(other.W, results[0].W)
    assert not np.array_equal(softmax.fit(X, Y, heads=2, seed=6).Theta, results[0].Theta)
    assert np.array_equal(X, given[0])
    assert np.array_equal(Y, given[1])


def test_lbfgs_finds_what_levenberg_marquardt_finds(rng):
    truth = planted_layer(rng, 2, 4, logits=3.0)
    X = uniform_tokens(rng, 300, 4, 4)
    fit = softmax.fit(X, truth(X), heads=2, solver="lbfgs")
    assert new_error(fit, truth, rng) < EXACT
    assert fit.report.verdict == "learned", str(fit.report)


def test_large_layers_are_left_to_lbfgs(monkeypatch, rng):
    class Called(Exception):
        pass

    def lbfgs(objective, Theta, **_):
        raise Called

    monkeypatch.setattr("linattn_fast.softmax.search.settings.quasi_newton", lbfgs)
    Y = rng.standard_normal((20, 2))
    with pytest.raises(Called):  # which only the function above raises
        softmax.fit(rng.standard_normal((20, 2, 45)), Y, heads=1, starts=1)  # 2,025 entries
    softmax.fit(rng.standard_normal((20, 2, 4)), Y, heads=1, starts=1)


@needs_cpu
def test_backends_agree(rng):
    truth = planted_layer(rng, 2, 4, logits=2.0)
    X = uniform_tokens(rng, 200, 4, 4)
    fits = [softmax.fit(X, truth(X), heads=2, backend=name) for name in ("cpu", "numpy")]
    assert head_distance(fits[0].Theta, fits[1].Theta) < 1e-9


def test_a_fit_starts_where_it_is_told_to(rng):
    truth = planted_layer(rng, 3, 4, logits=16.0)
    X = uniform_tokens(rng, 300, 4, 4)
    near = truth.Theta + 0.1 * rng.standard_normal((3, 4, 4))
    layer = softmax.Layer(near, truth.W)
    before = dataclasses.replace(softmax.fit(X, truth(X), heads=3, starts=1), layer=layer)
    for start in (near, layer, before):
        fit = softmax.fit(X, truth(X), heads=3, start=start)
        assert [each.kind for each in fit.report.starts] == ["given"]
        apart = np.linalg.norm(fit.Theta[:, None] - near, axis=(2, 3))
        assert np.array_equal(apart.argmin(axis=1), [0, 1, 2])


def test_linear_attention_starts_a_softmax_layer_and_is_compared_with_it(rng):
    truth = planted_layer(rng, 1, 4, logits=1.0)
    X, new = uniform_tokens(rng, 400, 5, 4), uniform_tokens(rng, 100, 5, 4)
    linear = la.fit(X, truth(X), positions="all", heads=1)
    fit = softmax.fit(X, truth(X), heads=1, start=linear)
    assert fit.report.starts[0].kind == "given"
    assert fit.report.verdict == "learned"
    compared = fit.compare(linear, new, truth(new))
    assert compared.softmax_error < EXACT
    expected = linear.predict(new, positions="all") - truth(new)
    assert np.isclose(compared.linear_error, np.linalg.norm(expected) / np.linalg.norm(truth(new)))
    assert compared.linear_error > 0.1
    assert "softmax" in str(compared)
    with pytest.raises(ValueError, match="^start: at least 2 heads are needed, got 1"):
        softmax.fit(X, truth(X), heads=2, start=linear)
    with pytest.raises(TypeError, match="^linear: a fit of la.fit is needed, got Layer"):
        fit.compare(truth, new, truth(new))
    with pytest.raises(ValueError, match="^Y: d_out = 4 targets a row are needed, got 3"):
        fit.compare(linear, new, truth(new)[..., :3])
    with pytest.raises(ValueError, match="^X: tokens must have d = 4 coordinates, got 3"):
        fit.compare(linear, new[..., :3], truth(new))


def test_a_linear_head_starts_the_softmax_head_that_it_is_the_limit_of(rng):
    """Without a mean token, a small Theta is linear attention with Q = Theta'."""
    Theta, W = rng.standard_normal((1, 3, 3)), rng.standard_normal((1, 3, 2))
    half = uniform_tokens(rng, 40, 3, 3)
    X = np.concatenate([half, -half], axis=1)
    linear = la.Heads(W.transpose(0, 2, 1), Theta.transpose(0, 2, 1))
    y, small = linear(X, positions="all").ravel(), softmax.Layer(1e-6 * Theta, W)(X).ravel()
    assert abs(y @ small) > (1 - 1e-9) * np.linalg.norm(y) * np.linalg.norm(small)
    examples = _examples(X)
    units = Units(np.ones(3), 1.0)
    found = theta_of_linear(linear, 1, TokenSpace.of(examples), units)
    assert np.allclose(found, NORMS[0] * Theta / np.linalg.norm(Theta))
    both = la.Heads(linear.V[[0, 0]] * [[[0.5]], [[1.0]]], np.stack([np.eye(3), linear.Q[0]]))
    assert np.allclose(theta_of_linear(both, 1, TokenSpace.of(examples), units), found)


def test_linear_heads_of_tokens_in_other_units_start_the_same(rng):
    truth, sizes = planted_layer(rng, 1, 4, logits=1.0), np.array([1.0, 100.0, 0.01, 3.0])
    X = uniform_tokens(rng, 300, 5, 4)
    Q, V = rng.standard_normal((1, 4, 4)), rng.standard_normal((1, 4, 4))
    plain = softmax.fit(X, truth(X), heads=1, start=la.Heads(V, Q), starts=1)
    heads = la.Heads(V, Q / np.outer(sizes, sizes))  # reads X * sizes as Q reads X
    other = softmax.fit(X * sizes, truth(X), heads=1, start=heads, starts=1)
    assert other.report.starts[0].iterations == plain.report.starts[0].iterations
    assert np.allclose(other.Theta * np.outer(sizes, sizes), plain.Theta, atol=1e-8)


def test_progress_counts_starts(rng):
    X = uniform_tokens(rng, 60, 3, 3)
    Y = rng.standard_normal((60, 3, 1))
    seen = []
    fit = softmax.fit(X, Y, heads=1, starts=3, agreeing=3, progress=lambda *a: seen.append(a))
    assert seen[: len(fit.report.starts)] == [(i + 1, 3) for i in range(len(fit.report.starts))]

    class Stop(Exception):
        pass

    def stop(done, total):
        raise Stop

    with pytest.raises(Stop):  # which only the callback above raises
        softmax.fit(X, Y, heads=1, progress=stop)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"heads": 0}, ValueError, "^heads: must be at least 1, got 0"),
        ({"heads": 1.5}, TypeError, "^heads: a whole number is needed"),
        ({"starts": 0}, ValueError, "^starts: must be at least 1"),
        ({"agreeing": 0}, ValueError, "^agreeing: must be at least 1"),
        ({"seed": -1}, ValueError, "^seed: must be at least 0"),
        ({"held_out": 0}, ValueError, "^held_out: must be positive"),
        ({"held_out": 1}, ValueError, "^held_out: must be below 1"),
        ({"held_out": 0.99}, ValueError, "^X: at least 2 sequences are needed"),
        ({"tolerance": np.nan}, ValueError, "^tolerance: must be positive"),
        ({"tolerance": "much"}, TypeError, "^tolerance: a number is needed, got str"),
        ({"solver": "adam"}, ValueError, "^solver: must be one of auto, lm, lbfgs, got 'adam'"),
        ({"backend": "gpu"}, ValueError, "^backend: must be one of"),
        ({"progress": 3}, TypeError, "^progress: True, False or a function"),
        ({"start": np.zeros((2, 3, 3))}, ValueError, "^start: a Layer, a linear fit"),
        ({"start": "here"}, TypeError, "^start: real numbers are needed"),
        ({"start": np.full((1, 3, 3), 1e101)}, ValueError, "^start: the logits overflow"),
        ({"backend": "cuda"}, ValueError, "^backend: softmax layers are learned on the host"),
        ({"X": np.full((6, 2, 3), 1e80)}, ValueError, "^X: a root mean square .* got 1e.80"),
        ({"X": np.full((6, 2, 3), 1e200)}, ValueError, "^X: a root mean square .* got 1e.200"),
        ({"Y": np.full((6, 2, 1), 1e-80)}, ValueError, "^Y: a root mean square .* got 1e-80"),
        ({"X": np.zeros((4, 3))}, ValueError, "^X: an array"),
        ({"X": np.full((6, 2, 3), np.nan)}, ValueError, "^X: must be finite, got nan"),
        ({"Y": np.zeros((6, 3, 1))}, ValueError, "^Y: one row of targets a token is needed"),
        ({"Y": np.full((6, 2, 1), np.inf)}, ValueError, "^Y: must be finite, got inf"),
    ],
)
def test_errors_name_the_argument(change, error, message):
    given = {"X": np.zeros((6, 2, 3)), "Y": np.zeros((6, 2, 1)), "heads": 1, **change}
    with pytest.raises(error, match=message):
        softmax.fit(given.pop("X"), given.pop("Y"), **given)


def test_targets_that_are_zero_are_fitted_by_zero(rng):
    X = uniform_tokens(rng, 30, 3, 2)
    fit = softmax.fit(X, np.zeros((30, 3)), heads=1)
    assert np.abs(fit.W).max() == 0
    assert fit.report.held_out.error == 0
