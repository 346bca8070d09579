"""Heads in normal form, and which heads of two layers belong together."""

import numpy as np
import pytest
from conftest import plant
from hypothesis import given, settings
from hypothesis import strategies as st

import linattn_fast as la

# -------------------------------------------------------------------------------------- normal form


def mixed(heads, A):
    """The same layer, by heads mixed with A."""
    return la.Heads(
        np.tensordot(A, heads.V, axes=(1, 0)),
        np.tensordot(np.linalg.inv(A).T, heads.Q, axes=(1, 0)),
    )


@settings(max_examples=40)
@given(d=st.integers(1, 5), H=st.integers(1, 4), d_out=st.integers(1, 5), seed=st.integers(0, 999))
def test_the_normal_form_is_balanced_ordered_and_the_same_layer(d, H, d_out, seed):
    heads = plant(np.random.default_rng(seed), d, H, d_out)
    normal = heads.normalized()
    assert len(normal) == min(H, d * d, d * d_out)
    size = np.linalg.norm(heads.coefficients())
    assert normal.distance(heads) <= 1e-12 * max(size, np.linalg.norm(heads.V) ** 2)
    V, Q = normal.V.reshape(len(normal), -1), normal.Q.reshape(len(normal), -1)
    sizes = np.linalg.norm(V, axis=1)
    np.testing.assert_allclose(V @ V.T, np.diag(sizes**2), atol=1e-12 * sizes[0] ** 2)
    np.testing.assert_allclose(Q @ Q.T, np.diag(sizes**2), atol=1e-12 * sizes[0] ** 2)
    assert (np.diff(sizes) <= 1e-12).all()
    assert (V[np.arange(len(V)), np.abs(V).argmax(axis=1)] > 0).all()


def test_the_normal_form_does_not_see_mixing(rng):
    heads = plant(rng, 4, 3, 4)
    normal = heads.normalized()
    other = mixed(heads, rng.standard_normal((3, 3))).normalized()
    np.testing.assert_allclose(other.V, normal.V, atol=1e-10)
    np.testing.assert_allclose(other.Q, normal.Q, atol=1e-10)


def test_recovered_heads_are_in_normal_form(rng):
    C = plant(rng, 5, 3, 5).coefficients()
    for method in ("minimal", "svd"):
        heads = la.recover_heads(C, 5, method)
        np.testing.assert_allclose(heads.normalized().V, heads.V, atol=1e-9)
        assert heads.normalized().recovery == heads.recovery


def test_the_truth_and_its_recovery_have_one_normal_form(rng):
    truth = plant(rng, 6, 3, 6)  # fewer heads than d and d_out: determined up to mixing
    found = la.recover_heads(truth.coefficients(), 6)
    np.testing.assert_allclose(found.V, truth.normalized().V, atol=1e-10)
    np.testing.assert_allclose(found.Q, truth.normalized().Q, atol=1e-10)


# ----------------------------------------------------------------------------------------- matching


def test_permuted_and_scaled_heads_match(rng):
    a = plant(rng, 4, 3, 2)
    scales = np.array([2.0, -0.5, 3.0])[:, None, None]
    order = [2, 0, 1]
    b = la.Heads((scales * a.V)[order], (a.Q / scales)[order])
    match = la.match_heads(a, b)
    assert [order[g] for g in match.permutation] == [0, 1, 2]
    np.testing.assert_allclose(match.scales, 1 / scales[:, 0, 0])
    assert match.scaled_distance < 1e-14
    assert match.mixed_distance < 1e-14
    assert match.distance < 1e-14


def test_mixed_heads_match_after_mixing_alone(rng):
    a = plant(rng, 4, 3, 4)
    A = rng.standard_normal((3, 3))
    match = la.match_heads(a, mixed(a, A))
    assert match.scaled_distance > 0.1
    assert max(match.value_distance, match.query_distance, match.mixed_distance) < 1e-12
    np.testing.assert_allclose(match.mixing @ A, np.eye(3), atol=1e-10)
    assert match.distance < 1e-12


def test_the_antisymmetric_part_shows_in_the_heads_and_not_in_the_function(rng):
    C = plant(rng, 3, 2, 3).coefficients()
    a = la.recover_heads(C, 3, "svd")
    W = rng.standard_normal((3, 3, 3, 3))  # any (j,k)-antisymmetric addition
    W = (W - W.transpose(0, 2, 1, 3)).reshape(9, 9)
    U, s, R = np.linalg.svd(np.einsum("hx,hy->xy", a.V.reshape(9, 9), a.Q.reshape(9, 9)) + W)
    b = la.Heads((U * s).T.reshape(9, 3, 3), R.reshape(9, 3, 3))
    match = la.match_heads(a, b)
    assert match.mixed_distance > 0.1
    assert match.distance < 1e-12


def test_different_layers_do_not_match(rng):
    a, b = plant(rng, 3, 2, 3), plant(rng, 3, 2, 3)
    match = la.match_heads(a, b)
    assert min(match.scaled_distance, match.mixed_distance, match.distance) > 0.1
    assert "as functions" in str(match)


def test_what_cannot_be_matched_is_named(rng):
    a = plant(rng, 3, 2, 3)
    with pytest.raises(TypeError, match="^b: Heads are needed"):
        la.match_heads(a, 3)
    with pytest.raises(
        ValueError, match=r"^b: as a is Heads\(2 heads, d=3, d_out=3\), so must b be"
    ):
        la.match_heads(a, plant(rng, 3, 1, 3))
