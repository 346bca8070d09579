"""Maps and intercepts of streams, against mapped streams and features written out."""

import pickle

import numpy as np
import pytest
from test_intercept import ridge

import linattn_fast as la
from linattn_fast.data import sources
from linattn_fast.data.mapping import token_map
from linattn_fast.fitting.call import as_problem
from linattn_fast.problem.streamed import Streamed

POSITIONS = ["last", "all", "causal"]
MORE = [
    {},
    {"decay": 0.8, "scale": "mean"},
    {"lengths": np.arange(60) % 4 + 2},
    {"mask": np.arange(300).reshape(60, 5) % 7 > 0, "scale": "mean"},
]


def cubes(block):
    return np.hstack([block**3, block[:, :1]])


@pytest.fixture(params=[False, True], ids=["at once", "in parts"])
def in_parts(request, monkeypatch):
    if request.param:
        monkeypatch.setattr(sources, "BATCH_BYTES", 1)
        monkeypatch.setattr(token_map, "PART_BYTES", 2000)
    return request.param


def drawn(rng, positions, symmetric):
    """Queries, keys, values and targets of 60 sequences of 5 keys."""
    keys = rng.standard_normal((60, 5, 2))
    shape = {"last": (60, 3), "all": (60, 4, 3), "causal": (60, 5, 3)}[positions]
    y = 5 + rng.standard_normal((*shape[:-1], 2))
    return (
        rng.standard_normal(shape),
        keys,
        None if symmetric else rng.standard_normal((60, 5, 2)),
        y,
    )


def by_hand(value, array):
    return value(array.reshape(-1, array.shape[-1])).reshape(*array.shape[:-1], -1)


@pytest.mark.parametrize("more", MORE, ids=lambda more: "+".join(more) or "plain")
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("positions", POSITIONS)
def test_maps_of_streams_are_those_of_their_arrays(rng, in_parts, positions, symmetric, more):
    queries, keys, values, y = drawn(rng, positions, symmetric)
    key_map, query_map = cubes, la.maps.elu1
    plain = la.Streams(by_hand(query_map, queries), by_hand(key_map, keys), values, **more)
    streams = la.Streams(queries, keys, values, key_map=key_map, query_map=query_map, **more)
    w = rng.uniform(0.5, 2, 60)
    asked = {"positions": positions, "alpha": 0.01, "sample_weight": w}
    fit, other = la.fit(streams, y, **asked), la.fit(plain, y, **asked)
    C = other.coefficients
    assert repr(streams) == repr(plain)
    assert np.allclose(fit.coefficients, C, rtol=0, atol=1e-9 * np.abs(C).max())
    assert fit.info.n_samples == other.info.n_samples
    assert np.allclose(fit.predict(streams), other.predict(plain), rtol=0, atol=1e-8)
    assert np.isclose(fit.score(streams, y, w), other.score(plain, y, w), rtol=1e-9)
    assert np.allclose(
        fit.heads(streams, positions), fit.heads(plain, positions), rtol=0, atol=1e-9
    )
    assert np.array_equal(fit.certificate.covers(streams), fit.certificate.covers(plain))
    leverage = fit.certificate.leverage(plain)
    assert np.allclose(fit.certificate.leverage(streams), leverage, rtol=1e-6)
    certificate = la.certify(streams, positions=positions, sample_weight=w)
    assert certificate.verdict == la.certify(plain, positions=positions, sample_weight=w).verdict


@pytest.mark.parametrize("positions", POSITIONS)
def test_tokens_as_streams_have_the_features_of_mapped_tokens(rng, in_parts, positions):
    Z = rng.standard_normal((60, 5, 2))
    y = rng.standard_normal((60, 2) if positions == "last" else (60, 5, 2))
    queries = Z[:, -1] if positions == "last" else Z
    fit = la.fit(Z, y, map=cubes, positions=positions, alpha=0.1)
    streams = la.Streams(queries, Z, key_map=cubes, query_map=cubes)
    other = la.fit(streams, y, positions=positions, alpha=0.1)
    C = fit.coefficients
    assert np.allclose(other.coefficients, C, rtol=0, atol=1e-9 * np.abs(C).max())


