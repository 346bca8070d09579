"""Moments and normal equations of states equal those of features that are written out."""

import numpy as np
import pytest
from conftest import EPS, needs_cpu

import linattn_fast as la
from linattn_fast.arrays.compiled import core
from linattn_fast.backend.choice import get_backend
from linattn_fast.features.samples import Samples

FORMS = ["rows", "matrix", "symmetric", "float32", "strided", "reversed", "fortran", "one entry"]


def states_of(rng: np.random.Generator, form: str, N: int) -> la.States:
    """States in some form, with odd sizes that no vector divides."""
    query, M = rng.standard_normal((N, 5)), rng.standard_normal((N, 5, 5))
    symmetric, wide = M + M.transpose(0, 2, 1), rng.standard_normal((2 * N, 3, 8))
    memory = {
        "rows": M[:, :, 0],
        "matrix": M[:, :3, :4].copy(),
        "symmetric": symmetric,
        "float32": symmetric.astype(np.float32),
        "strided": wide[::2, :, 1::2],
        "reversed": wide[:N, ::-1],
        "fortran": np.asfortranarray(M),
        "one entry": M[:, 0, :1],
    }[form]
    if form == "strided":
        query = np.repeat(query, 2, axis=1)[:, ::2].astype(np.float32)
    if form in ("reversed", "fortran"):
        query = np.asfortranarray(query)[::-1, ::-1]
    return la.States(memory, query, symmetric=form in ("symmetric", "float32"))


def features_of(states: la.States) -> np.ndarray:
    """Features written out, (N, q d_q)."""
    M, c = states.memory.astype(np.float64), states.query.astype(np.float64)
    if states.symmetric:
        j, k = np.triu_indices(M.shape[1])
        s = M[:, j, k]
    else:
        s = M.reshape(len(M), -1)
    return (s[:, :, None] * c[:, None, :]).reshape(len(M), -1)


def assert_near(found: np.ndarray, left: np.ndarray, right: np.ndarray, w: np.ndarray) -> None:
    """Sums over samples of w left right' to rounding, whatever the order: N + 8 roundings each."""
    expected, size = (w[:, None] * left).T @ right, (w[:, None] * abs(left)).T @ abs(right)
    assert found.shape == expected.shape
    assert (abs(found - expected) <= 2 * (len(w) + 8) * EPS * size).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("weighted", [False, True])
def test_moments_are_those_of_the_features(rng, backend, form, weighted):
    if backend == "cuda":
        pytest.skip("states are for the host")
    N = 700  # several blocks, the last one not full
    states = states_of(rng, form, N)
    y = rng.standard_normal((N, 3))
    w = rng.uniform(0.0, 2.0, N) if weighted else np.ones(N)
    kind = states.kind
    moments = la.Moments.of_states(
        kind.memory, kind.query, 3, symmetric=kind.symmetric, backend=backend
    )
    moments.update(states, y, sample_weight=w if weighted else None)
    h = features_of(states)
    assert (la.cubic_features(states) == h).all()
    assert_near(moments.gram(), h, h, w)
    assert_near(moments.cross(), h, y, w)
    assert moments.n_samples == N
    assert np.allclose(moments.summand_sizes(), moments.gram_diagonal(), rtol=0, atol=0)


@pytest.mark.parametrize("form", FORMS)
def test_every_instruction_set_reads_states(rng, isa, form):
    states, y = states_of(rng, form, 300), rng.standard_normal((300, 2))
    kind = states.kind
    moments = la.Moments.of_states(
        kind.memory, kind.query, 2, symmetric=kind.symmetric, backend="cpu"
    ).update(states, y)
    h = features_of(states)
    assert_near(moments.gram(), h, h, np.ones(300))
    assert_near(moments.cross(), h, y, np.ones(300))


@needs_cpu
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"memory": np.ones((4, 2, 3))}, "as many states as queries"),
        ({"memory": np.ones((5, 2, 3)), "symmetric": True}, "must be square"),
        ({"memory": np.ones((5, 3, 3)), "positions": "all", "symmetric": True}, "no symmetry"),
        ({"memory": np.ones((5, 2, 3)), "positions": "causal"}, "no prefixes"),
        ({"memory": np.ones((5, 2, 3)), "tokens": np.ones((5, 2, 4))}, "must be alike"),
        ({"memory": np.ones((5, 2))}, "memory"),
    ],
)
def test_the_extension_checks_states(given, message):
    with pytest.raises(ValueError, match=message):
        core.Samples(**{"tokens": np.ones((5, 1, 4)), "positions": "last"} | given)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("keep", [False, True])
