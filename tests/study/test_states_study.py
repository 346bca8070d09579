"""Ridge path, leave-one-out and folds on states, held to features written out in numpy."""

import numpy as np
import pytest

import linattn_fast as la

KINDS = ["matrix", "rows", "symmetric"]
ALPHAS = [0.0, 1e-3, 0.3, 30.0]
N = 40


def drawn(rng, kind):
    """States with 24 features or fewer, targets that no layer gives, and weights."""
    M = rng.standard_normal((N, 3, 3 if kind == "symmetric" else 2))
    if kind == "symmetric":
        M = M + M.transpose(0, 2, 1)
    if kind == "rows":
        M = M.reshape(N, 6)
    states = la.States(M, rng.standard_normal((N, 4)), symmetric=kind == "symmetric")
    return states, rng.standard_normal((N, 2)), rng.uniform(0.2, 3.0, N)


def features_of(states):
    """Features M[j,k] c[l], (N, p): for a symmetric memory those with j <= k, row by row."""
    M = states.memory
    if states.symmetric:
        j, k = np.triu_indices(M.shape[1])
        M = M[:, j, k]
    s = M.reshape(len(M), -1)
    return (s[:, :, None] * states.query[:, None, :]).reshape(len(s), -1)


def ridge(h, y, w, alpha):
    """C (d_out, p) that minimises (1/W) sum w ||C h - y||^2 + alpha ||C||^2, by least squares."""
    p, root = h.shape[1], np.sqrt(w / w.sum())[:, None]
    rows = np.vstack([root * h, np.sqrt(alpha) * np.eye(p)])
    return np.linalg.lstsq(rows, np.vstack([root * y, np.zeros((p, y.shape[1]))]), rcond=None)[0].T


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weighted", [False, True])
def test_leaving_a_state_out_is_fitting_to_the_others(rng, kind, weighted):
    states, y, w = drawn(rng, kind)
    given = w if weighted else np.ones(N)
    choice = la.leave_one_out(states, y, ALPHAS, sample_weight=w if weighted else None)
    h, errors = features_of(states), np.zeros((len(ALPHAS), N))
    for i in range(N):
        rest = np.arange(N) != i
        for a, alpha in enumerate(ALPHAS):
            C = ridge(h[rest], y[rest], given[rest], alpha)
            errors[a, i] = ((C @ h[i] - y[i]) ** 2).sum()
    # Errors of 1e-16 grow by the condition, below 1e5 here, and by 1 / (1 - leverage), below 1e3
    np.testing.assert_allclose(choice.errors, errors, rtol=1e-8)
    assert (abs(choice.errors - errors) <= choice.error_bounds + 1e-10 * errors).all()
    means = errors @ given / given.sum()
    np.testing.assert_allclose(choice.mean_errors, means, rtol=1e-8)
    assert choice.alpha == ALPHAS[int(np.argmin(means))]


def test_leaving_states_of_a_stream_out(rng):
    states, y, _ = drawn(rng, "matrix")
    expected = la.leave_one_out(states, y, ALPHAS)
    batches = [(states.part(0, 13), y[:13]), (states.part(13, N), y[13:])]
    streamed = la.leave_one_out(batches, None, ALPHAS)
    np.testing.assert_allclose(streamed.errors, expected.errors, rtol=1e-9)


def test_a_state_that_alone_has_an_entry_is_infinite_without_a_ridge(rng):
    states, y, w = drawn(rng, "matrix")
    memory = states.memory.copy()
    memory[:-1, 1, 1] = 0.0
    alone = la.States(memory, states.query)
    choice = la.leave_one_out(alone, y, [0.0, 1.0], sample_weight=w)
    assert np.isinf(choice.errors[0, -1])
    assert choice.alpha == 1.0
    h = features_of(alone)
    C = ridge(h[:-1], y[:-1], w[:-1], 1.0)
    assert choice.errors[1, -1] == pytest.approx(((C @ h[-1] - y[-1]) ** 2).sum(), rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_the_ridge_path_is_a_fit_for_each_alpha(rng, kind):
    states, y, w = drawn(rng, kind)
    moments = la.Moments.of_states(
        states.kind.memory, states.kind.query, 2, symmetric=states.symmetric
    ).update(states, y, sample_weight=w)
    path, h = la.ridge_path(moments, ALPHAS), features_of(states)
    singular = np.linalg.svd(np.sqrt(w / w.sum())[:, None] * h, compute_uv=False) ** 2
    for a, alpha in enumerate(ALPHAS):
        C = ridge(h, y, w, alpha)
        assert np.linalg.norm(path.coefficients[a] - C) <= 1e-10 * np.linalg.norm(C)
        error = w @ ((h @ C.T - y) ** 2).sum(axis=1) / w.sum()
        assert path.mean_squared_errors[a] == pytest.approx(error, rel=1e-10)
        freedom = (singular / (singular + alpha)).sum()
        assert path.degrees_of_freedom[a] == pytest.approx(freedom, rel=1e-10)


def test_folds_of_states_choose_by_the_errors_on_each_other(rng):
    states, y, _ = drawn(rng, "matrix")
    halves = [(states.part(0, 25), y[:25]), (states.part(25, N), y[25:])]
    folds = [la.Moments.of_states((3, 2), 4, 2).update(*half) for half in halves]
    choice = la.choose_alpha(folds, ALPHAS[1:])
    for k, (held, target) in enumerate(halves):
        rest, given = halves[1 - k]
        h = features_of(rest)
        for a, alpha in enumerate(ALPHAS[1:]):
            C = ridge(h, given, np.ones(len(h)), alpha)
            error = ((features_of(held) @ C.T - target) ** 2).sum(axis=1).mean()
            assert choice.errors[a, k] == pytest.approx(error, rel=1e-8)


def test_a_number_of_heads_on_states_is_refused(rng):
    states, y, _ = drawn(rng, "matrix")
    moments = la.Moments.of_states((3, 2), 4, 2).update(states, y)
    message = "^heads: a number of heads is for layers on tokens, and these are states"
    for attempt in (
        lambda: la.head_path(moments, 2),
        lambda: la.fit(states, y, heads=1),
        lambda: moments.fit(heads=1),
    ):
        with pytest.raises(ValueError, match=message):
            attempt()