@pytest.mark.parametrize("more", MORE[1:], ids="+".join)
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("positions", POSITIONS)
def test_maps_beside_tokens_that_are_scaled_or_masked(rng, in_parts, positions, intercept, more):
    Z = rng.standard_normal((60, 5, 2))
    Z[:, -1] *= 1 if "mask" not in more else more["mask"][:, -1:]
    y = 4 + rng.standard_normal((60, 2) if positions == "last" else (60, 5, 2))
    if "mask" in more:
        more = {**more, "mask": more["mask"] | (np.arange(5) == 0)}
    phi = by_hand(la.maps.elu1, Z)
    if intercept:
        phi = by_hand(la.maps.with_constant, phi)
    alpha = 0.0 if intercept else 0.1  # without a ridge the constant is like any other
    fit = la.fit(
        Z, y, map=la.maps.elu1, intercept=intercept, positions=positions, alpha=alpha, **more
    )
    other = la.fit(phi, y, positions=positions, alpha=alpha, **more)
    C = other.coefficients
    assert np.allclose(fit.coefficients, C, rtol=0, atol=1e-8 * np.abs(C).max())
    found, wanted = fit.predict(Z, **more), other.predict(phi, **more)
    assert np.allclose(found, wanted, rtol=0, atol=1e-8)
    assert np.allclose(fit.heads(Z, positions, **more), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("key_map", [None, la.maps.taylor2, cubes])
def test_an_intercept_of_streams_is_not_penalised(
    rng, in_parts, tmp_path, positions, symmetric, key_map
):
    queries, keys, values, y = drawn(rng, positions, symmetric)
    streams = la.Streams(queries, keys, values, scale="mean", key_map=key_map)
    fit = la.fit(streams, y, positions=positions, alpha=0.3, intercept=True)
    b = keys if key_map is None else by_hand(key_map, keys)
    b = b if key_map is la.maps.taylor2 else by_hand(la.maps.with_constant, b)
    a = None if symmetric else by_hand(la.maps.with_constant, values)
    c = by_hand(la.maps.with_constant, queries)
    plain = la.Streams(c, b, a, scale="mean")
    states = plain.states(positions)
    H = (states.entries()[:, :, None] * states.query[:, None]).reshape(len(states), -1)
    key = 0 if key_map is la.maps.taylor2 else b.shape[-1] - 1
    value = key if symmetric else 2
    assert fit.heads.constant_coordinate == (value, key, 3)
    constant = np.flatnonzero(np.abs(H - 1).max(axis=0) < 1e-12)
    assert len(constant) == 1  # with a mean, the feature is 1
    C = ridge(H, y.reshape(len(H), -1), 0.3, free=constant[0])
    assert np.allclose(fit.coefficients, C, rtol=0, atol=1e-9 * np.abs(C).max())
    predicted = fit.predict(streams)
    assert np.allclose(predicted, (H @ C.T).reshape(y.shape), rtol=0, atol=1e-9)
    assert np.allclose(fit.heads(streams, positions), predicted, rtol=0, atol=1e-7)
    fit.save(tmp_path / "fit.npz")
    again = la.load(tmp_path / "fit.npz")
    assert np.array_equal(again.predict(streams), predicted)
    assert again.heads.constant_coordinate == fit.heads.constant_coordinate
    assert again.features == fit.features
    heads = pickle.loads(pickle.dumps(fit.heads))
    assert np.array_equal(heads(streams, positions), fit.heads(streams, positions))
    assert f"coordinates {fit.heads.constant_coordinate} constant" in repr(fit.heads) or symmetric


def test_ragged_lengths_need_a_mean_for_a_true_intercept(rng):
    Z = rng.standard_normal((200, 9, 2))
    lengths = rng.integers(2, 10, 200)
    y = np.full(200, 3.0)
    mean = la.fit(Z, y, lengths=lengths, scale="mean", intercept=True, alpha=1e6)
    total = la.fit(Z, y, lengths=lengths, intercept=True, alpha=1e6)
    assert np.allclose(mean.predict(Z, lengths=lengths, scale="mean"), 3.0, rtol=0, atol=1e-9)
    assert not np.allclose(total.predict(Z, lengths=lengths), 3.0, rtol=0, atol=0.1)


def test_large_streams_are_never_mapped_as_a_whole(rng, monkeypatch):
    monkeypatch.setattr(sources, "BATCH_BYTES", 1)
    monkeypatch.setattr(token_map, "PART_BYTES", 5000)
    blocks = []

    def watched(block):
        blocks.append(len(block))
        return block

    queries, keys, values, y = drawn(rng, "causal", False)
    streams = la.Streams(queries, keys, values, key_map=watched, query_map=watched)
    problem = as_problem(streams, y, None, None, "causal", None, "auto")
    assert isinstance(problem, Streamed)
    assert problem.n_samples == 300
    fit = la.fit(streams, y, positions="causal")
    fit.predict(streams)
    fit.heads(streams, "causal")
    fit.certificate.covers(streams)
    assert max(blocks) == 5 * (5000 // 200)  # of 300 tokens, each part has 25 sequences


def test_wrong_maps_of_streams_are_named(rng, in_parts):
    queries, keys, values, y = drawn(rng, "last", False)
    for name in ("key_map", "query_map"):
        for value, error, message in (
            (3, TypeError, "a function"),
            (lambda x: x[:-1], ValueError, "one row of at least one number"),
            (lambda x: x - x.mean(axis=0), ValueError, "must not depend on the block"),
        ):
            with pytest.raises(error, match=f"^{name}: .*{message}"):
                la.Streams(queries, keys, values, **{name: value})
        keys[50, 2, 0] = queries[50, 0] = 99.0

        def spoilt(block):
            return np.where(block == 99.0, np.nan, block)

        streams = la.Streams(queries, keys, values, **{name: spoilt})
        with pytest.raises(ValueError, match=f"^{name}: it must return finite numbers"):
            la.fit(streams, y)
    with pytest.raises(ValueError, match="^map: it is for tokens, and Streams bring their own"):
        la.fit(la.Streams(queries, keys), y, map=cubes)
    with pytest.raises(ValueError, match="^map: with a scale"):
        la.Moments(3, 2).update(keys, y, map=cubes, scale="mean")


def test_masked_keys_are_not_mapped(rng):
    queries, keys, values, y = drawn(rng, "last", False)
    lengths = np.full(60, 4)
    keys[:, 4:] = np.nan
    fit = la.fit(la.Streams(queries, keys, values, lengths=lengths, key_map=la.maps.elu1), y)
    plain = la.fit(
        la.Streams(
            queries, la.maps.elu1(keys[:, :4].reshape(-1, 2)).reshape(60, 4, 2), values[:, :4]
        ),
        y,
    )
    assert np.allclose(fit.coefficients, plain.coefficients, rtol=0, atol=1e-10)


def test_moments_take_streams_with_maps(rng):
    queries, keys, values, y = drawn(rng, "last", False)
    streams = la.Streams(queries, keys, values, key_map=cubes)
    moments = la.Moments.of_states((2, 3), 3, 2).update(streams, y)
    assert np.allclose(moments.fit().coefficients, la.fit(streams, y).coefficients, atol=1e-8)
