"""PyTorch: tensors as input, results as tensors, and heads as a module."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from conftest import EPS, library, plant
from stand_ins.array_paths import PATHS, assert_path_agrees

import linattn_fast as la
from linattn_fast.data.tokens import as_tokens

torch = library("torch")


# --------------------------------------------------------------------------------------- as input


def requiring_gradients(array):
    tensor = torch.from_numpy(array)
    return tensor.requires_grad_() if tensor.is_floating_point() else tensor


def negated(array):
    """A view that is the negative of its memory, by a flag; floats only, as imaginary parts are."""
    if array.dtype != np.float64:
        return torch.from_numpy(array)
    view = torch.complex(torch.zeros(array.shape, dtype=torch.float64), -torch.from_numpy(array))
    view = view.conj().imag
    assert view.is_neg()
    return view


def strided(array):
    """Not contiguous: every second number along the last axis."""
    return np.repeat(array, 2, axis=-1)[..., ::2]


@pytest.mark.parametrize("name", PATHS)
def test_every_path_takes_strides(name):
    assert_path_agrees(name, np.float64, lambda array: torch.from_numpy(strided(array)), strided)


@pytest.mark.parametrize("give", [torch.from_numpy, requiring_gradients, negated])
@pytest.mark.parametrize("name", PATHS)
def test_every_path_takes_tensors(name, give):
    assert_path_agrees(name, np.float64, give)


@pytest.mark.parametrize("name", PATHS)
def test_every_path_takes_float32(name):
    assert_path_agrees(name, np.float32, torch.from_numpy)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tensors_are_read_in_place(dtype):
    Z = torch.randn(4, 5, 3, dtype=dtype, requires_grad=True)
    assert as_tokens(Z).storage.ctypes.data == Z.data_ptr()
    assert as_tokens(Z.mT).storage.ctypes.data == Z.data_ptr()
    assert as_tokens(list(Z)).storage[2].ctypes.data == Z[2].data_ptr()


def test_integers_and_bool_are_numbers(rng):
    heads = plant(rng, 2, 1, 1)
    Z = rng.integers(0, 2, (3, 4, 2))
    for dtype in (torch.int8, torch.int64, torch.bool, torch.uint8):
        np.testing.assert_array_equal(heads(torch.tensor(Z).to(dtype)), heads(Z.astype(float)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: torch.zeros(2, 3, 2, dtype=torch.bfloat16),
            "^Z: numpy has no bfloat16; .*float()",
        ),
        (lambda: torch.zeros(2, 3, 2).half(), r"^Z: dtype must be .* float16; .* \.float\(\)"),
        (lambda: torch.zeros(2, 3, 2, dtype=torch.complex64).conj(), "^Z: .*got complex64"),
        (lambda: torch.zeros(2, 3, 2).to_sparse(), r"^Z: a dense tensor .*\.to_dense\(\)"),
        (lambda: torch.zeros(2, 3, 2, device="meta"), "^Z: cannot be read"),
        (lambda: [torch.zeros(3, 2), torch.zeros(1, 2).half()], r"^Z\[1\]: dtype"),
        (
            lambda: torch.nested.nested_tensor(
                [torch.zeros(3, 2), torch.zeros(1, 2)], layout=torch.jagged
            ),
            r"^Z: nested .* Z\.unbind\(\)",
        ),
    ],
)
def test_tensors_that_cannot_be_read_are_explained(rng, make, message):
    with pytest.raises(TypeError, match=message):
        plant(rng, 2, 1, 1)(make())
    with pytest.raises(TypeError, match=message):
        la.fit(make(), torch.zeros(2))


def test_what_the_explanation_says_is_exact(rng):
    Z = torch.tensor(rng.standard_normal((3, 4, 2))).bfloat16()
    heads = plant(rng, 2, 1, 1)
    expected = heads(Z.double())  # every bfloat16 is a float32
    np.testing.assert_allclose(heads(Z.float()), expected, rtol=1e-12)


def test_a_loader_is_a_stream(rng):
    Z, y = rng.standard_normal((50, 4, 2)), rng.standard_normal((50, 1))
    pairs = torch.utils.data.TensorDataset(torch.tensor(Z), torch.tensor(y))
    loader = torch.utils.data.DataLoader(pairs, batch_size=16)
    found, expected = la.fit(loader, heads=None), la.fit(Z, y, heads=None)
    assert found.info.n_samples == 50
    np.testing.assert_allclose(found.coefficients, expected.coefficients, rtol=1e-9)


def test_tensors_stand_beside_dask_arrays_and_in_delayed_batches(rng):
    dask = library("dask")
    arrays = library("dask.array")
    import linattn_fast.dask as lad

    Z, y = rng.standard_normal((60, 4, 2)), rng.standard_normal((60, 1))
    expected = la.Moments(2, 1).update(Z, y)
    batches = [dask.delayed((torch.tensor(Z[k::2]), torch.tensor(y[k::2]))) for k in range(2)]
    with dask.config.set(scheduler="synchronous"):
        beside = lad.moments(arrays.from_array(Z, chunks=(20, 4, 2)), torch.tensor(y))
        inside = lad.moments(batches)
    for found in (beside, inside):
        assert found.n_samples == 60
        np.testing.assert_allclose(found.cross(), expected.cross(), rtol=1e-11, atol=1e-11)


def test_scikit_learns_folds_cut_tensors(rng):
    selection = library("sklearn.model_selection")
    heads = plant(rng, 2, 1, 1)
    Z = torch.tensor(rng.standard_normal((60, 4, 2)))
    model = la.LinearAttentionRegressor(heads=None, certify=False)
    scores = selection.cross_val_score(model, Z, heads(Z, like=Z)[:, 0], cv=3)
    np.testing.assert_allclose(scores, 1.0, atol=1e-10)


def test_tensors_that_claim_a_cuda_device_go_to_cupy_without_gradients(rng, gpu):
    class OnDevice(torch.Tensor):
        def __dlpack_device__(self):
            return 2, 0

        def __dlpack__(self, **options):
            assert not self.requires_grad
            return torch.Tensor.__dlpack__(self)

    seen = []
    gpu.from_dlpack = lambda value: (value.__dlpack__(), seen.append(value), gpu.zeros(3))[-1]
    tensor = torch.zeros(3).as_subclass(OnDevice).requires_grad_()
    la.Moments(2, 1).update(np.ones((3, 4, 2)), tensor)
    assert len(seen) >= 1


# ------------------------------------------------------------------------------- results as tensors


def test_like_a_tensor_gives_float64_tensors(rng):
    heads = plant(rng, 3, 2, 3)
    Z = torch.tensor(rng.standard_normal((40, 4, 3)), dtype=torch.float32, requires_grad=True)
    fit = la.fit(Z, heads(Z, like=Z))
    for found, expected in [
        (heads(Z, like=Z), heads(Z)),
        (heads(Z, "causal", like=Z), heads(Z, "causal")),
        (heads.generate(Z[:2], 1, like=Z), heads.generate(Z[:2], 1)),
        (fit.predict(Z, like=Z), fit.predict(Z)),
        (fit.certificate.leverage(Z, like=Z), fit.certificate.leverage(Z)),
        (la.convert(fit.coefficients, like=Z), fit.coefficients),
    ]:
        assert isinstance(found, torch.Tensor)
        assert found.dtype == torch.float64
        assert not found.requires_grad
        np.testing.assert_array_equal(found.numpy(), expected)
    assert fit.certificate.covers(Z, like=Z).dtype == torch.bool
    lists = heads([Z[0], Z[1, :2]], "all", like=[Z])
    assert [tuple(each.shape) for each in lists] == [(4, 3), (2, 3)]


def test_converted_results_can_be_written_to_and_leave_the_fit_alone(rng):
    heads = plant(rng, 3, 2, 3)
    before = heads.V.copy()
    V = la.convert(heads.V, like=torch.zeros(1))
    V += 1
    np.testing.assert_array_equal(heads.V, before)
    array = np.zeros(3)
    assert la.convert(array, like=torch.zeros(1)).data_ptr() == array.ctypes.data  # no copy


# ---------------------------------------------------------------------------------------- a module


SIZES = [(1, 1, 1, 1), (3, 2, 2, 5), (4, 1, 3, 1), (2, 3, 0, 4), (3, 3, 2, 40), (18, 2, 2, 37)]
"""d, d_out, H and n; one chunk, several, and an uneven last one."""


@pytest.mark.parametrize(("d", "d_out", "H", "n"), SIZES)
def test_the_module_computes_the_layer(rng, positions, d, d_out, H, n):
    heads = la.Heads(rng.standard_normal((H, d_out, d)), rng.standard_normal((H, d, d)))
    module = heads.to_torch(positions)
    sizes = la.Heads(np.abs(heads.V), np.abs(heads.Q))
    # n products and sums for S, then d each for Q z, S and V, and one for each head; both may err.
    steps = 2 * (2 * n + 6 * d + H)
    Z = rng.standard_normal((5, n, d))
    expected, size = heads(Z, positions, backend="numpy"), sizes(np.abs(Z), positions)
    found = module(torch.tensor(Z))
    assert found.shape == expected.shape
    assert (np.abs(found.detach().numpy() - expected) <= steps * EPS * size).all()
    one = module(torch.tensor(Z[0]))  # no axis of sequences
    np.testing.assert_allclose(
        one.detach(), found[0].detach(), rtol=0, atol=steps * EPS * size.max()
    )
    many = module(torch.tensor(Z).reshape(5, 1, n, d))
    assert many.shape == (5, 1, *expected.shape[1:])

    ragged = [z[: 1 + i % n] for i, z in enumerate(Z)]
    answers = module([torch.tensor(z) for z in ragged])
    assert isinstance(answers, torch.Tensor if positions == "last" else list)
    for y, z in zip(answers, ragged, strict=True):
        wanted, bound = (
            f([a], positions, backend="numpy")[0] for f, a in ((heads, z), (sizes, abs(z)))
        )
        assert y.shape == wanted.shape
        assert (np.abs(y.detach().numpy() - wanted) <= steps * EPS * bound).all()


def test_gradients_are_those_of_finite_differences(rng, positions):
    for d, d_out, H, n in [(2, 2, 2, 3), (1, 1, 1, 18)]:
        module = plant(rng, d, H, d_out).to_torch(positions)
        Z = torch.tensor(rng.standard_normal((2, n, d)), requires_grad=True)

        def layer(V, Q, *Z, module=module):
            tokens = Z[0] if len(Z) == 1 else list(Z)
            y = torch.func.functional_call(module, {"V": V, "Q": Q}, (tokens,))
            return y if isinstance(y, torch.Tensor) else tuple(y)

        assert torch.autograd.gradcheck(layer, (module.V, module.Q, Z))
        ragged = [Z.detach()[0, :2].requires_grad_(), Z.detach()[1].requires_grad_()]
        assert torch.autograd.gradcheck(layer, (module.V, module.Q, *ragged))
    assert torch.autograd.gradgradcheck(
        layer, (module.V, module.Q, Z[:1, :2].detach().requires_grad_())
    )


def test_gradients_of_last_positions_are_those_of_the_formula(rng):
    """y = V S Q z: dy'g/dV = g (S Q z)', dy'g/dQ = S V'g z', and with b = Q z, a = V'g by z_t."""
    heads = plant(rng, 4, 1, 3)
    module = heads.to_torch()
    Z = torch.tensor(rng.standard_normal((1, 6, 4)), requires_grad=True)
    g = torch.tensor(rng.standard_normal(3))
    (module(Z)[0] @ g).backward()
    (V, Q), z = heads[0], Z.detach().numpy()[0]
    S, g = z.T @ z, g.numpy()
    a, b = V.T @ g, Q @ z[-1]
    expected = np.outer(z @ b, a) + np.outer(z @ a, b)  # of S, for every token
    expected[-1] += Q.T @ S @ a  # of the query
    np.testing.assert_allclose(module.V.grad[0], np.outer(g, S @ b), rtol=1e-12)
    np.testing.assert_allclose(module.Q.grad[0], np.outer(S @ a, z[-1]), rtol=1e-12)
    np.testing.assert_allclose(Z.grad[0], expected, rtol=1e-12, atol=1e-12 * np.abs(expected).max())


def test_causal_keeps_no_matrix_for_every_token(rng):
    N, n, d, H = 2, 640, 32, 1
    module = plant(rng, d, H, d).to_torch("causal")
    kept = []
    hooks = torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: (kept.append(tensor.numel()), tensor)[1], lambda tensor: tensor
    )
    with hooks:
        module(torch.tensor(rng.standard_normal((N, n, d))))
    assert kept
    assert max(kept) <= N * H * n * d + H * d * d  # one S for each token would be d times that


def test_a_module_trains(rng):
    heads = plant(rng, 2, 1, 1)
    Z = torch.tensor(rng.standard_normal((50, 4, 2)))
    module = plant(rng, 2, 1, 1).to_torch()
    optimiser = torch.optim.Adam(module.parameters(), lr=0.02)
    y, losses = heads(Z, like=Z), []
    for _ in range(100):
        optimiser.zero_grad()
        loss = (module(Z) - y).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_choices_of_the_module(rng):
    heads = plant(rng, 3, 2, 2)
    module = heads.to_torch("causal", dtype=torch.float32, requires_grad=False)
    assert [each.dtype for each in module.parameters()] == [torch.float32] * 2
    assert not any(each.requires_grad for each in module.parameters())
    assert repr(module) == "LinearAttention(heads=2, d=3, d_out=2, positions='causal')"
    assert heads.to_torch(device="meta").V.device.type == "meta"
    default = heads.to_torch()
    assert all(each.dtype == torch.float64 and each.requires_grad for each in default.parameters())
    Z = torch.tensor(rng.standard_normal((2, 4, 3)))
    assert default(Z, positions="all").shape == (2, 4, 2)
    with torch.no_grad():
        default.V += 1.0  # a copy: the heads stay as they are
    np.testing.assert_array_equal(heads.V, la.Heads(heads.V, heads.Q).V)
    assert heads.distance(la.Heads.from_torch(default)) > 0.1


def test_state_copy_and_pickle(rng):
    heads = plant(rng, 3, 2, 2)
    module = heads.to_torch("all")
    other = plant(rng, 3, 2, 2).to_torch("all")
    other.load_state_dict(module.state_dict())
    Z = torch.tensor(rng.standard_normal((2, 4, 3)))
    for each in (other, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert each.positions == "all"
        assert torch.equal(each(Z), module(Z))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda h: h.to_torch("first"), ValueError, "^positions: must be one of"),
        (lambda h: h.to_torch(dtype=torch.int64), TypeError, "^dtype: a floating-point type"),
        (lambda h: h.to_torch()(torch.zeros(2, 3, 3)), TypeError, r"^Z: .* torch\.float64, got"),
        (lambda h: h.to_torch()(torch.zeros(2, 3, 4).double()), ValueError, "^Z: .* d = 3"),
        (lambda h: h.to_torch()(torch.zeros(2, 0, 3).double()), ValueError, "^Z: at least one"),
        (lambda h: h.to_torch()([torch.zeros(2, 3)]), TypeError, r"^Z\[0\]: the dtype"),
        (lambda h: h.to_torch()([torch.zeros(1, 2, 3).double()]), ValueError, r"^Z\[0\]: a tensor"),
        (lambda h: h.to_torch()([]), ValueError, "^Z: the list is empty"),
        (lambda h: h.to_torch()(np.zeros((2, 3, 3))), TypeError, "^Z: a tensor is needed"),
        (lambda h: la.Heads.from_torch(3), TypeError, "^module: a torch.nn.Module"),
        (lambda h: la.Heads.from_torch(h.to_torch(), 3), TypeError, "^layout: a Layout"),
    ],
)
def test_errors_of_the_module(rng, call, error, message):
    with pytest.raises(error, match=message):
        call(plant(rng, 3, 2, 2))
