"""Heads of layers on states: the fewest are a rank, and everything of heads that makes sense."""

import pickle

import numpy as np
import pytest
from conftest import EPS

import linattn_fast as la


def plant(rng, H, d_out, d_v, d_k, d_q):
    return la.Heads(rng.standard_normal((H, d_out, d_v)), rng.standard_normal((H, d_k, d_q)))


@pytest.mark.parametrize("sizes", [(3, 5, 4, 6), (1, 6, 2, 3), (4, 1, 7, 1), (5, 2, 2, 2)])
@pytest.mark.parametrize("H", [1, 2, 3])
def test_planted_heads_are_found_in_their_number(rng, sizes, H):
    d_out, d_v, d_k, d_q = sizes
    most = min(d_out * d_v, d_k * d_q)
    truth = plant(rng, H, *sizes)
    C = truth.coefficients(symmetric=False)
    by_hand = np.einsum("haj,hkl->ajkl", truth.V, truth.Q)
    assert np.allclose(C, by_hand.reshape(d_out, -1), atol=1e-14)
    heads = la.recover_heads(C, (d_v, d_k, d_q))
    assert len(heads) == min(H, most)
    assert heads.recovery.at_least == len(heads)
    assert heads.recovery.residual < 100 * EPS
    assert heads.distance(truth, symmetric=False) < 1e-12 * np.linalg.norm(C)
    # One head fewer leaves what the last singular value says
    sigma = np.linalg.svd(C.reshape(d_out * d_v, d_k * d_q), compute_uv=False)
    assert np.isclose(heads.recovery.fewer_leave, sigma[len(heads) - 1] / np.linalg.norm(sigma))
    normal = heads.normalized()
    assert np.allclose(normal.V, heads.V)
    assert np.allclose(normal.Q, heads.Q)


def test_fewer_heads_are_the_nearest(rng):
    truth = plant(rng, 4, 3, 4, 3, 5)
    C = truth.coefficients()
    few = la.recover_heads(C, (4, 3, 5), max_heads=2)
    sigma = np.linalg.svd(C.reshape(12, 15), compute_uv=False)
    left = np.sqrt((sigma[2:] ** 2).sum())
    assert len(few) == 2
    assert np.isclose(np.linalg.norm(few.coefficients() - C), left)
    assert np.isclose(few.recovery.residual, left / np.linalg.norm(C))
    assert few.recovery.at_least == 4
    assert "4 are needed" in few.recovery.reason
    assert len(la.recover_heads(C, (4, 3, 5), "svd")) == 4
    assert len(la.recover_heads(C, (4, 3, 5), tol=0.9)) == 1


def test_a_zero_layer_has_one_zero_head():
    heads = la.recover_heads(np.zeros((2, 24)), (4, 3, 2))
    assert (heads.V.shape, heads.Q.shape) == ((1, 2, 4), (1, 3, 2))
    assert not heads.V.any()


def test_coefficients_of_any_size_are_recovered(rng):
    truth = plant(rng, 2, 3, 4, 3, 5)
    for scale in (1e-150, 1e150):
        heads = la.recover_heads(truth.coefficients() * scale, (4, 3, 5))
        assert len(heads) == 2
        assert heads.recovery.residual < 100 * EPS


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
@pytest.mark.parametrize("form", ["float64", "float32", "strided", "symmetric"])
def test_heads_are_applied_to_states(rng, backend, form):
    square = form == "symmetric"
    M, c = rng.standard_normal((900, 4, 4 if square else 3)), rng.standard_normal((900, 5))
    if square:
        M = M + M.transpose(0, 2, 1)
    if form == "float32":
        M, c = M.astype(np.float32), c.astype(np.float32)
    if form == "strided":
        M, c = M[::-1, ::-1], c[:, ::-1]
    truth = plant(rng, 3, 2, 4, M.shape[2], 5)
    given = truth.V, M.astype(float), truth.Q, c.astype(float)
    y = np.einsum("haj,njk,hkl,nl->na", *given, optimize=True)
    size = np.einsum("haj,njk,hkl,nl->na", *map(np.abs, given), optimize=True)
    found = truth(la.States(M, c, symmetric=square), backend=backend)
    assert (abs(found - y) <= 60 * EPS * size).all()


def test_square_heads_apply_to_tokens_and_to_states(rng):
    heads = plant(rng, 2, 3, 4, 4, 4)
    Z = rng.standard_normal((10, 6, 4))
    S = Z.transpose(0, 2, 1) @ Z
    assert np.allclose(heads(Z), heads(la.States(S, Z[:, -1], symmetric=True)))
    assert np.allclose(heads(Z), heads(la.States(S, Z[:, -1])))
    assert heads.coefficients().shape == (3, 40)
    assert heads.coefficients(symmetric=True).shape == (3, 40)
    assert heads.coefficients(symmetric=False).shape == (3, 64)
    assert repr(heads) == "Heads(2 heads, d=4, d_out=3)"


def test_what_rectangular_heads_cannot_do_is_refused(rng):
    heads = plant(rng, 2, 3, 4, 3, 5)
    assert repr(heads) == "Heads(2 heads, d_v=4, d_k=3, d_q=5, d_out=3)"
    assert (pickle.loads(pickle.dumps(heads)).Q == heads.Q).all()
    for name, attempt in (
        ("Z", lambda: heads(np.ones((2, 3, 4)))),
        ("generate", lambda: heads.generate(np.ones((2, 4)), 1)),
        ("to_torch", lambda: heads.to_torch(states=False)),
    ):
        with pytest.raises(ValueError, match=rf"^{name}: it is for layers on tokens.* 4 x 3 and"):
            attempt()
    with pytest.raises(ValueError, match=r"^Z: States of memory 4 x 3 and query 5 are needed"):
        heads(la.States(np.ones((2, 3, 4)), np.ones((2, 5))))
    with pytest.raises(ValueError, match=r"^symmetric: a memory 4 x 3 cannot be symmetric"):
        heads.coefficients(symmetric=True)
    with pytest.raises(ValueError, match=r"^other: heads like"):
        heads.distance(plant(rng, 2, 3, 4, 3, 4))
    with pytest.raises(ValueError, match=r"^Q: shape \(2, 4, 4\) is needed .* \(2, d_k, d_q\)"):
        la.Heads(np.ones((2, 3, 4)), np.ones((1, 3, 5)))
    with pytest.raises(ValueError, match=r"^Q: d_k and d_q must be at least 1"):
        la.Heads(np.ones((2, 3, 4)), np.ones((2, 0, 5)))
    with pytest.raises(ValueError, match=r"^d: a number, or \(d_v, d_k, d_q\)"):
        la.recover_heads(np.ones((1, 6)), (2, 3))
    with pytest.raises(
        ValueError, match=r"^coefficients: shape \(d_out, 24\) is needed for states"
    ):
        la.recover_heads(np.ones((1, 6)), (2, 3, 4))
