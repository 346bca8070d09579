"""Streams in any form are taken as they are; what is wrong with them is said by name."""

import pickle
import re

import numpy as np
import pytest

import linattn_fast as la


@pytest.fixture
def arrays(rng):
    """Queries, keys and values of 6 sequences of 4 tokens."""
    return tuple(rng.standard_normal((6, 4, d)) for d in (2, 3, 5))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("keys", np.ones((6, 4)), "keys: an array (N, n, d)"),
        ("keys", np.ones((0, 4, 3)), "keys: the batch is empty"),
        ("values", np.ones((5, 4, 5)), "values: as many sequences as keys are needed, 6, got 5"),
        ("values", np.ones((6, 3, 5)), "values: one row a key is needed, and sequence 0 has 4"),
        ("queries", np.ones(6), "queries: an array (N, d_q) or (N, m, d_q)"),
        ("mask", np.ones((6, 3), bool), "mask: one a key is needed, shape (6, 4), got (6, 3)"),
        ("lengths", np.ones(5, int), "lengths: one integer a sequence is needed, shape (6,)"),
        ("lengths", np.ones(6), "lengths: one integer a sequence"),
        ("lengths", np.array([4, 4, 5, 4, 4, 4]), "lengths: 0 to the number of keys, 4, is"),
        ("lengths", np.array([4, 4, 4, -1, 4, 4]), "lengths: 0 to the number of keys, 4, is"),
        ("decay", 0.0, "decay: gates above 0 and at most 1 are needed, got 0.0 for key 0"),
        ("decay", 1.5, "decay: gates above 0 and at most 1 are needed, got 1.5"),
        ("decay", np.nan, "decay: gates above 0"),
        ("decay", np.ones(5), "decay: a number, one a sequence (6,) or one a key (6, 4)"),
        ("decay", np.ones((6, 5)), "decay: a number, one a sequence"),
        ("scale", "sum", "scale: None, 'mean' or an array is needed, got 'sum'"),
        ("scale", 2.0, "scale: None, 'mean' or an array"),
    ],
)
def test_what_does_not_fit_is_named_before_any_work(arrays, name, change, message):
    given = dict(zip(("queries", "keys", "values"), arrays, strict=True))
    given[name] = change
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        la.Streams(**given)


def test_a_wrong_gate_is_located(arrays):
    gates = np.full((6, 4), 0.5)
    gates[3, 2] = -0.5
    message = r"^decay: gates above 0 and at most 1 are needed, got -0.5 for key 2 of sequence 3"
    with pytest.raises(ValueError, match=message):
        la.Streams(*arrays, decay=gates)
    mask = np.ones((6, 4), bool)
    mask[3, 2] = False
    la.Streams(*arrays, decay=gates, mask=mask)  # which is not looked at


def test_kinds_that_do_not_fit_are_named(arrays):
    for name, value in (
        ("keys", np.ones((6, 4, 3), complex)),
        ("values", np.ones((6, 4, 3), np.float16)),
        ("queries", np.ones((6, 2), complex)),
        ("mask", np.ones((6, 4))),
        ("decay", np.ones((6, 4), complex)),
        ("attend_self", "no"),
    ):
        given = dict(zip(("queries", "keys", "values"), arrays, strict=True))
        given[name] = value
        with pytest.raises(TypeError, match=rf"^{name}: "):
            la.Streams(**given)


