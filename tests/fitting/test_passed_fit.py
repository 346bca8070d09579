"""Fits with values passed through: the answers of the rows written out, wherever the data is."""

import pickle

import numpy as np
import pytest

import linattn_fast as la


def planted(rng, N=300, d_v=5, d_k=4, d_q=3, noise=0.0):
    """States, a form B, and the values it weighs, with noise."""
    M, c = rng.standard_normal((N, d_v, d_k)), rng.standard_normal((N, d_q))
    B = rng.standard_normal((d_k, d_q))
    y = np.einsum("njk,kl,nl->nj", M, B, c) + noise * rng.standard_normal((N, d_v))
    return la.States(M, c), B, y


def written_out(states: la.States) -> la.States:
    """Each row of each memory as a state of its own."""
    N, d_v, d_k = states.memory.shape
    return la.States(states.memory.reshape(N * d_v, d_k), np.repeat(states.query, d_v, axis=0))


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
@pytest.mark.parametrize("solver", ["auto", "cholesky", "eigh", "qr", "dual", "pcg"])
def test_every_solver_recovers_the_planted_form(rng, backend, solver):
    states, B, y = planted(rng)
    fit = la.fit(states, y, values="passed", solver=solver, backend=backend)
    assert fit.coefficients.shape == (1, 12)
    assert np.allclose(fit.coefficients.reshape(4, 3), B, rtol=0, atol=1e-11)
    assert fit.certificate.verdict == "identifiable"
    assert fit.certificate.lower_bound > 0
    assert fit.d_out == 5
    assert fit.score(states, y) > 1 - 1e-12
    heads = fit.heads
    assert len(heads) == 1
    assert (np.eye(5) == heads.V).all()
    assert np.allclose(heads.Q[0], B, rtol=0, atol=1e-11)
    assert np.allclose(heads(states), fit.predict(states), rtol=0, atol=1e-12)
    assert np.allclose(fit.predict(states), y, rtol=0, atol=1e-10)


@pytest.mark.parametrize("solver", ["cholesky", "eigh", "qr", "dual", "pcg"])
@pytest.mark.parametrize("alpha", [0.0, 0.3])
def test_answers_are_those_of_all_rows(rng, solver, alpha):
    states, _, y = planted(rng, noise=0.3)
    w = rng.uniform(0.5, 2.0, 300)
    fit = la.fit(states, y, values="passed", solver=solver, alpha=alpha, sample_weight=w)
    h, weights = la.cubic_features(written_out(states)), np.repeat(w, 5)
    # (1/W) sum w (C h - y)^2 + alpha |C|^2, W the sum over rows
    Lambda = (weights[:, None] * h).T @ h / weights.sum() + alpha * np.eye(12)
    C = np.linalg.solve(Lambda, (weights * y.ravel()) @ h / weights.sum())
    assert fit.info.solver == solver
    assert np.allclose(fit.coefficients[0], C, rtol=0, atol=1e-11)
    error = np.average((y - (h @ C).reshape(y.shape)) ** 2, weights=np.repeat(w[:, None], 5, 1))
    assert np.isclose(fit.info.mean_squared_error, error, rtol=1e-9)
    assert fit.info.n_samples == 1500
    expected = 1 - (w @ (y - fit.predict(states)) ** 2) / (
        w @ (y - np.average(y, axis=0, weights=w)) ** 2
    )
    assert np.isclose(fit.score(states, y, sample_weight=w), expected.mean(), rtol=1e-12)


@pytest.mark.parametrize("solver", ["auto", "cholesky", "pcg"])
def test_rows_are_never_written_out_as_a_whole(rng, monkeypatch, solver):
    from linattn_fast.data.passed import PassedStates

    made = PassedStates.coordinates

    def guarded(self, *chosen):
        assert len(self) <= 25_000, "the query of every row was written out"
        return made(self, *chosen)

    monkeypatch.setattr(PassedStates, "coordinates", guarded)
    states, B, y = planted(rng, N=60_000, d_v=3)
    fit = la.fit(states, y, values="passed", solver=solver)
    assert np.allclose(fit.heads.Q[0], B, rtol=0, atol=1e-11)
    assert np.allclose(fit.predict(states), y, rtol=0, atol=1e-10)


@pytest.mark.parametrize("solver", ["auto", "cholesky", "qr", "dual", "pcg"])
def test_batches_give_the_answer_of_the_whole(rng, solver):
    states, _, y = planted(rng, noise=0.1)
    w = rng.uniform(0.5, 2.0, 300)
    whole = la.fit(states, y, values="passed", alpha=0.1, sample_weight=w)
    cuts = [(i, min(i + 70, 300)) for i in range(0, 300, 70)]
    batches = [(states.part(a, b), y[a:b], w[a:b]) for a, b in cuts]
    fit = la.fit(batches, values="passed", alpha=0.1, solver=solver)
    assert np.allclose(fit.coefficients, whole.coefficients, rtol=0, atol=1e-12)
    assert fit.predict(states).shape == (300, 5)
    if solver == "auto":
        once = la.fit(iter(batches), values="passed", alpha=0.1)
        assert np.allclose(once.coefficients, whole.coefficients, rtol=0, atol=1e-12)


