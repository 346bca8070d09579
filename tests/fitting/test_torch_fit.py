"""A fit as a module of PyTorch: with its heads, or with its coefficients where these are fewer."""

import numpy as np
import pytest
from conftest import EPS, library, plant

import linattn_fast as la

torch = library("torch")


def module_of(C, features, **settings):
    fit = la.Fit(C, features, None, None, None)  # no heads, as of heads=None
    return fit, fit.to_torch(**settings)


@pytest.mark.parametrize("positions", ["last", "all", "causal"])
@pytest.mark.parametrize("chosen", [False, True])
@pytest.mark.parametrize(("d", "d_out", "n"), [(1, 1, 1), (3, 2, 5), (4, 1, 9)])
def test_the_module_computes_the_layer_of_the_coefficients(rng, positions, chosen, d, d_out, n):
    features = la.Features(d, pairs=[(0, d - 1)], queries=[d - 1]) if chosen else la.Features(d)
    C = rng.standard_normal((d_out, features.count))
    fit, module = module_of(C, features, positions=positions)
    Z = rng.standard_normal((6, n, d))
    expected = fit.predict(Z, positions)
    found = module(torch.tensor(Z)).detach().numpy()
    assert found.shape == expected.shape
    # n sums for S, then one product for each pair and query; both may err
    size = la.Fit(np.abs(C), features, None, None, None).predict(np.abs(Z), positions)
    bound = 2 * (n + features.count + 3) * EPS * size
    assert (np.abs(found - expected) <= bound).all()
    ragged = [z[: 1 + i % n] for i, z in enumerate(Z)]
    answers = module([torch.tensor(z) for z in ragged])
    for y, z in zip(answers, ragged, strict=True):
        np.testing.assert_allclose(y.detach(), fit.predict([z], positions)[0], atol=bound.max())


def test_gradients_are_those_of_finite_differences(rng):
    _, module = module_of(rng.standard_normal((2, 6)), la.Features(2))
    Z = torch.tensor(rng.standard_normal((2, 3, 2)), requires_grad=True)
    for positions in ("last", "all", "causal"):

        def layer(C, Z, positions=positions):
            return torch.func.functional_call(module, {"coefficients": C}, (Z, positions))

        assert torch.autograd.gradcheck(layer, (module.coefficients, Z))


def test_heads_are_the_parameters_where_they_are_fewer_than_the_coefficients(rng):
    truth, Z = plant(rng, 4, 1, 2), rng.standard_normal((300, 10, 4))
    fit = la.fit(Z, truth(Z), positions="last")
    names = [name for name, _ in fit.to_torch().named_parameters()]
    assert names == ["V", "Q"]
    noisy = la.fit(Z, rng.standard_normal((300, 2)), certify=False)
    assert len(noisy.heads) == 8
    assert [name for name, _ in noisy.to_torch().named_parameters()] == ["coefficients"]
    none = la.fit(Z, truth(Z), heads=None)
    module = none.to_torch("causal", dtype=torch.float32, requires_grad=False)
    assert module.positions == "causal"
    assert module.coefficients.dtype == torch.float32
    assert not module.coefficients.requires_grad
    assert repr(module) == "CubicAttention(features=40, d=4, d_out=2, positions='causal')"


def test_a_module_has_the_positions_of_training_and_a_state(rng):
    Z = rng.standard_normal((60, 5, 3))
    fit = la.fit(Z, Z, positions="causal", heads=None, certify=False)
    module = fit.to_torch()
    assert module.positions == "causal"
    other = la.fit(Z, Z[:, 0], heads=None, certify=False).to_torch("causal")
    other.load_state_dict(module.state_dict())
    tokens = torch.tensor(Z)
    assert torch.equal(other(tokens), module(tokens))
    with pytest.raises(TypeError, match="^Z: the dtype of the module is needed"):
        module(tokens.float())
    with pytest.raises(TypeError, match="^dtype: a floating-point type"):
        fit.to_torch(dtype=torch.int64)
    with pytest.raises(ValueError, match="^positions: must be one of"):
        fit.to_torch("first")