@pytest.mark.parametrize(
    ("positions", "queries", "message"),
    [
        ("last", (6, 4, 2), "queries: one query a sequence is needed for positions='last', (6,"),
        ("last", (5, 2), "queries: one query a sequence"),
        ("all", (5, 4, 2), "queries: as many sequences as keys are needed, 6, got 5"),
        ("all", (6, 2), "queries: an array (N, m, d_q), a list of (m_i, d_q) is needed"),
        ("causal", (6, 3, 2), "queries: one query a key is needed for positions='causal', and"),
    ],
)
def test_queries_that_positions_do_not_have(arrays, positions, queries, message):
    streams = la.Streams(np.ones(queries), *arrays[1:])
    heads = la.Heads(np.ones((1, 1, 5)), np.ones((1, 3, 2)))
    for attempt in (
        lambda: heads(streams, positions),
        lambda: la.fit(streams, np.ones(6), positions=positions),
        lambda: la.certify(streams, positions=positions),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
            attempt()


def test_a_query_without_keys(arrays):
    queries, keys, values = arrays
    mask = np.ones((6, 4), bool)
    mask[2] = False
    heads = la.Heads(np.ones((1, 1, 5)), np.ones((1, 3, 2)))
    for positions, asked in (("last", queries[:, 0]), ("all", queries)):
        y = heads(la.Streams(asked, keys, values, mask=mask), positions)
        assert not y[2].any()
        assert y[3].all()
        with pytest.raises(ValueError, match=r"^scale: 'mean' .* a query of sequence 2 sees none"):
            heads(la.Streams(asked, keys, values, mask=mask, scale="mean"), positions)
    y = heads(la.Streams(queries, keys, values, attend_self=False), "causal")
    assert not y[:, 0].any()
    with pytest.raises(ValueError, match=r"^scale: 'mean' .* a query of sequence 0 sees none"):
        heads(la.Streams(queries, keys, values, attend_self=False, scale="mean"), "causal")
    with pytest.raises(ValueError, match=r"^attend_self: .* needs positions='causal', got 'all'"):
        heads(la.Streams(queries, keys, values, attend_self=False), "all")
    with pytest.raises(ValueError, match=r"^mask: at least one query must exist"):
        heads(la.Streams(queries, keys, values, mask=np.zeros((6, 4), bool)), "causal")
    with pytest.raises(ValueError, match=r"^mask: sequence 2 has no token"):
        la.fit(keys, np.ones(6), mask=mask)


def test_targets_weights_and_factors_that_do_not_fit(arrays):
    streams = la.Streams(*arrays)
    y = np.ones((6, 4))
    for message, attempt in (
        ("y: one a query", lambda: la.fit(streams, np.ones((6, 3)), positions="causal")),
        ("y: must be finite", lambda: la.fit(streams, np.full((6, 4), np.nan), positions="all")),
        (
            "sample_weight: one weight a sequence, shape (6,), or one a query, shape (6, 4)",
            lambda: la.fit(streams, y, positions="causal", sample_weight=np.ones(4)),
        ),
        (
            "sample_weight: must be finite and not negative",
            lambda: la.fit(streams, y, positions="causal", sample_weight=-y),
        ),
        (
            "scale: one a query is needed, shape (6, 4)",
            lambda: la.certify(la.Streams(*arrays, scale=np.ones((6, 3))), positions="causal"),
        ),
        (
            "scale: must be finite, got nan for a query of sequence 0",
            lambda: la.certify(la.Streams(*arrays, scale=y * np.nan), positions="causal"),
        ),
        ("offsets: states have none", lambda: la.fit(streams, y, offsets=[0, 6], positions="all")),
        ("mask: it is for tokens", lambda: la.fit(streams, y, mask=y > 0, positions="all")),
        (
            "scale: Z is read a batch at a time",
            lambda: la.fit([(arrays[1], np.ones(6))], scale="mean"),
        ),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
            attempt()


@pytest.mark.parametrize("name", ["queries", "keys", "values"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("backend", ["numpy", "cpu"])
def test_values_that_are_not_finite_are_located(rng, name, value, backend):
    sizes = {"queries": 2, "keys": 3, "values": 2}
    given = {each: rng.standard_normal((50, 6, d)) for each, d in sizes.items()}
    given[name][37, 4, 1] = value
    streams, y = la.Streams(**given), np.ones((50, 6))
    heads = la.Heads(np.ones((1, 1, 2)), np.ones((1, 3, 2)))
    for attempt in (
        lambda: la.fit(streams, y, positions="causal", backend=backend),
        lambda: la.fit(streams, y, positions="causal", backend=backend, solver="pcg"),
        lambda: la.certify(streams, positions="causal", backend=backend),
        lambda: heads(streams, "causal", backend=backend),
    ):
        with pytest.raises(
            ValueError, match=rf"^{name}: must be finite, got {value} .*sequence 37"
        ):
            attempt()
    mask = np.ones((50, 6), bool)
    mask[37, 4] = False
    assert np.isfinite(heads(la.Streams(**given, mask=mask), "causal")).all()


def test_kinds_of_layers_are_not_mistaken_for_each_other(arrays):
    queries, keys, values = arrays
    streams, y = la.Streams(queries, keys, values), np.ones((6, 4))
    fit = la.fit(streams, y, positions="causal", alpha=0.1)
    with pytest.raises(TypeError, match=r"^Z: States or Streams \(memory 5 x 3, query 2\)"):
        fit.predict(keys)
    with pytest.raises(ValueError, match=r"^Z: States or Streams \(memory 5 x 3, query 2\)"):
        fit.predict(la.Streams(queries, keys))
    on_tokens = la.fit(keys, np.ones(6), alpha=0.1)
    with pytest.raises(TypeError, match=r"^Z: tokens with d = 3 are needed, got Streams"):
        on_tokens.predict(streams)
    with pytest.raises(TypeError, match=r"^Z: tokens are needed here, got Streams"):
        la.paper_features(streams)
    pytest.importorskip("sklearn")
    with pytest.raises(TypeError, match=r"^X: estimators take tokens, got Streams"):
        la.LinearAttentionRegressor().fit(streams, np.ones(6))


def test_parts_and_pickles(arrays):
    queries, keys, values = arrays
    mask = np.arange(24).reshape(6, 4) % 3 > 0
    scale, decay = np.arange(1.0, 25.0).reshape(6, 4), np.linspace(0.1, 1, 24).reshape(6, 4)
    streams = la.Streams(queries, keys, values, mask=mask, scale=scale, decay=decay)
    heads = la.Heads(np.ones((1, 1, 5)), np.ones((1, 3, 2)))
    y = heads(streams, "causal")
    assert (heads(streams.part(2, 5), "causal") == y[2:5]).all()
    assert np.shares_memory(streams.part(2, 5).keys.storage, keys)
    assert (heads(pickle.loads(pickle.dumps(streams)), "causal") == y).all()
    states = pickle.loads(pickle.dumps(streams.states("causal")))
    assert (states.memory == streams.states("causal").memory).all()
    assert repr(streams) == "Streams(6 sequences, memory 5 x 3, query 2)"
    offsets = np.arange(0, 25, 4)
    flat = la.Streams(
        queries.reshape(24, 2),
        keys.reshape(24, 3),
        values.reshape(24, 5),
        offsets=offsets,
        mask=mask.ravel(),
        scale=scale.ravel(),
        decay=decay.ravel(),
    )
    assert (heads(flat, "causal") == y.reshape(24, 1)).all()
    assert (heads(flat.part(2, 5), "causal") == y[2:5].reshape(12, 1)).all()


def test_the_same_array_is_symmetric(arrays):
    queries, keys, _ = arrays
    assert la.Streams(queries, keys).symmetric
    assert la.Streams(queries, keys, keys).symmetric
    assert la.Streams(queries, keys, keys[:]).symmetric
    assert not la.Streams(queries, keys, keys.copy()).symmetric
    assert not la.Streams(queries, keys, keys[:, ::-1]).symmetric
