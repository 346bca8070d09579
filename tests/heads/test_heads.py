import pickle

import numpy as np
import pytest
from conftest import EPS, home, plant
from hypothesis import given
from hypothesis import strategies as st
from oracles import loops

import linattn_fast as la

POSITIONS = ["last", "all", "causal"]


def bound(heads, sequence, positions):
    """Rounding bound of the layer: its value on absolute values, times the operations per term."""
    size = loops.outputs(np.abs(heads.V), np.abs(heads.Q), np.abs(sequence), positions)
    steps = 2 * len(sequence) + 2 * heads.d + (len(heads) + 1) * heads.d + 8
    return 2 * steps * EPS * size


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize(
    ("d", "H", "d_out"), [(1, 1, 1), (2, 3, 1), (3, 2, 3), (5, 4, 2), (8, 1, 9)]
)
def test_heads_compute_the_layer(rng, backend, positions, d, H, d_out):
    heads = plant(rng, d, H, d_out)
    Z = rng.standard_normal((35, 6, d))
    y = home(heads(Z, positions, backend=backend))
    assert y.shape == ((35, d_out) if positions == "last" else (35, 6, d_out))
    for z, found in zip(Z, y.reshape(35, -1, d_out), strict=True):
        expected = loops.outputs(heads.V, heads.Q, z, positions)
        assert (np.abs(found - expected) <= bound(heads, z, positions)).all()


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("d", [1, 3, 6, 9])
def test_every_instruction_set_computes_the_layer(rng, isa, positions, d):
    heads = plant(rng, d, 3, 4)
    Z = [rng.standard_normal((n, d)) for n in rng.integers(1, 40, 70)]
    for z, found in zip(Z, heads(Z, positions, backend="cpu"), strict=True):
        expected = loops.outputs(heads.V, heads.Q, z, positions)
        assert (np.abs(np.atleast_2d(found) - expected) <= bound(heads, z, positions)).all()


@pytest.mark.parametrize("n", [8, 9, 15, 16, 17, 23])
@pytest.mark.parametrize("d", [1, 2, 3, 5])
def test_nothing_behind_the_last_token_is_read(rng, isa, n, d):
    """Vectors reach over several short tokens; zero times what lies behind them may be NaN."""
    memory = np.full(n * d + 64, np.nan)
    Z = memory[: n * d].reshape(1, n, d)
    Z[:] = rng.standard_normal(Z.shape)
    heads = plant(rng, d, 2, 1)
    found, expected = (heads(Z, "all", backend=name) for name in ("cpu", "numpy"))
    assert np.allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("positions", POSITIONS)
def test_coefficients_and_heads_compute_the_same_function(rng, backend, positions):
    heads = plant(rng, 4, 2, 3)
    Z = [rng.standard_normal((n, 4)) for n in (1, 7, 3, 20)]
    fit = la.Fit(heads.coefficients(), la.Features(4), heads, None, None)
    predicted = home(fit.predict(Z, positions, backend=backend))
    for z, a, b in zip(Z, predicted, heads(Z, positions), strict=True):
        size = loops.outputs(np.abs(heads.V), np.abs(heads.Q), np.abs(z), positions)
        assert (np.abs(a - b) <= 300 * EPS * size).all()


@pytest.mark.parametrize("positions", ["all", "causal"])
def test_the_output_has_the_form_of_the_input(rng, backend, positions):
    heads = plant(rng, 3, 2, 2)
    sequences = [rng.standard_normal((n, 3)) for n in (4, 1, 6)]
    as_list = home(heads(sequences, positions, backend=backend))
    assert [y.shape for y in as_list] == [(4, 2), (1, 2), (6, 2)]
    flat = heads(np.concatenate(sequences), positions, offsets=[0, 4, 5, 11], backend=backend)
    np.testing.assert_array_equal(np.concatenate(as_list), home(flat))


def test_coefficients_count_the_diagonal_once():
    heads = la.Heads([[[2.0, 3.0]]], [[[5.0, 7.0], [11.0, 13.0]]])
    # pairs (0,0), (0,1), (1,1), each with l = 0, 1
    expected = [[2 * 5, 2 * 7, 2 * 11 + 3 * 5, 2 * 13 + 3 * 7, 3 * 11, 3 * 13]]
    np.testing.assert_array_equal(heads.coefficients(), expected)


