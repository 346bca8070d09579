"""The softmax layer: what it computes, in every form of input, and what it refuses."""

import pickle

import numpy as np
import pytest
from conftest import import_error_without

import linattn_fast as la
from linattn_fast.softmax.layer.planted import KINDS, parity, planted_layer, uniform_tokens

Layer = la.softmax.Layer


def by_loops(layer: Layer, x: np.ndarray) -> np.ndarray:
    """The definition, for one sequence (k, d)."""
    y = np.zeros((len(x), layer.d_out))
    for Theta, W in layer:
        for b, query in enumerate(x):
            logits = np.array([query @ Theta @ token for token in x])
            weights = np.exp(logits - logits.max())
            y[b] += (weights / weights.sum()) @ x @ W
    return y


@pytest.fixture
def layer(rng) -> Layer:
    return planted_layer(rng, 3, 4, d_out=2, logits=3.0)


def test_a_layer_is_its_definition(rng, layer):
    X = rng.standard_normal((5, 6, 4))
    expected = np.stack([by_loops(layer, x) for x in X])
    assert np.abs(layer(X) - expected).max() < 1e-13


def test_ragged_sequences_give_what_each_gives_alone(rng, layer):
    X = [rng.standard_normal((k, 4)) for k in (3, 1, 5, 3, 9)]
    found = layer(X)
    assert isinstance(found, list)
    for x, y in zip(X, found, strict=True):
        assert np.abs(y - layer(x[None])[0]).max() < 1e-14
    offsets = np.cumsum([0] + [len(x) for x in X])
    assert np.array_equal(layer(np.concatenate(X), offsets=offsets), np.concatenate(found))


def test_float32_integers_and_strides_are_read_as_they_are(rng, layer):
    X = rng.integers(-3, 4, size=(4, 5, 4))
    expected = layer(X.astype(float))
    assert np.array_equal(layer(X), expected)
    assert np.array_equal(layer(X.astype(np.float32)), expected)
    assert np.array_equal(layer(np.asfortranarray(X.astype(float))), expected)


def test_inputs_that_come_in_parts_give_the_same(rng, monkeypatch, layer):
    X = uniform_tokens(rng, 50, 5, 4)
    whole = layer(X)
    monkeypatch.setattr("linattn_fast.softmax.layer.layer._WEIGHTS_AT_ONCE", 100)
    assert np.abs(layer(X) - whole).max() < 1e-14


@pytest.mark.parametrize("logits", [256.0, 1e6])
def test_large_logits_are_stable(rng, logits):
    layer = planted_layer(rng, 2, 4, logits=logits)
    X = uniform_tokens(rng, 20, 5, 4)
    expected = np.stack([by_loops(layer, x) for x in X])
    assert np.isfinite(layer(X)).all()
    # A logit of size t has an absolute rounding error of about 16 eps t, and so has a weight
    assert np.abs(layer(X) - expected).max() < 1e-13 * logits


def test_one_token_reads_itself(rng, layer):
    X = rng.standard_normal((7, 1, 4))
    assert np.abs(layer(X) - X @ layer.W.sum(axis=0)).max() < 1e-14


def test_arrays_are_copied_and_read_only(rng):
    Theta, W = rng.standard_normal((1, 2, 2)), rng.standard_normal((1, 2, 3))
    layer = Layer(Theta, W)
    Theta[:] = 0
    assert layer.Theta.any()
    with pytest.raises(ValueError, match="read-only"):
        layer.Theta[0, 0, 0] = 1
    again = pickle.loads(pickle.dumps(layer))
    assert np.array_equal(again.Theta, layer.Theta)
    assert np.array_equal(again.W, layer.W)
    assert repr(again) == "softmax.Layer(1 heads, d=2, d_out=3)"


@pytest.mark.parametrize(
    ("Theta", "W", "message"),
    [
        (np.zeros((1, 2, 3)), np.zeros((1, 2, 1)), r"^Theta: shape \(m, d, d\) is needed"),
        (np.zeros((2, 2, 2)), np.zeros((1, 2, 1)), r"^W: shape \(2, 2, d_out\) is needed"),
        (np.zeros((0, 2, 2)), np.zeros((0, 2, 1)), r"^Theta: shape"),
        (np.full((1, 2, 2), np.nan), np.zeros((1, 2, 1)), r"^Theta: must be finite"),
        (np.zeros((2, 2)), np.zeros((1, 2, 1)), r"^Theta: an array of 3 axes"),
    ],
)
def test_layers_that_are_none_are_refused(Theta, W, message):
    with pytest.raises(ValueError, match=message):
        Layer(Theta, W)


def test_tokens_that_do_not_fit_are_refused(layer):
    with pytest.raises(ValueError, match="^X: tokens must have d = 4 coordinates, got 3"):
        layer(np.zeros((2, 5, 3)))
    X = np.zeros((2, 5, 4))
    X[1, 2, 3] = np.inf
    with pytest.raises(ValueError, match="^X: must be finite, got inf in sequence 1, token 2"):
        layer(X)
    with pytest.raises(ValueError, match="^X: the logits or outputs overflow"):
        layer(1e200 * np.arange(40.0).reshape(2, 5, 4))


def test_the_torch_module_is_the_same_layer(rng, layer):
    torch = pytest.importorskip("torch", reason="PyTorch is optional")
    X = uniform_tokens(rng, 6, 5, 4)
    module = layer.to_torch()
    y = module(torch.from_numpy(X))
    assert np.abs(y.detach().numpy() - layer(X)).max() < 1e-13
    assert [name for name, _ in module.named_parameters()] == ["Theta", "W"]
    y.sum().backward()
    assert module.Theta.grad is not None
    assert layer.to_torch(torch.float32)(torch.from_numpy(X).float()).dtype == torch.float32


def test_without_torch_the_error_says_so():
    made = "import linattn_fast as la; layer = la.softmax.Layer([[[0.0]]], [[[0.0]]])"
    said = import_error_without("torch", "layer.to_torch()", before=made)
    assert said.startswith("to_torch: PyTorch is needed")
    assert "pip install 'linattn_fast[torch]'" in said


@pytest.mark.parametrize("kind", KINDS)
def test_planted_layers_have_the_logits_asked_for(rng, kind):
    layer = planted_layer(rng, 2, 6, logits=5.0, kind=kind)
    assert np.isclose(np.linalg.norm(layer.Theta[0]), 5.0)
    X = uniform_tokens(rng, 2000, 2, 6)
    logits = np.einsum("nd,de,ne->n", X[:, 0], layer.Theta[0], X[:, 1])
    assert 4 < logits.std() < 6


def test_parity_is_the_product_of_bits(rng):
    X = uniform_tokens(rng, 5, 3, 4)
    assert np.array_equal(parity(X, (0, 2))[..., 0], X[:, :, 0] * X[:, :, 2])
    with pytest.raises(ValueError, match="^kind: must be one of generic"):
        planted_layer(rng, 1, 2, kind="odd")
