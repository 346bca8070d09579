"""Values passed through: sums equal those over the rows of the memories, written out as states."""

import numpy as np
import pytest
from conftest import EPS, needs_cpu

import linattn_fast as la
from linattn_fast.backend.choice import get_backend
from linattn_fast.features.samples import Samples

FORMS = ["matrix", "float32", "strided", "fortran", "one row", "one column", "not a matrix"]


def states_of(rng: np.random.Generator, form: str, N: int) -> la.States:
    """States in some form, with odd sizes that no vector divides."""
    M, query = rng.standard_normal((N, 5, 6)), rng.standard_normal((N, 3))
    wide = rng.standard_normal((2 * N, 3, 8))
    memory = {
        "matrix": M,
        "float32": M.astype(np.float32),
        "strided": wide[::2, ::-1, 1::2],
        "fortran": np.asfortranarray(M),
        "one row": M[:, :1],
        "one column": M[:, :, :1],
        "not a matrix": M[:, :, 0],
    }[form]
    if form == "strided":
        query = np.repeat(query, 2, axis=1)[::-1, ::2].astype(np.float32)
    return la.States(memory, query)


def written_out(states: la.States) -> la.States:
    """Each row of each memory as a state of its own."""
    d_v, d_k = states.kind.matrix
    rows = states.memory.astype(np.float64).reshape(-1, d_k)
    return la.States(rows, np.repeat(states.query.astype(np.float64), d_v, axis=0))


def passed(states: la.States, backend: str = "auto", *, targets: bool = True) -> la.Moments:
    """Moments that take such states."""
    kind = states.kind
    d_out = kind.matrix[0] if targets else 0
    return la.Moments.of_states(kind.memory, kind.query, d_out, values="passed", backend=backend)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("weighted", [False, True])
def test_sums_are_those_of_all_rows(rng, backend, form, weighted):
    if backend == "cuda":
        pytest.skip("states are for the host")
    N = 700  # several blocks, the last one not full
    states = states_of(rng, form, N)
    d_v = states.kind.matrix[0]
    y = rng.standard_normal((N, d_v))
    w = rng.uniform(0.0, 2.0, N) if weighted else np.ones(N)
    moments = passed(states, backend).update(states, y, sample_weight=w if weighted else None)
    rows = written_out(states)
    h, w = la.cubic_features(rows), np.repeat(w, d_v)
    for found, right in ((moments.gram(), h), (moments.cross(), y.reshape(-1, 1))):
        expected, size = (w[:, None] * h).T @ right, (w[:, None] * abs(h)).T @ abs(right)
        assert (abs(found - expected) <= 2 * (len(w) + 8) * EPS * size).all()
    assert np.isclose(moments.sums.energy[0], w @ y.reshape(-1) ** 2, rtol=1e-12)
    assert moments.n_samples == N * d_v
    assert np.isclose(moments.total_weight, w.sum(), rtol=1e-13)


@needs_cpu
def test_roundings_of_the_sum_over_rows_are_counted(rng):
    states = la.States(rng.standard_normal((50, 40, 2)), rng.standard_normal((50, 3)))
    one = la.States(states.memory[:, :1].copy(), states.query)
    many, alone = (passed(x, "cpu", targets=False).update(x) for x in (states, one))
    assert many.rounding_steps == alone.rounding_steps + 39


@pytest.mark.parametrize("form", ["matrix", "strided"])
def test_every_instruction_set_sums_rows(rng, isa, form):
    states = states_of(rng, form, 300)
    y = rng.standard_normal((300, states.kind.matrix[0]))
    moments = passed(states, "cpu").update(states, y)
    h = la.cubic_features(written_out(states))
    assert np.allclose(moments.gram(), h.T @ h, rtol=0, atol=1e-11)
    assert np.allclose(moments.cross()[:, 0], h.T @ y.ravel(), rtol=0, atol=1e-11)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("keep", [False, True])