@given(d=st.integers(1, 5), H=st.integers(1, 4), d_out=st.integers(1, 5), seed=st.integers(0, 999))
def test_coefficients_times_features_is_the_layer(d, H, d_out, seed):
    rng = np.random.default_rng(seed)
    heads = plant(rng, d, H, d_out)
    z = rng.standard_normal((6, d))
    found = heads.coefficients() @ loops.features(z)
    expected = loops.outputs(heads.V, heads.Q, z, "last")[0]
    assert (np.abs(found - expected) <= d**3 * bound(heads, z, "last")[0]).all()


@given(d=st.integers(1, 6), H=st.integers(1, 4), d_out=st.integers(1, 6), seed=st.integers(0, 999))
def test_svd_recovery_reproduces_the_coefficients(d, H, d_out, seed):
    C = plant(np.random.default_rng(seed), d, H, d_out).coefficients()
    heads = la.recover_heads(C, d, "svd")
    assert len(heads) <= min(d * d, d * d_out)
    assert np.linalg.norm(heads.coefficients() - C) <= 1e-13 * d**2 * np.linalg.norm(C)
    norms = [(np.linalg.norm(V), np.linalg.norm(Q)) for V, Q in heads]
    np.testing.assert_allclose(*np.array(norms).T, rtol=1e-10)  # split evenly
    assert (np.diff([v for v, _ in norms]) <= 1e-12).all()  # the largest first


def test_recovery_is_cut_by_number_and_by_tolerance(rng):
    C = plant(rng, 4, 3, 4).coefficients()
    full = la.recover_heads(C, 4, "svd")
    assert len(la.recover_heads(C, 4, "svd", max_heads=2)) == 2
    sigma = np.array([np.linalg.norm(V) * np.linalg.norm(Q) for V, Q in full])
    kept = la.recover_heads(C, 4, "svd", tol=0.3)
    assert len(kept) == (sigma > 0.3 * sigma[0]).sum()
    assert 1 <= len(kept) < len(full)
    # The SVD is the best approximation of the split coefficients: what is lost is what was cut.
    lost = kept.distance(full)
    assert lost <= np.sqrt(2) * np.linalg.norm(sigma[len(kept) :]) * (1 + 1e-9)


def test_a_zero_layer_has_one_zero_head():
    heads = la.recover_heads(np.zeros((2, 6)), 2, "svd")
    assert len(heads) == 1
    assert not heads.V.any()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((np.zeros((1, 5)), 2), ValueError, r"^coefficients: shape \(d_out, 6\)"),
        ((np.zeros((0, 6)), 2), ValueError, "^coefficients"),
        ((np.zeros(6), 2), ValueError, "^coefficients: an array of 2 axes"),
        ((np.full((1, 6), np.nan), 2), ValueError, "^coefficients: must be finite"),
        ((np.zeros((1, 6), complex), 2), TypeError, "^coefficients: real numbers"),
        ((np.zeros((1, 6)), 2.0), TypeError, "^d: a whole number"),
        ((np.zeros((1, 6)), 2, "magic"), ValueError, "^method"),
        ((np.zeros((1, 6)), 2, "svd", 0), ValueError, "^max_heads"),
        ((np.zeros((1, 6)), 2, "svd", None, -1), ValueError, "^tol"),
    ],
)
def test_wrong_arguments_of_recovery_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        la.recover_heads(*arguments)


def test_heads_behave_like_a_sequence(rng):
    heads = plant(rng, 3, 4, 2)
    assert len(heads) == len(list(heads)) == 4
    V, Q = heads[1]
    np.testing.assert_array_equal(V, heads.V[1])
    np.testing.assert_array_equal(Q, heads.Q[1])
    assert len(heads[1:3]) == 2
    with pytest.raises(IndexError, match="index 4 is out of bounds"):
        heads[4]
    with pytest.raises(ValueError, match="read-only"):
        heads.V[0] = 0
    assert repr(heads) == "Heads(4 heads, d=3, d_out=2)"


