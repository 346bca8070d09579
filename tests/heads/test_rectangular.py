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


def test_coefficients_times_features_is_the_layer(rng):
    """Also of a symmetric memory whose queries have another size, where (j, k) and (k, j) add."""
    M, c = rng.standard_normal((30, 4, 4)), rng.standard_normal((30, 6))
    M = M + M.transpose(0, 2, 1)
    heads = plant(rng, 3, 2, 4, 4, 6)
    y = np.einsum("haj,njk,hkl,nl->na", heads.V, M, heads.Q, c, optimize=True)
    j, k = np.triu_indices(4)
    for symmetric, s in ((False, M.reshape(30, -1)), (None, M.reshape(30, -1)), (True, M[:, j, k])):
        h = np.einsum("nu,nl->nul", s, c).reshape(30, -1)
        assert np.allclose(
            h @ heads.coefficients(symmetric).T, y, rtol=0, atol=1e-12 * abs(y).max()
        )


def test_distance_is_between_functions(rng):
    """Whatever the numbers of heads, their order, scales and mixing."""
    heads, other = plant(rng, 2, 3, 4, 2, 5), plant(rng, 3, 3, 4, 2, 5)
    W, X = (np.einsum("haj,hkl->ajkl", each.V, each.Q) for each in (heads, other))
    assert np.isclose(heads.distance(other), np.linalg.norm(W - X), rtol=1e-14)
    A = np.array([[1.0, 2.0], [0.5, -1.0]])
    mixed = la.Heads(np.tensordot(A, heads.V, 1), np.tensordot(np.linalg.inv(A).T, heads.Q, 1))
    assert heads.distance(mixed) < 1e-13 * np.linalg.norm(W)
    # On a symmetric memory only the symmetric part counts, pairs (j, k) and (k, j) together
    square, another = plant(rng, 2, 3, 4, 4, 5), plant(rng, 1, 3, 4, 4, 5)
    W, X = (np.einsum("haj,hkl->ajkl", each.V, each.Q) for each in (square, another))
    j, k = np.triu_indices(4)
    D = (W - X)[:, j, k] + (W - X)[:, k, j]
    D[:, j == k] /= 2  # the diagonal counts once
    assert np.isclose(square.distance(another, symmetric=True), np.linalg.norm(D), rtol=1e-14)


def test_rectangular_heads_are_matched(rng):
    heads = plant(rng, 3, 2, 4, 3, 5)
    swapped = la.Heads(-2 * heads.V[::-1], heads.Q[::-1] / -2)
    match = la.match_heads(heads, swapped)
    assert match.permutation == (2, 1, 0)
    assert np.allclose(match.scales, -0.5, rtol=1e-14)
    assert max(match.scaled_distance, match.mixed_distance, match.distance) < 1e-14
    assert la.match_heads(heads, heads.normalized()).mixed_distance < 1e-14


def test_rectangular_heads_behave_like_a_sequence(rng):
    heads = plant(rng, 3, 2, 4, 3, 5)
    (V, Q), some = heads[1], heads[1:]
    assert (heads.V[1] == V).all()
    assert (heads.Q[1] == Q).all()
    assert repr(some) == "Heads(2 heads, d_v=4, d_k=3, d_q=5, d_out=2)"
    assert (heads.Q[1:] == some.Q).all()
    assert [q.shape for _, q in heads] == [(3, 5)] * 3


@pytest.mark.parametrize("kind", ["matrix", "rows", "symmetric"])
@pytest.mark.parametrize("method", ["minimal", "svd"])
def test_files_keep_heads_of_every_kind_of_states(rng, tmp_path, kind, method):
    M, c = (
        rng.standard_normal((200, 3, 3 if kind == "symmetric" else 2)),
        rng.standard_normal((200, 5)),
    )
    if kind == "symmetric":
        M = M + M.transpose(0, 2, 1)
    if kind == "rows":
        M = M[..., 0]
    states = la.States(M, c, symmetric=kind == "symmetric")
    truth = plant(rng, 2, 2, 3, states.kind.matrix[1], 5)
    fit = la.fit(states, truth(states), heads=method)
    fit.save(tmp_path / "fit.npz")
    again = la.load(tmp_path / "fit.npz").heads
    assert (again.V == fit.heads.V).all()
    assert (again.Q == fit.heads.Q).all()
    assert repr(again) == repr(fit.heads)
    assert again.recovery == fit.heads.recovery
    assert (again(states) == fit.heads(states)).all()
    assert np.allclose(again(states), truth(states), rtol=0, atol=1e-9)
    assert again.distance(truth, symmetric=states.symmetric) < 1e-9


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
    sizes = "d_v=4, d_k=3, d_q=5, d_out=3"
    for other in ((2, 3, 4, 3, 4), (2, 3, 4, 2, 5), (2, 3, 5, 3, 5), (2, 2, 4, 3, 5)):
        with pytest.raises(ValueError, match=f"^other: heads of {sizes} are needed, got d_v="):
            heads.distance(plant(rng, *other))
        with pytest.raises(ValueError, match=rf"^b: as a is Heads\(2 heads, {sizes}\), so must b"):
            la.match_heads(heads, plant(rng, *other))
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
