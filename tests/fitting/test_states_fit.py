"""Fits on states: every solver, the layer that was planted, and the same answers as tokens."""

import warnings

import numpy as np
import pytest

import linattn_fast as la


def planted(rng, H, d_v, d_k, d_q, d_out, N):
    """States, a layer of H heads, and its outputs."""
    truth = la.Heads(rng.standard_normal((H, d_out, d_v)), rng.standard_normal((H, d_k, d_q)))
    states = la.States(rng.standard_normal((N, d_v, d_k)), rng.standard_normal((N, d_q)))
    return (
        states,
        truth,
        np.einsum(
            "haj,njk,hkl,nl->na", truth.V, states.memory, truth.Q, states.query, optimize=True
        ),
    )


def least_squares(states: la.States, y: np.ndarray, alpha: float = 0.0, w=None) -> np.ndarray:
    """Coefficients (d_out, p) of features written out."""
    M, c = states.memory.astype(float), states.query.astype(float)
    h = np.einsum("nu,nl->nul", M.reshape(len(M), -1), c).reshape(len(M), -1)
    root = np.sqrt(np.ones(len(h)) if w is None else w)[:, None]
    ridge = np.sqrt(alpha * (root**2).sum()) * np.eye(h.shape[1])
    rows = np.vstack([root * h, ridge])
    targets = np.vstack([root * y, np.zeros((len(ridge), y.shape[1]))])
    return np.linalg.lstsq(rows, targets, rcond=None)[0].T


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
@pytest.mark.parametrize("solver", ["auto", "cholesky", "eigh", "qr", "pcg"])
def test_every_solver_recovers_a_planted_layer(rng, backend, solver):
    states, truth, y = planted(rng, 2, 5, 4, 6, 3, 400)
    fit = la.fit(states, y, solver=solver, backend=backend)
    assert fit.certificate.verdict == "identifiable"
    assert fit.certificate.lower_bound > 0
    assert len(fit.heads) == 2
    assert fit.heads.distance(truth) < 1e-10 * np.linalg.norm(truth.coefficients())
    assert np.allclose(fit.predict(states), y, rtol=0, atol=1e-10)
    assert np.allclose(fit.heads(states), y, rtol=0, atol=1e-10)
    assert fit.coefficients.shape == (3, 120)
    assert fit.score(states, y) > 1 - 1e-12


@pytest.mark.parametrize("solver", ["cholesky", "eigh", "qr", "dual", "pcg"])
@pytest.mark.parametrize("alpha", [0.0, 0.3])
def test_every_solver_finds_least_squares(rng, solver, alpha):
    N = 60 if solver == "dual" else 300
    states = la.States(
        rng.standard_normal((N, 3, 4)).astype(np.float32), rng.standard_normal((N, 7))[:, ::-1]
    )
    y, w = rng.standard_normal((N, 2)), rng.uniform(0.5, 2.0, N)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", la.InterpolationWarning)
        fit = la.fit(states, y, solver=solver, alpha=alpha, sample_weight=w)
    assert fit.info.solver == solver
    expected = least_squares(states, y, alpha, w)
    assert np.linalg.norm(fit.coefficients - expected) < 1e-9 * np.linalg.norm(expected)


@pytest.mark.parametrize("solver", ["auto", "cholesky", "eigh", "qr", "pcg"])
def test_states_are_read_where_they_lie(rng, monkeypatch, solver):
    """The tokens that states stand for are never written out, but for one at a time."""
    made = la.States._as_tokens

    def guarded(self):
        assert len(self) == 1, "states were copied"
        return made(self)

    monkeypatch.setattr(la.States, "_as_tokens", guarded)
    states, _, y = planted(rng, 1, 3, 2, 4, 2, 500)
    fit = la.fit(states, y, solver=solver, sample_weight=rng.uniform(1.0, 2.0, 500))
    assert fit.certificate.covers(states).all()
    assert np.isfinite(fit.certificate.leverage(states)).all()
    assert np.allclose(fit.predict(states), y)


def test_rows_of_any_meaning_are_states(rng):
    """A memory that is no matrix is a column: d_v = q, d_k = 1."""
    s, c = rng.standard_normal((300, 6)), rng.standard_normal((300, 4))
    maps = np.outer(rng.standard_normal(6), rng.standard_normal(4))  # one direction of queries
    y = np.einsum("nu,ul,nl->n", s, maps, c)
    fit = la.fit(la.States(s, c), y)
    assert np.allclose(fit.coefficients, maps.reshape(1, -1), atol=1e-12)
    assert fit.heads.V.shape == (1, 1, 6)
    assert fit.heads.Q.shape == (1, 1, 4)
    assert np.allclose(fit.heads(la.States(s, c))[:, 0], y, atol=1e-12)
    assert fit.predict(la.States(s, c)).shape == (300,)


