"""Modules of PyTorch as heads, for the usual layouts of parameters."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import library, plant

import linattn_fast as la

torch = library("torch")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_way_there_and_back_is_exact(rng, dtype):
    heads = plant(rng, 3, 2, 2)
    module = heads.to_torch(dtype=dtype)
    back = la.Heads.from_torch(module)
    np.testing.assert_array_equal(back.V, torch.tensor(heads.V).to(dtype).double())
    np.testing.assert_array_equal(back.Q, torch.tensor(heads.Q).to(dtype).double())
    if dtype == torch.float64:
        np.testing.assert_array_equal(back.V, heads.V)
        state = la.Heads.from_torch(module.state_dict())
        np.testing.assert_array_equal(state.Q, heads.Q)


def agree(heads: la.Heads, module, Z: np.ndarray) -> None:
    """Heads and a module written out as its authors would."""
    expected = module(torch.tensor(Z)).detach().numpy()
    np.testing.assert_allclose(
        heads(Z, "all"), expected, rtol=0, atol=1e-12 * np.abs(expected).max()
    )


class Projections(torch.nn.Module):
    """Separate linear maps, several heads side by side, as most implementations have it."""

    def __init__(self, d, num_heads, d_k, bias=False):
        super().__init__()
        self.num_heads, options = num_heads, {"bias": bias, "dtype": torch.float64}
        self.q_proj = torch.nn.Linear(d, num_heads * d_k, **options)
        self.k_proj = torch.nn.Linear(d, num_heads * d_k, **options)
        self.v_proj = torch.nn.Linear(d, num_heads * d_k, **options)
        self.out_proj = torch.nn.Linear(num_heads * d_k, d, **options)

    def forward(self, x):
        B, n, _ = x.shape
        q, k, v = (
            each(x).view(B, n, self.num_heads, -1).transpose(1, 2)
            for each in (self.q_proj, self.k_proj, self.v_proj)
        )
        weights = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        return self.out_proj((weights @ v).transpose(1, 2).reshape(B, n, -1))


def test_separate_linear_maps(rng):
    torch.manual_seed(0)
    module = Projections(6, 3, 4)
    heads = la.Heads.from_torch(module, la.Layout(scale="1/sqrt(d_k)"))
    assert len(heads) == 3
    agree(heads, module, rng.standard_normal((4, 5, 6)))


def test_a_module_without_an_output_matrix(rng):
    torch.manual_seed(0)
    module = Projections(6, 3, 4)
    module.out_proj = torch.nn.Identity()
    heads = la.Heads.from_torch(module, la.Layout(scale="1/sqrt(d_k)"))
    assert (len(heads), heads.d_out) == (3, 12)
    agree(heads, module, rng.standard_normal((4, 5, 6)))


class FusedQuery(torch.nn.Module):
    """P and Q of the papers on in-context learning, stacked for layers and heads; tokens as rows.

    Z + (1/n) sum_h P_h Z' (Z Q_h Z'), each layer's own mean over its heads.
    """

    def __init__(self, layers, H, d):
        super().__init__()
        self.P = torch.nn.Parameter(torch.randn(layers, H, d, d, dtype=torch.float64))
        self.Q = torch.nn.Parameter(torch.randn(layers, H, d, d, dtype=torch.float64))

    def layer(self, x, i):
        n = x.shape[1]
        total = 0.0
        for P, Q in zip(self.P[i], self.Q[i], strict=True):
            scores = torch.einsum("btl,kl,bsk->bts", x, Q, x)  # z_s' Q z_t
            total = total + torch.einsum("bts,bsj,aj->bta", scores, x, P)
        return total / len(self.P[i]) / n


def test_fused_queries_stacked_by_layer_and_head_with_mean_and_one_over_n(rng):
    torch.manual_seed(0)
    module = FusedQuery(3, 4, 5)
    Z = rng.standard_normal((4, 7, 5))
    layers = [
        la.Heads.from_torch(module, la.Layout(layer=i, over_heads="mean", scale="1/n", n=7))
        for i in range(3)
    ]
    x = Z
    for i, heads in enumerate(layers):  # through all layers, each of which adds its input
        agree(heads, lambda x, i=i: module.layer(x, i), x)
        x = x + heads(x, "all")
    with pytest.raises(ValueError, match="^V: 2 or 3 axes .*Layout"):
        la.Heads.from_torch(module)
    with pytest.raises(ValueError, match="^layer: number 3"):
        la.Heads.from_torch(module, la.Layout(layer=3))


class Rows(torch.nn.Module):
    """x W with one matrix for each head."""

    def __init__(self, H, d, d_k, d_out):
        super().__init__()
        for name, shape in {
            "W_Q": (H, d, d_k),
            "W_K": (H, d, d_k),
            "W_V": (H, d, d_k),
            "W_O": (H, d_k, d_out),
        }.items():
            setattr(self, name, torch.nn.Parameter(torch.randn(shape, dtype=torch.float64)))

    def forward(self, x):
        x = x.unsqueeze(1)
        q, k, v = x @ self.W_Q, x @ self.W_K, x @ self.W_V
        return (q @ k.transpose(-2, -1) @ v @ self.W_O).sum(1) / x.shape[-1] ** 0.5


def test_rows_and_the_root_of_d(rng):
    torch.manual_seed(0)
    module = Rows(2, 5, 3, 4)
    heads = la.Heads.from_torch(module, la.Layout(vectors="rows", scale="1/sqrt(d)"))
    assert (len(heads), heads.d, heads.d_out) == (2, 5, 4)
    agree(heads, module, rng.standard_normal((3, 4, 5)))


def linear_of(attention, x):
    """``nn.MultiheadAttention`` written out without the softmax."""
    B, n, d = x.shape
    q, k, v = (x @ attention.in_proj_weight.T).chunk(3, dim=-1)
    q, k, v = (each.view(B, n, attention.num_heads, -1).transpose(1, 2) for each in (q, k, v))
    y = (q @ k.mT / q.shape[-1] ** 0.5) @ v
    return y.transpose(1, 2).reshape(B, n, d) @ attention.out_proj.weight.T


def test_multihead_attention(rng):
    torch.manual_seed(0)
    attention = torch.nn.MultiheadAttention(6, 2, bias=False, dtype=torch.float64)
    Z = rng.standard_normal((3, 4, 6))
    heads = la.Heads.from_torch(attention, la.Layout(scale="1/sqrt(d_k)"))
    agree(heads, lambda x: linear_of(attention, x), Z)
    layout = la.Layout(scale="1/sqrt(d_k)", num_heads=2)
    state = la.Heads.from_torch(attention.state_dict(), layout)
    np.testing.assert_array_equal(state.V, heads.V)
    with pytest.raises(ValueError, match="^num_heads: W_"):
        la.Heads.from_torch(attention.state_dict())


def test_the_softmax_is_what_the_conversion_leaves_out(rng):
    """For small tokens softmax is 1/n (1 + q.k - mean), so the formula above is the right one."""
    torch.manual_seed(0)
    attention = torch.nn.MultiheadAttention(6, 2, bias=False, batch_first=True, dtype=torch.float64)
    x = 1e-4 * torch.tensor(rng.standard_normal((1, 5, 6)))
    x = torch.cat([x, -x], dim=1)  # mean key and value are zero
    softmax = attention(x, x, x, need_weights=False)[0]
    torch.testing.assert_close(softmax, linear_of(attention, x) / 10, rtol=1e-6, atol=1e-24)


def test_biases_are_refused():
    with pytest.raises(ValueError, match="'q_proj.bias' is a bias"):
        la.Heads.from_torch(Projections(4, 2, 2, bias=True))
    with pytest.raises(ValueError, match="'in_proj_bias' is a bias"):
        la.Heads.from_torch(torch.nn.MultiheadAttention(4, 2))


def test_parameters_by_other_names(rng):
    torch.manual_seed(0)
    whole = torch.nn.ModuleDict({"attention": Projections(4, 2, 3), "norm": torch.nn.LayerNorm(4)})
    with pytest.raises(ValueError, match="'attention.q_proj.weight' is not known; .*names"):
        la.Heads.from_torch(whole)
    names = {
        ours: f"attention.{theirs}.weight"
        for ours, theirs in zip(
            ("W_Q", "W_K", "W_V", "W_O"), ("q_proj", "k_proj", "v_proj", "out_proj"), strict=True
        )
    }
    layout = la.Layout(num_heads=2, names=names, scale="1/sqrt(d_k)")
    heads = la.Heads.from_torch(whole, layout)
    agree(heads, whole["attention"], rng.standard_normal((2, 3, 4)))


def test_heads_go_into_a_module_of_projections(rng):
    heads = plant(rng, 4, 2, 4)
    module = Projections(4, 2, 4)
    names = {
        "W_Q": "q_proj.weight",
        "W_K": "k_proj.weight",
        "W_V": "v_proj.weight",
        "W_O": "out_proj.weight",
    }
    layout = la.Layout(num_heads=2, names=names, scale="1/sqrt(d_k)")
    weights = la.convert(heads.to_weights(layout), like=torch.zeros(1))
    module.load_state_dict(weights)
    agree(heads, module, rng.standard_normal((2, 3, 4)))
