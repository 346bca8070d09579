"""Parameters of other attention layers as heads, and back; without any other library."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import EPS, plant
from hypothesis import given
from hypothesis import strategies as st

import linattn_fast as la


def attention(Z, W, scale):
    """Linear attention written out: queries, keys and values of every head, token by token."""
    y = np.zeros((*Z.shape[:2], W["W_O"].shape[1]))
    for i, tokens in enumerate(Z):
        for t, z in enumerate(tokens):
            for W_Q, W_K, W_V, W_O in zip(*(W[f"W_{x}"] for x in "QKVO"), strict=True):
                for z_s in tokens:
                    y[i, t] += scale * (W_O @ W_V @ z_s) * ((W_K @ z_s) @ (W_Q @ z))
    return y


def projections(rng, H=3, d=4, d_k=2, d_v=3, d_out=5):
    shapes = {"W_Q": (H, d_k, d), "W_K": (H, d_k, d), "W_V": (H, d_v, d), "W_O": (H, d_out, d_v)}
    return {name: rng.standard_normal(shape) for name, shape in shapes.items()}


def side_by_side(W):
    """Heads along the outputs of W_Q, W_K and W_V, and along the inputs of W_O."""
    flat = {name: np.concatenate(each) for name, each in W.items() if name != "W_O"}
    return {**flat, "W_O": np.concatenate(W["W_O"], axis=1)}


def transposed(W):
    return {name: each.swapaxes(-1, -2) for name, each in W.items()}


@pytest.mark.parametrize("over_heads", ["sum", "mean"])
@pytest.mark.parametrize(
    ("scale", "factor"),
    [(0.5, 0.5), ("1/sqrt(d)", 4**-0.5), ("1/sqrt(d_k)", 2**-0.5), ("1/n", 1 / 6)],
)
@pytest.mark.parametrize("vectors", ["columns", "rows"])
def test_every_layout_computes_the_same(rng, vectors, scale, factor, over_heads):
    W = projections(rng)
    Z = rng.standard_normal((2, 6, 4))
    expected = attention(Z, W, factor / (3 if over_heads == "mean" else 1))
    options = {"scale": scale, "n": 6 if scale == "1/n" else None}
    options |= {"over_heads": over_heads, "vectors": vectors}
    turn = transposed if vectors == "rows" else dict
    V, Q = W["W_O"] @ W["W_V"], W["W_K"].swapaxes(1, 2) @ W["W_Q"]
    flat = side_by_side(W)
    given = {
        "a matrix for each head": (turn(W), {}),
        "side by side": (turn(flat), {"num_heads": 3}),
        "one of two layers": (
            turn({name: np.stack([0 * w, w]) for name, w in W.items()}),
            {"layer": 1},
        ),
        "layers, side by side": (
            turn({name: np.stack([w, 0 * w]) for name, w in flat.items()}),
            {"layer": 0, "num_heads": 3},
        ),
        "values multiplied out": (turn({"W_Q": W["W_Q"], "W_K": W["W_K"], "V": V}), {}),
    }
    if scale != "1/sqrt(d_k)":
        given["both multiplied out"] = (turn({"P": V, "Q": Q}), {})
        given["queries multiplied out"] = (turn({"W_KQ": Q, "W_O": W["W_O"], "W_V": W["W_V"]}), {})
    size = np.abs(expected).max()
    for name, (weights, more) in given.items():
        heads = la.Heads.from_weights(weights, la.Layout(**options, **more))
        np.testing.assert_allclose(
            heads(Z, "all"), expected, rtol=0, atol=1e-12 * size, err_msg=name
        )


@pytest.mark.parametrize("vectors", ["columns", "rows"])
def test_queries_keys_and_values_on_top_of_each_other(rng, vectors):
    W = projections(rng, d_k=2, d_v=2)
    flat = side_by_side(W)
    in_proj = np.concatenate([flat["W_Q"], flat["W_K"], flat["W_V"]])
    weights = {"in_proj_weight": in_proj, "out_proj.weight": flat["W_O"]}
    if vectors == "rows":
        weights = transposed(weights)
    Z = rng.standard_normal((2, 3, 4))
    found = la.Heads.from_weights(weights, la.Layout(num_heads=3, vectors=vectors))(Z, "all")
    np.testing.assert_allclose(found, attention(Z, W, 1.0), rtol=1e-11, atol=1e-11)


def without_output(Z, W):
    """Linear attention of queries, keys and values alone: outputs of the heads side by side."""
    y = []
    for W_Q, W_K, W_V in zip(*(W[f"W_{x}"] for x in "QKV"), strict=True):
        scores = np.einsum("nti,nsi->nts", Z @ W_Q.T, Z @ W_K.T)  # (N, queries, keys)
        y.append(scores @ (Z @ W_V.T))
    return np.concatenate(y, axis=2)  # (N, n, H d_v)


@pytest.mark.parametrize("vectors", ["columns", "rows"])
@pytest.mark.parametrize(("H", "d_k", "d_v"), [(1, 4, 4), (1, 2, 3), (3, 2, 3), (2, 2, 2)])
def test_a_layer_without_an_output_matrix_has_its_heads_side_by_side(rng, vectors, H, d_k, d_v):
    W = projections(rng, H=H, d_k=d_k, d_v=d_v)
    del W["W_O"]
    flat = {name: np.concatenate(each) for name, each in W.items()}
    fused = {"W_V": W["W_V"], "Q": W["W_K"].swapaxes(1, 2) @ W["W_Q"]}
    given = [(W, None), (flat, H), (fused, None)]
    if d_k == d_v:
        in_proj = np.concatenate([flat["W_Q"], flat["W_K"], flat["W_V"]])
        given.append(({"in_proj_weight": in_proj}, H))
    Z = rng.standard_normal((2, 6, 4))
    expected = 0.5 * without_output(Z, W)
    for weights, number in given:
        turned = transposed(weights) if vectors == "rows" else weights
        layout = la.Layout(vectors=vectors, num_heads=number, scale=0.5)
        heads = la.Heads.from_weights(turned, layout)
        assert heads.V.shape == (H, H * d_v, 4)
        np.testing.assert_allclose(
            heads(Z, "all"), expected, rtol=0, atol=1e-12 * np.abs(expected).max()
        )
        for h in range(H):  # the rows of W_V, untouched but for the scale, and zeros
            own = slice(h * d_v, (h + 1) * d_v)
            np.testing.assert_array_equal(heads.V[h, own], 0.5 * W["W_V"][h])
            assert np.count_nonzero(heads.V[h]) == d_v * 4
    # The same layer with W_O written out
    places = {"W_O": np.split(np.eye(H * d_v), H, axis=1)}
    written = la.Heads.from_weights({**W, **places}, la.Layout(scale=0.5))
    assert written.distance(heads) <= 1e-13 * np.linalg.norm(written.coefficients())


def test_a_mean_over_heads_that_lie_side_by_side_is_refused(rng):
    W = projections(rng, H=2)
    del W["W_O"]
    mean = la.Layout(over_heads="mean")
    with pytest.raises(ValueError, match="^over_heads: 'mean' needs W_O; .* 2 heads lie side"):
        la.Heads.from_weights(W, mean)
    one = {name: each[:1] for name, each in W.items()}
    assert la.Heads.from_weights(one, mean).distance(la.Heads.from_weights(one)) == 0


def test_one_fused_head_needs_no_axis_for_heads(rng):
    V, Q = rng.standard_normal((2, 3)), rng.standard_normal((3, 3))
    heads = la.Heads.from_weights({"V": V, "Q": Q})
    np.testing.assert_array_equal(heads.V[0], V)
    np.testing.assert_array_equal(heads.Q[0], Q)


@given(
    H=st.integers(1, 3),
    d=st.integers(1, 4),
    d_out=st.integers(1, 3),
    vectors=st.sampled_from(["columns", "rows"]),
    over_heads=st.sampled_from(["sum", "mean"]),
    form=st.sampled_from(["fused", "separate", "in_proj"]),
    flat=st.booleans(),
    scale=st.sampled_from([2.0, "1/sqrt(d)", "1/n"]),
)
def test_there_and_back(H, d, d_out, vectors, over_heads, form, flat, scale):
    heads = plant(np.random.default_rng(H + 5 * d + 25 * d_out), d, H, d_out)
    layout = la.Layout(
        vectors=vectors,
        over_heads=over_heads,
        scale=scale,
        n=7 if scale == "1/n" else None,
        num_heads=H if flat or form == "in_proj" else None,
    )
    back = la.Heads.from_weights(heads.to_weights(layout, form), layout)
    # Only the scale rounds, once on either way; products with ones do not.
    np.testing.assert_allclose(back.V, heads.V, rtol=4 * np.finfo(float).eps)
    np.testing.assert_array_equal(back.Q, heads.Q)


def apart(rng, H, d_out):
    """Heads of a layer on states, with d_v = 4, d_k = 2 and d_q = 5."""
    return la.Heads(rng.standard_normal((H, d_out, 4)), rng.standard_normal((H, 2, 5)))


@pytest.mark.parametrize("H", [1, 3])
@pytest.mark.parametrize("vectors", ["columns", "rows"])
@pytest.mark.parametrize("over_heads", ["sum", "mean"])
@pytest.mark.parametrize(
    ("form", "scale"),
    [
        *((form, scale) for form in ("separate", "side by side") for scale in (2.0, "1/sqrt(d_k)")),
        ("fused", "1/n"),  # of a product alone d_k is not known
    ],
)
def test_rectangular_heads_there_and_back(rng, H, vectors, over_heads, form, scale):
    heads = apart(rng, H, 3)
    number = H if form == "side by side" else None
    n = 7 if scale == "1/n" else None
    layout = la.Layout(vectors=vectors, over_heads=over_heads, scale=scale, n=n, num_heads=number)
    weights = heads.to_weights(layout, "fused" if form == "fused" else "separate")
    back = la.Heads.from_weights(weights, layout)
    # Only the scale rounds, once on either way; products with ones do not.
    np.testing.assert_allclose(back.V, heads.V, rtol=4 * EPS)
    np.testing.assert_array_equal(back.Q, heads.Q)


@pytest.mark.parametrize("number", [None, 2])
def test_weights_of_rectangular_heads_are_cross_attention(rng, number):
    """Values a (n, 4) and keys b (n, 2) of one sequence, the query c (5,) of another."""
    heads = apart(rng, 2, 3)
    a, b, c = (rng.standard_normal(shape) for shape in ((6, 4), (6, 2), (1, 5)))
    layout = la.Layout(num_heads=number, scale="1/sqrt(d_k)")
    W = heads.to_weights(layout)
    if number is not None:
        parts = {name: np.split(each, 2) for name, each in W.items() if name != "W_O"}
        W = {**parts, "W_O": np.split(W["W_O"], 2, axis=1)}
    y = np.zeros(3)
    for W_Q, W_K, W_V, W_O in zip(*(W[f"W_{x}"] for x in "QKVO"), strict=True):
        for value, key in zip(a, b, strict=True):
            y += W_O @ W_V @ value * ((W_K @ key) @ (W_Q @ c[0])) / np.sqrt(2)
    states = la.States((a.T @ b)[None], c)
    np.testing.assert_allclose(heads(states)[0], y, rtol=0, atol=1e-12 * np.abs(y).max())


def test_weights_are_copies_and_nothing_is_modified(rng):
    heads = plant(rng, 3, 2, 2)
    for form in ("fused", "separate"):
        for array in heads.to_weights(form=form).values():
            array[:] = 1  # can be written to, and shares nothing
    assert not (heads.V == 1).any()
    W = projections(rng)
    copies = {name: array.copy() for name, array in W.items()}
    la.Heads.from_weights(W, la.Layout(scale=2.0))
    assert all((W[name] == copies[name]).all() for name in W)


def of(**arrays):
    return lambda rng: la.Heads.from_weights(
        {name: np.ones(shape) for name, shape in arrays.items()}
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda rng: la.Layout(vectors="both"),
            "^vectors: must be one of columns, rows, got 'both'",
        ),
        (lambda rng: la.Layout(over_heads="max"), "^over_heads: must be one of"),
        (lambda rng: la.Layout(scale="1/d"), "^scale: must be one of"),
        (lambda rng: la.Layout(scale=0), "^scale: a finite number that is not zero"),
        (lambda rng: la.Layout(scale="1/n"), "^n: the scale '1/n' needs"),
        (lambda rng: la.Layout(n=3), "^n: the scale '1/n' needs"),
        (lambda rng: la.Layout(num_heads=0), "^num_heads: must be at least 1"),
        (lambda rng: la.Layout(names={"K": "k"}), "^names: must be one of"),
        (of(Q=(3, 3)), "^weights: 'V' .* are needed; got 'Q'$"),
        (of(V=(3, 3), P=(3, 3), Q=(3, 3)), "^weights: 'V' was found more than once"),
        (of(V=(3, 3), Q=(3, 3), norm=(3,)), "^weights: the parameter 'norm' is not known"),
        (of(V=(3, 3), Q=(3, 3), out_bias=(3,)), "^weights: .* 'out_bias' is a bias"),
        (of(V=(2, 3, 3), Q=(1, 3, 3)), "^weights: the values are of 2 heads, and the queries of 1"),
        (of(V=(1, 1, 2, 3, 3), Q=(3, 3)), "^V: 2 or 3 axes are needed"),
        (of(V=(1, 3, 3), W_Q=(6, 3), W_K=(6, 3)), r"^num_heads: W_Q has two axes, shape \(6, 3\)"),
        (of(V=(2, 3, 3), W_Q=(2, 2, 3), W_K=(2, 1, 3)), "^W_K, W_Q: as many heads"),
        (
            lambda rng: la.Heads.from_weights(
                {"V": np.ones((2, 3, 3)), "W_Q": np.ones((5, 3)), "W_K": np.ones((5, 3))},
                la.Layout(num_heads=2),
            ),
            "^num_heads: 2 heads cannot lie side by side in W_Q",
        ),
        (
            lambda rng: la.Heads.from_weights(
                {"V": np.ones((3, 3)), "Q": np.ones((3, 3))}, la.Layout(num_heads=2)
            ),
            "^V: 2 heads need an axis of their own",
        ),
        (
            lambda rng: la.Heads.from_weights(
                {"V": np.ones((1, 3, 3)), "Q": np.ones((1, 3, 3))}, la.Layout(scale="1/sqrt(d_k)")
            ),
            "^scale: '1/sqrt.d_k.' needs W_Q",
        ),
        (
            lambda rng: la.Heads.from_weights(
                {"in_proj": np.ones((4, 3)), "W_O": np.ones((3, 1))}, la.Layout(num_heads=1)
            ),
            "^in_proj: W_Q, W_K and W_V on top",
        ),
        (
            lambda rng: la.Heads.from_weights({"a": 1}, la.Layout(names={"V": "b"})),
            "^names: 'V' is called 'b', and there is no such parameter, only 'a'",
        ),
        (
            lambda rng: la.Heads.from_weights(
                {"V": np.ones((1, 3, 4)), "Q": np.ones((1, 3, 3))}, la.Layout(scale="1/sqrt(d)")
            ),
            "^scale: '1/sqrt.d.' is of the coordinates of a token, and here queries, keys and",
        ),
        (
            lambda rng: apart(rng, 2, 3).to_weights(la.Layout(num_heads=2), "in_proj"),
            "^form: 'in_proj' is one matrix .* d_q = 5, d_k = 2 and d_v = 4; take 'separate'$",
        ),
        (
            lambda rng: apart(rng, 2, 3).to_weights(la.Layout(scale="1/sqrt(d)")),
            "^scale: '1/sqrt.d.' is of the coordinates of a token",
        ),
        (lambda rng: plant(rng, 2, 2, 1).to_weights(form="other"), "^form: must be one of"),
        (lambda rng: plant(rng, 2, 2, 1).to_weights(form="in_proj"), "^num_heads: 2 is needed"),
        (lambda rng: plant(rng, 2, 2, 1).to_weights(la.Layout(layer=0)), "^layer: heads are one"),
        (lambda rng: plant(rng, 2, 2, 1).to_weights(la.Layout(num_heads=3)), "^num_heads: these"),
    ],
)
def test_errors_say_what_is_needed(rng, call, message):
    with pytest.raises(ValueError, match=message):
        call(rng)
    with pytest.raises(TypeError, match="^V: real numbers are needed"):
        la.Heads.from_weights({"V": [["a"]], "Q": [[1.0]]})
    with pytest.raises(TypeError, match="^weights: a mapping of names to arrays .* got list"):
        la.Heads.from_weights([1.0])
    with pytest.raises(TypeError, match="^layout: a Layout is needed, got dict"):
        la.Heads.from_weights({}, {"num_heads": 2})
