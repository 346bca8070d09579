"""States in any form are taken as they are; what is wrong with them is said by name."""

import pickle
import re

import numpy as np
import pytest

import linattn_fast as la
from linattn_fast.data.tokens import as_tokens
from linattn_fast.features.features import Features
from linattn_fast.features.states import StateFeatures


def factors(states: la.States) -> tuple[np.ndarray, np.ndarray]:
    """s and c of each state, element by element."""
    M, c = np.asarray(states.memory, np.float64), np.asarray(states.query, np.float64)
    if states.symmetric:
        d = M.shape[1]
        s = np.array([[m[j, k] for j in range(d) for k in range(j, d)] for m in M])
    else:
        s = np.array([m.ravel() for m in M])
    return s, c


@pytest.fixture
def arrays(rng):
    return rng.standard_normal((12, 3, 2)), rng.standard_normal((12, 4))


def test_states_are_sequences_of_one_token(arrays):
    """x = (1, s, c): the pairs (0, 1 + u) and the queries 1 + q + l have the features s_u c_l."""
    states = la.States(*arrays)
    s, c = factors(states)
    q, d_q = s.shape[1], c.shape[1]
    chosen = Features(1 + q + d_q, [(0, 1 + u) for u in range(q)], [1 + q + l for l in range(d_q)])
    by_tokens = chosen.of(as_tokens(states.storage))
    assert (by_tokens == np.einsum("nu,nl->nul", s, c).reshape(len(s), -1)).all()
    assert (states.sequence(3) == states.storage[3]).all()
    assert (states.rows() == states.storage[:, 0]).all()


def test_parts_of_states_are_states(arrays):
    states = la.States(*arrays)
    for part, rows in (
        (states.part(2, 7), slice(2, 7)),
        (states.every(5), slice(None, None, 5)),
        (states.chosen(np.array([4, 1])), [4, 1]),
        (pickle.loads(pickle.dumps(states)), slice(None)),
    ):
        assert isinstance(part, la.States)
        assert (part.memory == arrays[0][rows]).all()
        assert (part.query == arrays[1][rows]).all()
    assert repr(states) == "States(12 states, memory 3 x 2, query 4)"


def test_nothing_is_copied(arrays):
    memory, query = arrays
    states = la.States(memory, query)
    assert np.shares_memory(states.memory, memory)
    assert np.shares_memory(states.part(1, 3).query, query)