def test_moments_alone_are_enough(rng):
    states, _, y = planted(rng, noise=0.1)
    moments = la.Moments.of_states((5, 4), 3, 5, values="passed").update(states, y)
    fit, whole = moments.fit(alpha=0.1), la.fit(states, y, values="passed", alpha=0.1)
    assert np.allclose(fit.coefficients, whole.coefficients, rtol=0, atol=1e-12)
    assert fit.predict(states).shape == (300, 5)
    path = la.ridge_path(moments, [0.1])
    assert np.allclose(path.coefficients[0], whole.coefficients, rtol=0, atol=1e-12)


def test_the_result_is_saved_and_pickled(rng, tmp_path):
    states, _, y = planted(rng, noise=0.1)
    fit = la.fit(states, y, values="passed", alpha=0.1)
    expected = fit.rank_path().mean_squared_errors
    fit.save(tmp_path / "fit.npz")
    for again in (la.load(tmp_path / "fit.npz"), pickle.loads(pickle.dumps(fit))):
        assert (again.predict(states) == fit.predict(states)).all()
        assert (again.heads.Q == fit.heads.Q).all()
        assert (again.rank_path().mean_squared_errors == expected).all()
        assert again.features == fit.features
        assert again.d_out == 5


@pytest.mark.parametrize("alpha", [0.0, 0.2])
@pytest.mark.parametrize("solver", ["cholesky", "pcg", "dual"])
def test_a_path_has_the_nearest_form_of_each_rank_and_its_error(rng, solver, alpha):
    states, _, y = planted(rng, noise=0.2)
    w = rng.uniform(0.5, 2.0, 300)
    fit = la.fit(states, y, values="passed", alpha=alpha, solver=solver, sample_weight=w)
    path = fit.rank_path()
    left, sigma, right = np.linalg.svd(fit.coefficients.reshape(4, 3), full_matrices=False)
    assert path.ranks == (1, 2, 3)
    assert np.allclose(path.singular_values, sigma, rtol=1e-12)
    for r, heads, error in zip(path.ranks, path.heads, path.mean_squared_errors, strict=True):
        form = (left[:, :r] * sigma[:r]) @ right[:r]
        assert np.allclose(heads.Q[0], form, rtol=0, atol=1e-12)
        truly = np.average((heads(states) - y) ** 2, weights=np.repeat(w[:, None], 5, axis=1))
        assert np.isclose(error, truly, rtol=1e-9)
    assert np.isclose(path.mean_squared_errors[-1], fit.info.mean_squared_error, rtol=1e-12)
    assert str(path).splitlines()[0] == "rank  singular value  mean squared error"


def test_a_path_is_drawn(rng, tmp_path):
    pytest.importorskip("matplotlib")
    states, _, y = planted(rng)
    la.fit(states, y, values="passed").rank_path().plot(tmp_path / "ranks.png")
    assert (tmp_path / "ranks.png").stat().st_size > 1000


def test_a_denominator_is_asked_to_be_one(rng):
    """An extra value sqrt(alpha) with the target sqrt(alpha) weighs sum_t phi_t' B psi = 1."""
    keys, values, c = (rng.uniform(0.5, 1.5, (400, n, d)) for n, d in ((6, 4), (6, 2), (1, 3)))
    B = rng.uniform(0.1, 1.0, (4, 3))
    c = c[:, 0] / np.einsum("ntk,kl,nl->n", keys, B, c[:, 0])[:, None]  # denominators of one
    y = np.einsum("nta,ntk,kl,nl->na", values, keys, B, c)
    root = 0.5
    padded = np.concatenate([values, np.full((400, 6, 1), root)], axis=2)
    states = la.States(padded.transpose(0, 2, 1) @ keys, c)
    fit = la.fit(states, np.column_stack([y, np.full(400, root)]), values="passed")
    assert np.allclose(fit.heads.Q[0], B, rtol=0, atol=1e-9)
    assert np.allclose(fit.predict(states)[:, -1] / root, 1.0, rtol=0, atol=1e-9)


def wrong(states, y):
    """Calls that must be refused, each with how its message begins."""
    return {
        r'^values: "passed" takes as many outputs as a memory has rows.* \(300, 5\) .*\(300, 3\)': (
            lambda: la.fit(states, y[:, :3], values="passed")
        ),
        r"^values: must be one of mixed, passed, got 'through'": (
            lambda: la.fit(states, y, values="through")
        ),
        r'^values: "passed" needs States': lambda: la.fit(states.memory, y, values="passed"),
        r"^heads: a number of heads": lambda: la.fit(states, y, values="passed", heads=2),
        r"^solver: 'blocks' is for tokens": (
            lambda: la.fit(states, y, values="passed", solver="blocks")
        ),
        r"^sample_weight: .*\(300,\)": (
            lambda: la.fit(states, y, values="passed", sample_weight=np.ones(1500))
        ),
        r"^rank_path: ": lambda: la.fit(states, y).rank_path(),
        r"^Z: States or Streams \(memory 5 x 4, query 3\) are needed": (
            lambda: la.fit(states, y, values="passed").predict(written_out(states))
        ),
        r"^memory: must be finite, got nan in state 7, entry \[1, 2\]": (
            lambda: la.fit(spoiled(states), y, values="passed")
        ),
    }


def spoiled(states: la.States) -> la.States:
    """States with a number that is none."""
    memory = states.memory.copy()
    memory[7, 1, 2] = np.nan
    return la.States(memory, states.query)


@pytest.mark.parametrize("number", range(9))
def test_what_does_not_fit_is_refused(rng, number):
    states, _, y = planted(rng)
    message, call = list(wrong(states, y).items())[number]
    with pytest.raises((TypeError, ValueError), match=message):
        call()