def test_normal_equations_are_those_of_the_features(rng, backend, form, keep):
    if backend == "cuda":
        pytest.skip("states are for the host")
    states, y = states_of(rng, form, 600), rng.standard_normal((600, 2))
    w = rng.uniform(0.5, 2.0, 600)
    h = features_of(states)
    C = rng.standard_normal((2, h.shape[1]))
    operator = get_backend(backend).normal_operator(
        Samples.checked(states, y, sample_weight=w), keep=keep
    )
    for _ in range(2):  # the second pass reads what the first has kept
        product = operator.normal(C).product
        assert np.allclose(product, (w[:, None] * (h @ C.T)).T @ h, rtol=1e-12, atol=1e-10)
        residual = y - h @ C.T
        found = operator.gradient(C)
        assert np.allclose(found.gradient, (w[:, None] * residual).T @ h, rtol=1e-12, atol=1e-10)
        assert np.allclose(found.squared_error, w @ residual**2, rtol=1e-12)
    factors = operator.kronecker_factors()
    assert np.allclose(factors.diagonal.ravel(), w @ h**2, rtol=1e-12)


@pytest.mark.parametrize("form", ["matrix", "symmetric", "strided"])
def test_sums_have_the_same_bits_for_every_number_of_threads(rng, form):
    states, y = states_of(rng, form, 3000), rng.standard_normal((3000, 2))
    kind = states.kind
    grams = []
    for threads in (1, 2, 5):
        la.set_num_threads(threads)
        moments = la.Moments.of_states(
            kind.memory, kind.query, 2, symmetric=kind.symmetric, backend="cpu"
        )
        grams.append(moments.update(states, y).gram())
    assert all((gram == grams[0]).all() for gram in grams)


def test_mixed_precision_errs_like_float32(rng):
    states, y = states_of(rng, "matrix", 500), rng.standard_normal((500, 1))
    h = features_of(states)
    moments = la.Moments.of_states((3, 4), 5, 1, precision="mixed").update(states, y)
    error = abs(moments.gram() - h.T @ h)
    assert (error <= 300 * 2.0**-24 * abs(h).T @ abs(h)).all()
    assert (error > 2.0**-40 * abs(h).T @ abs(h)).any()  # float32 it is
    assert moments.accumulation.narrow > 0


def test_tokens_and_their_states_have_the_same_moments(rng, backend):
    if backend == "cuda":
        pytest.skip("states are for the host")
    Z, y = rng.standard_normal((400, 7, 4)), rng.standard_normal((400, 2))
    S = Z.transpose(0, 2, 1) @ Z
    by_tokens = la.Moments(4, 2, backend=backend).update(Z, y)
    by_states = la.Moments.of_states((4, 4), 4, 2, symmetric=True, backend=backend)
    by_states.update(la.States(S, Z[:, -1], symmetric=True), y)
    for name in ("gram", "cross"):
        a, b = getattr(by_tokens, name)(), getattr(by_states, name)()
        assert np.allclose(a, b, rtol=0, atol=1e-13 * abs(a).max())


def test_moments_of_states_are_merged_saved_and_pickled(rng, tmp_path):
    states, y = states_of(rng, "symmetric", 200), rng.standard_normal((200, 2))
    whole = la.Moments.of_states((5, 5), 5, 2, symmetric=True).update(states, y)
    halves = [
        la.Moments.of_states((5, 5), 5, 2, symmetric=True).update(states.part(a, b), y[a:b])
        for a, b in ((0, 80), (80, 200))
    ]
    both = halves[0] + halves[1]
    assert np.allclose(both.gram(), whole.gram(), rtol=1e-13)
    both.save(tmp_path / "moments.npz")
    again = la.Moments.load(tmp_path / "moments.npz")
    assert (again.gram() == both.gram()).all()
    assert again.features == both.features
    again.update(states, y)  # it still knows what it takes
    with pytest.raises(ValueError, match=r"^features: moments to merge must agree"):
        la.Moments.of_states(15, 5, 2) + la.Moments.of_states((3, 5), 5, 2)


def test_streams_of_states_are_added_and_resumed(rng, tmp_path):
    states, y = states_of(rng, "matrix", 300), rng.standard_normal((300, 2))
    w = rng.uniform(0.5, 1.0, 300)
    batches = [(states.part(i, i + 60), y[i : i + 60], w[i : i + 60]) for i in range(0, 300, 60)]
    whole = la.Moments.of_states((3, 4), 5, 2).update(states, y, sample_weight=w)
    path = tmp_path / "checkpoint"

    def interrupted():
        yield from batches[:3]
        raise OSError("the connection was lost")

    with pytest.raises(OSError, match="connection was lost"):
        la.Moments.of_states((3, 4), 5, 2).update(
            interrupted(), checkpoint=path, checkpoint_every=0
        )
    resumed = la.Moments.of_states((3, 4), 5, 2).update(iter(batches), checkpoint=path)
    assert np.allclose(resumed.gram(), whole.gram(), rtol=1e-13)
    assert resumed.n_samples == 300
    changed = la.States(states.memory + 1e-9, states.query)
    batches[1] = (changed.part(60, 120), *batches[1][1:])
    with pytest.raises(ValueError, match="batch 1"):
        la.Moments.of_states((3, 4), 5, 2).update(iter(batches), checkpoint=path)
    alone = la.Moments.of_states((3, 4), 5, 0).update(states.part(i, i + 60) for i in (0, 60))
    assert alone.n_samples == 120