@pytest.mark.parametrize(
    ("memory", "query", "symmetric", "message"),
    [
        (np.ones(3), np.ones((3, 2)), False, "memory: an array (N, d_v, d_k) or (N, q)"),
        (np.ones((3, 2, 2, 2)), np.ones((3, 2)), False, "memory: an array"),
        (np.ones((0, 2)), np.ones((0, 2)), False, "memory: at least one state"),
        (np.ones((3, 0)), np.ones((3, 2)), False, "memory: at least one state"),
        (np.ones((3, 2)), np.ones((4, 2)), False, "query: one row a state is needed, shape (3,"),
        (np.ones((3, 2)), np.ones(3), False, "query: one row a state"),
        (np.ones((3, 2)), np.ones((3, 0)), False, "query: one row a state"),
        (np.ones((3, 2)), np.ones((3, 2)), True, "memory: symmetric=True needs square"),
        (np.ones((3, 2, 4)), np.ones((3, 2)), True, "memory: symmetric=True needs square"),
    ],
)
def test_shapes_that_do_not_fit_are_named(memory, query, symmetric, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        la.States(memory, query, symmetric=symmetric)


def test_kinds_that_do_not_fit_are_named():
    with pytest.raises(TypeError, match=r"^memory"):
        la.States(np.ones((3, 2), complex), np.ones((3, 2)))
    with pytest.raises(TypeError, match=r"^query"):
        la.States(np.ones((3, 2)), np.ones((3, 2), np.float16))
    with pytest.raises(TypeError, match=r"^symmetric: True or False"):
        la.States(np.ones((3, 2, 2)), np.ones((3, 2)), symmetric="yes")


def test_unsymmetric_memory_is_refused_and_rounding_is_not(rng):
    M = rng.standard_normal((300, 4, 4))
    M = M + M.transpose(0, 2, 1)
    query = rng.standard_normal((300, 4))
    M[:, 0, 1] *= 1 + 1e-14
    la.States(M, query, symmetric=True)
    M[251, 2, 1] += 1e-3
    with pytest.raises(ValueError, match=r"^symmetric: .* state 251 differs .* by 0.001"):
        la.States(M, query, symmetric=True)
    la.States(M, query)


@pytest.mark.parametrize("positions", ["all", "causal"])
def test_states_have_one_query_each(arrays, positions):
    states, y = la.States(*arrays), np.ones(12)
    truth = la.Heads(np.ones((1, 2, 3)), np.ones((1, 2, 4)))
    fit = la.fit(states, y, alpha=0.1)
    for attempt in (
        lambda: la.fit(states, y, positions=positions),
        lambda: la.certify(states, positions=positions),
        lambda: fit.predict(states, positions),
        lambda: fit.certificate.covers(states, positions=positions),
        lambda: truth(states, positions),
    ):
        with pytest.raises(ValueError, match=r"^positions: a state has one query"):
            attempt()


@pytest.mark.parametrize("where", ["memory", "query"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("backend", ["numpy", "cpu"])
def test_values_that_are_not_finite_are_located(rng, where, value, backend):
    given = {"memory": rng.standard_normal((400, 3, 2)), "query": rng.standard_normal((400, 4))}
    given[where][(307, 1, 1) if where == "memory" else (307, 2)] = value
    states = la.States(**given)
    place = r"\[1, 1\]" if where == "memory" else r"\[2\]"
    message = rf"^{where}: must be finite, got {value} in state 307, entry {place}"
    y = np.ones(400)
    heads = la.Heads(np.ones((1, 1, 3)), np.ones((1, 2, 4)))
    for attempt in (
        lambda: la.fit(states, y, backend=backend),
        lambda: la.fit(states, y, backend=backend, solver="pcg"),
        lambda: la.certify(states, backend=backend),
        lambda: la.Moments.of_states((3, 2), 4, 1, backend=backend).update(states, y),
        lambda: heads(states, backend=backend),
    ):
        with pytest.raises(ValueError, match=message):
            attempt()


def test_tokens_and_states_are_not_mistaken_for_each_other(arrays):
    states, y = la.States(*arrays), np.ones(12)
    on_states = la.fit(states, y, alpha=0.1)
    tokens = np.ones((12, 1, 11))  # as many coordinates as a state has as a token
    on_tokens = la.fit(np.random.default_rng(0).standard_normal((12, 3, 2)), y, alpha=0.1)
    with pytest.raises(
        TypeError, match=r"^Z: States or Streams \(memory 3 x 2, query 4\) are needed"
    ):
        on_states.predict(tokens)
    with pytest.raises(TypeError, match=r"^Z: States .* are needed, got list"):
        on_states.certificate.covers(tokens.tolist())
    with pytest.raises(TypeError, match=r"^Z: tokens with d = 2 are needed, got States"):
        on_tokens.predict(states)
    with pytest.raises(TypeError, match=r"^Z: tokens with d = 2 are needed, got States"):
        la.Moments(2, 1).update(states, y)
    with pytest.raises(TypeError, match=r"^Z: States .* are needed, got ndarray"):
        la.Moments.of_states((3, 2), 4, 1).update(tokens, y)
    with pytest.raises(
        ValueError, match=r"^Z: States or Streams \(memory 3 x 2, query 4\) .* \(memory 6,"
    ):
        on_states.predict(la.States(arrays[0].reshape(12, 6), arrays[1]))


def test_arguments_of_tokens_are_refused(arrays):
    states, y = la.States(*arrays), np.ones(12)
    with pytest.raises(ValueError, match=r"^features: a choice of pairs and queries is for tokens"):
        la.fit(states, y, features=la.Features(11, pairs=[(0, 1)]))
    with pytest.raises(ValueError, match=r"^offsets: states have none"):
        la.fit(states, y, offsets=[0, 12])
    with pytest.raises(ValueError, match=r"^y: one row of targets"):
        la.fit(states, np.ones(11))
    with pytest.raises(ValueError, match=r"^sample_weight: one weight"):
        la.fit(states, y, sample_weight=np.ones(11))
    with pytest.raises(ValueError, match=r"^solver: 'blocks' is for tokens"):
        la.fit(states, y, solver="blocks")
    with pytest.raises(ValueError, match=r"^heads: a number of heads is for layers on tokens"):
        la.fit(states, y, heads=2)


def test_what_is_about_tokens_takes_no_states(arrays):
    states = la.States(*arrays)
    for attempt in (
        lambda: la.paper_features(states),
        lambda: la.Features.active(states),
        lambda: la.softmax.fit(states, np.ones(12), 1),
    ):
        with pytest.raises(
            TypeError, match=r"^[XZ]: tokens are needed here, got States\(12 states"
        ):
            attempt()


@pytest.mark.parametrize(
    ("memory", "symmetric", "message"),
    [((3, 2, 2), False, "memory: q or"), ((3, 0), False, "memory"), ((3, 2), True, "memory: sym")],
)
def test_moments_of_shapes_that_do_not_exist_are_refused(memory, symmetric, message):
    with pytest.raises(ValueError, match=rf"^{message}"):
        la.Moments.of_states(memory, 4, 1, symmetric=symmetric)


def test_estimators_take_no_states(arrays):
    pytest.importorskip("sklearn")
    for method in ("fit", "partial_fit"):
        with pytest.raises(TypeError, match=r"^X: estimators take tokens, got States"):
            getattr(la.LinearAttentionRegressor(), method)(la.States(*arrays), np.ones(12))


def test_entries_that_occur_are_found(rng):
    """In whichever state; the others are zero, exactly."""
    s, c = np.zeros((70000, 4)), np.zeros((70000, 3))
    s[:, 0], s[69999, 2], s[5, 3] = 1.0, 1e-300, -2.0
    c[:, 1], c[69999, 2] = 1.0, 3.0
    states = la.States(s, c)
    entries, coordinates = StateFeatures(states.kind).occurring(states, "last")
    assert entries.tolist() == [True, False, True, True]
    assert coordinates.tolist() == [False, True, True]


def test_cuda_takes_no_states(arrays, gpu):
    with pytest.raises(ValueError, match=r"^backend: 'cuda' takes tokens alone"):
        la.fit(la.States(*arrays), np.ones(12), backend="cuda")


def test_unpickled_states_are_aligned_whatever_buffer_they_come_from(rng):
    states = la.States(rng.standard_normal((50, 2, 3)), rng.standard_normal((50, 2)))
    make, (memory, query, symmetric) = states.__reduce__()

    def shifted(array):
        """A copy that begins one byte off, as in a message of a socket."""
        bytes_ = np.empty(array.nbytes + 1, np.uint8)[1:]
        moved = bytes_.view(array.dtype).reshape(array.shape)
        moved[...] = array
        return moved

    again = make(shifted(memory), shifted(query), symmetric)
    assert again.memory.flags.aligned
    assert again.query.flags.aligned
    y = rng.standard_normal(50)
    assert np.array_equal(la.fit(again, y).coefficients, la.fit(states, y).coefficients)