@pytest.mark.parametrize("solver", ["auto", "pcg", "qr"])
def test_ill_conditioned_states_are_solved_as_well_as_by_numpy(rng, solver):
    states, _, y = planted(rng, 1, 4, 3, 3, 2, 400)
    scales = np.geomspace(1.0, 1e-4, 12).reshape(4, 3)
    states = la.States(states.memory * scales, states.query * [1.0, 1e-2, 1e-3])
    fit = la.fit(states, y, solver=solver)
    assert fit.certificate.verdict == "identifiable"
    assert np.allclose(fit.predict(states), y, rtol=0, atol=1e-9 * abs(y).max())


def test_states_without_rank_have_the_least_norm(rng):
    states, _, y = planted(rng, 1, 4, 3, 3, 2, 200)
    memory = states.memory.copy()
    memory[:, 3] = memory[:, 0] + memory[:, 1]
    memory[:, 1, 2] = 0.0
    states = la.States(memory, states.query)
    fit = la.fit(states, y)
    assert fit.certificate.verdict == "not identifiable"
    expected = least_squares(states, y)
    assert np.linalg.norm(fit.coefficients - expected) < 1e-8 * np.linalg.norm(expected)


@pytest.mark.parametrize("solver", ["auto", "pcg", "dual"])
def test_tokens_and_their_states_have_the_same_fit(rng, solver):
    N = 30 if solver == "dual" else 300
    Z = rng.standard_normal((N, 6, 4))
    truth = la.Heads(rng.standard_normal((2, 4, 4)), rng.standard_normal((2, 4, 4)))
    y = truth(Z)
    states = la.States(Z.transpose(0, 2, 1) @ Z, Z[:, -1], symmetric=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", la.InterpolationWarning)
        by_tokens, by_states = la.fit(Z, y, solver=solver), la.fit(states, y, solver=solver)
    a, b = by_tokens.coefficients, by_states.coefficients
    assert np.linalg.norm(a - b) < 1e-9 * np.linalg.norm(a)
    assert by_states.certificate.verdict == by_tokens.certificate.verdict
    assert by_states.certificate.rank == by_tokens.certificate.rank
    if solver != "dual":
        assert len(by_states.heads) == len(by_tokens.heads) == 2
        assert by_states.heads.distance(truth) < 1e-8
        new = rng.standard_normal((20, 9, 4))
        of_new = la.States(new.transpose(0, 2, 1) @ new, new[:, -1], symmetric=True)
        assert np.allclose(by_states.predict(of_new), truth(new), atol=1e-8)
        assert np.allclose(by_states.heads(of_new), truth(new), atol=1e-8)
        one, other = by_tokens.certificate.leverage(new), by_states.certificate.leverage(of_new)
        assert np.allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize("d_q", [3, 6])
def test_symmetric_memory_with_other_queries(rng, d_q):
    M = rng.standard_normal((400, 4, 4))
    states = la.States(M + M.transpose(0, 2, 1), rng.standard_normal((400, d_q)), symmetric=True)
    truth = la.Heads(rng.standard_normal((2, 4, 4)), rng.standard_normal((2, 4, d_q)))
    fit = la.fit(states, truth(states))
    assert len(fit.heads) == 2
    assert fit.heads.V.shape == (2, 4, 4)
    assert fit.heads.Q.shape == (2, 4, d_q)
    assert np.allclose(fit.heads(states), truth(states), atol=1e-8)
    assert fit.heads.distance(truth, symmetric=True) < 1e-8


def test_moments_and_streams_of_states_have_the_same_fit(rng):
    states, truth, y = planted(rng, 2, 3, 4, 5, 2, 400)
    batches = [(states.part(i, i + 100), y[i : i + 100]) for i in range(0, 400, 100)]
    moments = la.Moments.of_states((3, 4), 5, 2).update(states, y)
    for fit in (
        moments.fit(),
        la.fit(batches, None),
        la.fit(iter(batches), None),
        la.fit(batches, None, solver="pcg"),
    ):
        assert fit.heads.distance(truth) < 1e-9
        assert fit.certificate.verdict == "identifiable"
    few = [(states.part(0, 20), y[:20]), (states.part(20, 50), y[20:50])]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", la.InterpolationWarning)
        fit = la.fit(few, None, solver="dual")  # which gathers them
    assert np.allclose(fit.predict(states.part(0, 50)), y[:50], atol=1e-9)


def test_a_fit_on_states_is_saved_with_its_heads(rng, tmp_path):
    states, _, y = planted(rng, 2, 3, 4, 5, 2, 400)
    for name, heads in (("with", "minimal"), ("without", None)):
        fit = la.fit(states, y, heads=heads)
        fit.save(tmp_path / f"{name}.npz")
        again = la.load(tmp_path / f"{name}.npz")
        assert (again.predict(states) == fit.predict(states)).all()
        assert again.features == fit.features
        assert again.certificate.lower_bound == fit.certificate.lower_bound
        if heads is not None:
            assert (again.heads.Q == fit.heads.Q).all()
            assert again.heads.recovery == fit.heads.recovery
        else:
            assert again.heads is None


def test_memory_of_all_zeros_is_a_zero_layer():
    states = la.States(np.zeros((40, 3, 2)), np.ones((40, 2)))
    fit = la.fit(states, np.ones((40, 1)))
    assert not fit.coefficients.any()
    assert fit.certificate.verdict == "not identifiable"
    assert len(fit.heads) == 1
