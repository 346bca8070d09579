"""Layers on states as modules of PyTorch, with heads and with coefficients."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from conftest import EPS, library

import linattn_fast as la

torch = library("torch")


def planted(rng, H, d_out, d_v, d_k, d_q):
    return la.Heads(rng.standard_normal((H, d_out, d_v)), rng.standard_normal((H, d_k, d_q)))


def drawn(rng, *shapes):
    return [torch.tensor(rng.standard_normal(shape)) for shape in shapes]


SIZES = [(2, 3, 4, 3, 5), (1, 1, 1, 1, 1), (3, 2, 6, 1, 4), (0, 2, 3, 4, 2), (2, 2, 3, 3, 3)]
"""H, d_out, d_v, d_k and d_q."""


@pytest.mark.parametrize("sizes", SIZES)
def test_the_module_of_heads_computes_the_layer(rng, sizes):
    H, d_out, d_v, d_k, d_q = sizes
    heads = planted(rng, *sizes)
    module = heads.to_torch(states=True)
    M, c = rng.standard_normal((7, d_v, d_k)), rng.standard_normal((7, d_q))
    given = heads.V, M, heads.Q, c
    expected = np.einsum("haj,njk,hkl,nl->na", *given)
    size = np.einsum("haj,njk,hkl,nl->na", *map(np.abs, given))
    bound = 2 * (d_v + d_k + d_q + H + 4) * EPS * size
    found = module(torch.tensor(M), torch.tensor(c)).detach().numpy()
    assert found.shape == (7, d_out)
    assert (np.abs(found - expected) <= bound).all()
    one = module(torch.tensor(M[0]), torch.tensor(c[0])).detach().numpy()  # no axis of states
    assert (np.abs(one - expected[0]) <= bound[0]).all()
    if d_k == 1:  # a memory without the form of a matrix
        rows = module(torch.tensor(M[..., 0]), torch.tensor(c)).detach().numpy()
        np.testing.assert_array_equal(rows, found)


def fit_of(C, states):
    """A fit without heads that has the coefficients C on states like these."""
    features = la.Moments.of_states(
        states.kind.memory, states.kind.query, 1, symmetric=states.symmetric
    ).features
    return la.Fit(C, features, None, None, None)


@pytest.mark.parametrize("kind", ["matrix", "rows", "symmetric"])
def test_the_module_of_coefficients_computes_the_layer(rng, kind):
    M, c = rng.standard_normal((9, 4, 4 if kind == "symmetric" else 3)), rng.standard_normal((9, 5))
    if kind == "symmetric":
        M = M + M.transpose(0, 2, 1)
    if kind == "rows":
        M = M[..., 0]
    states = la.States(M, c, symmetric=kind == "symmetric")
    C = rng.standard_normal((2, states.kind.entries * 5))
    fit = fit_of(C, states)
    module = fit.to_torch()
    assert [name for name, _ in module.named_parameters()] == ["coefficients"]
    expected = fit.predict(states)
    size = fit_of(np.abs(C), states).predict(
        la.States(np.abs(M), np.abs(c), symmetric=states.symmetric)
    )
    found = module(torch.tensor(M), torch.tensor(c)).detach().numpy()
    assert (np.abs(found - expected) <= 2 * (C.shape[1] + 3) * EPS * size).all()
    if kind == "rows":
        column = module(torch.tensor(M[..., None]), torch.tensor(c))
        np.testing.assert_array_equal(column.detach(), found)


@pytest.mark.parametrize("symmetric", [False, True])
def test_a_fit_on_states_has_a_module_on_states(rng, symmetric):
    """Also where d_v = d_k = d_q, so that heads alone might be those of tokens."""
    M, c = rng.standard_normal((300, 3, 3)), rng.standard_normal((300, 3))
    if symmetric:
        M = M + M.transpose(0, 2, 1)
    states = la.States(M, c, symmetric=symmetric)
    truth = planted(rng, 1, 2, 3, 3, 3)
    y = truth(states)
    for fit, names in (
        (la.fit(states, y), ["V", "Q"]),
        (la.fit(states, y, heads=None), ["coefficients"]),
    ):
        module = fit.to_torch()
        assert [name for name, _ in module.named_parameters()] == names
        found = module(torch.tensor(M), torch.tensor(c)).detach().numpy()
        np.testing.assert_allclose(found, y, rtol=0, atol=1e-9 * np.abs(y).max())
        with pytest.raises(ValueError, match="^positions: a state has one query, so 'last'"):
            fit.to_torch("causal")


@pytest.mark.parametrize("heads", ["minimal", None])
def test_a_fit_on_causal_streams_has_a_module_on_their_states(rng, heads):
    """The memory that each query sees is what the module is given, whatever the positions were."""
    c, b, a = (rng.standard_normal((60, 5, d)) for d in (4, 2, 3))
    M = np.cumsum(np.einsum("ntj,ntk->ntjk", a, b), axis=1)
    truth = planted(rng, 1, 2, 3, 2, 4)
    y = np.einsum("haj,ntjk,hkl,ntl->nta", truth.V, M, truth.Q, c)
    module = la.fit(la.Streams(c, b, a), y, positions="causal", heads=heads).to_torch()
    found = module(torch.tensor(M), torch.tensor(c)).detach().numpy()
    np.testing.assert_allclose(found, y, rtol=0, atol=1e-9 * np.abs(y).max())


def modules(rng):
    """One of heads and one of coefficients, for a memory 3 x 2 and a query 4."""
    heads = planted(rng, 2, 2, 3, 2, 4)
    states = la.States(np.ones((1, 3, 2)), np.ones((1, 4)))
    return heads.to_torch(), fit_of(rng.standard_normal((2, 24)), states).to_torch()


def test_many_queries_ask_one_memory(rng):
    M, c = drawn(rng, (5, 1, 3, 2), (5, 6, 4))
    for module in modules(rng):
        together = module(M, c)
        assert together.shape == (5, 6, 2)
        for t in range(6):
            torch.testing.assert_close(together[:, t], module(M[:, 0], c[:, t]))


def test_gradients_are_those_of_finite_differences(rng):
    M, c = (each.requires_grad_() for each in drawn(rng, (2, 3, 2), (2, 4)))
    for module in modules(rng):
        names = [name for name, _ in module.named_parameters()]

        def layer(M, c, *parameters, module=module, names=names):
            given = dict(zip(names, parameters, strict=True))
            return torch.func.functional_call(module, given, (M, c))

        assert torch.autograd.gradcheck(layer, (M, c, *module.parameters()))


def test_the_way_back_and_copies(rng):
    heads = planted(rng, 2, 3, 4, 3, 5)
    module = heads.to_torch()
    assert repr(module) == "StateAttention(heads=2, d_v=4, d_k=3, d_q=5, d_out=3)"
    for given in (module, module.state_dict()):
        back = la.Heads.from_torch(given)
        np.testing.assert_array_equal(back.V, heads.V)
        np.testing.assert_array_equal(back.Q, heads.Q)
    M, c = drawn(rng, (2, 4, 3), (2, 5))
    other = planted(rng, 2, 3, 4, 3, 5).to_torch()
    other.load_state_dict(module.state_dict())
    for each in (other, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(each(M, c), module(M, c))
    single = heads.to_torch(dtype=torch.float32, requires_grad=False)
    assert single.V.dtype == torch.float32
    assert not any(each.requires_grad for each in single.parameters())
    assert heads.to_torch(device="meta").Q.device.type == "meta"
    by_coefficients = modules(rng)[1]
    assert repr(by_coefficients) == "BilinearAttention(features=24, d_v=3, d_k=2, d_q=4, d_out=2)"


def test_cross_attention_of_torch_is_a_layer_on_states(rng):
    """``nn.MultiheadAttention`` with keys and values of other sizes, without its softmax."""
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(
        4, 2, bias=False, kdim=3, vdim=5, batch_first=True, dtype=torch.float64
    )
    heads = la.Heads.from_torch(layer, la.Layout(scale="1/sqrt(d_k)"))
    assert (heads.d_v, heads.d_k, heads.d_q, heads.d_out) == (5, 3, 4, 4)
    queries, keys, values = drawn(rng, (2, 1, 4), (2, 6, 3), (2, 6, 5))
    q, k, v = (
        (x @ W.T).unflatten(-1, (2, 2)).transpose(1, 2)  # (N, H, n, d / H)
        for x, W in (
            (queries, layer.q_proj_weight),
            (keys, layer.k_proj_weight),
            (values, layer.v_proj_weight),
        )
    )
    y = (q @ k.mT / 2**0.5) @ v
    expected = (y.transpose(1, 2).flatten(-2) @ layer.out_proj.weight.T)[:, 0].detach()
    found = heads.to_torch()(values.mT @ keys, queries[:, 0])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("shapes", "error", "message"),
    [
        (((2, 3, 2), (2, 5)), ValueError, r"^query: a tensor \(\.\.\., 4\) is needed"),
        (((2, 2, 3), (2, 4)), ValueError, r"^memory: a tensor \(\.\.\., 3, 2\) with the axes of"),
        (((2, 3, 2), (3, 4)), ValueError, r"^memory: .* got shapes \(2, 3, 2\) and \(3, 4\)$"),
        (((3, 2), (3, 4)), ValueError, r"^memory: .* got shapes \(3, 2\) and \(3, 4\)$"),
        (((2, 3, 2), ()), ValueError, r"^query: a tensor .* got shape \(\)$"),
    ],
)
def test_wrong_shapes_are_named(rng, shapes, error, message):
    for module in modules(rng):
        with pytest.raises(error, match=message):
            module(*drawn(rng, *shapes))


def test_other_wrong_arguments_are_named(rng):
    M, c = drawn(rng, (2, 3, 2), (2, 4))
    for module in modules(rng):
        with pytest.raises(TypeError, match="^memory: a tensor is needed, got ndarray"):
            module(M.numpy(), c)
        with pytest.raises(TypeError, match=r"^query: the dtype of the module .* torch\.float64"):
            module(M, c.float())
    heads = planted(rng, 2, 2, 3, 2, 4)
    with pytest.raises(ValueError, match="^positions: a state has one query, so 'last'"):
        heads.to_torch("all")
    with pytest.raises(TypeError, match="^dtype: a floating-point type"):
        heads.to_torch(dtype=torch.int64)