def test_passes_are_those_over_all_rows(rng, backend, form, keep):
    if backend == "cuda":
        pytest.skip("states are for the host")
    states = states_of(rng, form, 600)
    d_v = states.kind.matrix[0]
    y, w = rng.standard_normal((600, d_v)), rng.uniform(0.5, 2.0, 600)
    samples = Samples.checked(states, y, sample_weight=w, values="passed")
    operator = get_backend(backend).normal_operator(samples, keep=keep)
    rows = written_out(states)
    h, w, y = la.cubic_features(rows), np.repeat(w, d_v), y.reshape(-1, 1)
    C = rng.standard_normal((2, h.shape[1]))
    close = {"rtol": 1e-12, "atol": 1e-10}
    for _ in range(2):  # the second pass reads what the first has kept
        found = operator.normal(C)
        assert np.allclose(found.product, (w[:, None] * (h @ C.T)).T @ h, **close)
        assert np.allclose(found.energy, w @ (h @ C.T) ** 2, rtol=1e-12)
        residual = y - h @ C[:1].T
        gradient = operator.gradient(C[:1])
        assert np.allclose(gradient.gradient, (w[:, None] * residual).T @ h, **close)
        assert np.allclose(gradient.squared_error, w @ residual**2, rtol=1e-12)
    factors = operator.kronecker_factors()
    s, z = rows.memory, rows.query
    assert np.allclose(factors.pairs, (w[:, None] * s).T @ s, **close)
    assert np.allclose(factors.queries, (w[:, None] * z).T @ z, **close)
    assert np.allclose(factors.diagonal.ravel(), w @ h**2, **close)


def test_sums_have_the_same_bits_for_every_number_of_threads(rng):
    states, y = states_of(rng, "matrix", 5000), rng.standard_normal((5000, 5))
    found = []
    for threads in (1, 2, 5):
        la.set_num_threads(threads)
        moments = passed(states, "cpu").update(states, y)
        found.append(np.concatenate([moments.gram(), moments.cross()], axis=1))
    assert all((sums == found[0]).all() for sums in found)


@needs_cpu
def test_mixed_precision_errs_like_float32(rng):
    states, y = states_of(rng, "matrix", 500), rng.standard_normal((500, 5))
    h = la.cubic_features(written_out(states))
    moments = la.Moments.of_states(
        (5, 6), 3, 5, values="passed", precision="mixed", backend="cpu"
    ).update(states, y)
    error, size = abs(moments.gram() - h.T @ h), abs(h).T @ abs(h)
    assert (error <= 300 * 2.0**-24 * size).all()
    assert (error > 2.0**-40 * size).any()  # float32 it is


def test_moments_are_merged_saved_and_streamed(rng, tmp_path):
    states, y = states_of(rng, "matrix", 200), rng.standard_normal((200, 5))
    whole = passed(states).update(states, y)
    halves = [passed(states).update(states.part(a, b), y[a:b]) for a, b in ((0, 80), (80, 200))]
    both = halves[0] + halves[1]
    assert np.allclose(both.gram(), whole.gram(), rtol=1e-12, atol=1e-12)
    both.save(tmp_path / "moments.npz")
    again = la.Moments.load(tmp_path / "moments.npz")
    assert (again.gram() == both.gram()).all()
    assert again.features == both.features
    again.update(states, y)  # it still knows what it takes
    batches = [(states.part(i, i + 40), y[i : i + 40]) for i in range(0, 200, 40)]
    path = tmp_path / "checkpoint"
    streamed = passed(states).update(iter(batches), checkpoint=path, checkpoint_every=0)
    assert np.allclose(streamed.gram(), whole.gram(), rtol=1e-12, atol=1e-12)
    resumed = passed(states).update(iter(batches), checkpoint=path)
    assert (resumed.gram() == streamed.gram()).all()
    rows = written_out(states)
    with pytest.raises(ValueError, match=r"^features: moments to merge must agree"):
        whole + la.Moments.of_states(6, 3, 1).update(rows, y.ravel())


def test_the_number_of_outputs_is_that_of_the_rows():
    with pytest.raises(ValueError, match=r'^d_out: values="passed" has d_v = 5 outputs, got 3'):
        la.Moments.of_states((5, 6), 3, 3, values="passed")
    with pytest.raises(ValueError, match=r"^values: must be one of mixed, passed"):
        la.Moments.of_states((5, 6), 3, 5, values="pass")