def test_distance_is_zero_for_the_same_function(rng):
    heads = plant(rng, 3, 2, 2)
    swapped = la.Heads(3 * heads.V[::-1], heads.Q[::-1] / 3)
    assert heads.distance(swapped) <= 1e-13
    other = plant(rng, 3, 2, 2)
    assert heads.distance(other) == pytest.approx(
        np.linalg.norm(heads.coefficients() - other.coefficients())
    )
    with pytest.raises(ValueError, match="^other: heads of d=3, d_out=2 are needed, got d=4"):
        heads.distance(plant(rng, 4, 2, 2))
    with pytest.raises(TypeError, match="^other: Heads"):
        heads.distance("heads")


def test_wrong_heads_are_named():
    with pytest.raises(ValueError, match=r"^Q: shape \(1, 2, 2\) is needed"):
        la.Heads(np.zeros((1, 1, 2)), np.zeros((2, 2, 2)))
    with pytest.raises(ValueError, match="^V: an array of 3 axes"):
        la.Heads(np.zeros((1, 2)), np.zeros((1, 2, 2)))
    with pytest.raises(ValueError, match="^Q: must be finite"):
        la.Heads(np.zeros((1, 1, 2)), np.full((1, 2, 2), np.inf))
    with pytest.raises(TypeError, match="^V: real numbers"):
        la.Heads(np.zeros((1, 1, 2), complex), np.zeros((1, 2, 2)))
    with pytest.raises(ValueError, match="^positions"):
        la.Heads(np.zeros((1, 1, 2)), np.zeros((1, 2, 2)))(np.zeros((1, 1, 2)), "first")


def generate_by_loops(heads, sequence, steps, decimals):
    for _ in range(steps):
        y = loops.layer(heads.V, heads.Q, sequence, sequence[-1])
        sequence = np.vstack([sequence, y if decimals is None else np.round(y, decimals)])
    return sequence


@pytest.mark.parametrize("decimals", [None, 0, 2])
@pytest.mark.parametrize("N", [1, 40])
def test_generate_appends_outputs_as_tokens(rng, backend, decimals, N):
    heads = plant(rng, 3, 2, 3)
    Z0 = 0.4 * rng.standard_normal((N, 5, 3))
    Z = home(heads.generate(Z0, 4, round=decimals, backend=backend))
    assert Z.shape == (N, 9, 3)
    for z0, z in zip(Z0, Z, strict=True):
        np.testing.assert_allclose(
            z, generate_by_loops(heads, z0, 4, decimals), rtol=1e-8, atol=1e-10
        )


def test_generate_takes_one_prompt_and_zero_steps(rng, backend):
    heads = plant(rng, 3, 1, 3)
    z0 = rng.standard_normal((4, 3))
    np.testing.assert_array_equal(home(heads.generate(z0, 0, backend=backend)), z0)
    assert heads.generate(z0.astype(np.float32), 2, backend=backend).shape == (6, 3)
    assert heads.generate(z0.tolist(), 2, backend=backend).shape == (6, 3)
    copied = pickle.loads(pickle.dumps(heads))
    np.testing.assert_array_equal(copied.V, heads.V)
    assert not copied.V.flags.writeable


def test_generate_reports_what_cannot_be(rng, backend):
    heads = plant(rng, 3, 1, 3)
    with pytest.raises(ValueError, match="d_out = d is needed"):
        plant(rng, 3, 1, 2).generate(np.zeros((2, 3)), 1)
    with pytest.raises(ValueError, match="^steps"):
        heads.generate(np.zeros((2, 3)), -1)
    with pytest.raises(ValueError, match="^round"):
        heads.generate(np.zeros((2, 3)), 1, round=99)
    with pytest.raises(ValueError, match="^Z0: must be finite"):
        heads.generate(np.full((2, 3), np.nan), 1)
    with pytest.raises(ValueError, match="^Z0: prompts of one length"):
        heads.generate([np.zeros((2, 3)), np.zeros((3, 3))], 1)
    with pytest.raises(MemoryError, match="^steps: "):
        heads.generate(np.zeros((2, 3)), 10**20)
    with pytest.raises(ValueError, match="^Z0: the generated tokens overflow"):  # cubic growth
        heads.generate(10 * np.ones((2, 3)), 50, backend=backend)
