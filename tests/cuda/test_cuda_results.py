"""Results of the CUDA backend against the numpy reference, without a GPU.

Everything runs on a make-believe CuPy, twice: with the kernels' contract written in numpy, and with
the kernels themselves in the emulator, where that was built. ``tests/cuda`` has the kernels' own
tests; here it is what Python makes of them.
"""

import importlib.util
import os
from functools import cache

import numpy as np
import pytest
from conftest import EPS, assert_moments_agree, plant, random_targets
from oracles.batches import arrays_of, samples_of
from stand_ins.fake_cupy import State

import linattn_fast as la
from linattn_fast.arrays.device import to_host
from linattn_fast.backend.choice import get_backend
from linattn_fast.backend.cuda import blas as cuda_blas
from linattn_fast.backend.cuda.backend import extension as cuda_extension
from linattn_fast.backend.reference import NumpyBackend
from linattn_fast.data.tokens import Tokens
from linattn_fast.linalg import device_algebra, host_algebra

NAME = "linattn_fast._cuda_emulated"
PATH = os.environ.get("LINATTN_CUDA_EMULATED")
SANITIZED = bool(os.environ.get("LINATTN_SANITIZED"))
no_emulator = pytest.mark.skipif(
    SANITIZED or (PATH is None and importlib.util.find_spec(NAME) is None),
    reason="tests/cuda has the kernels under sanitizers"
    if SANITIZED
    else "built without LINATTN_CUDA_EMULATED=ON",
)


@pytest.fixture(params=["contract", pytest.param("emulated", marks=no_emulator)])
def device(request, gpu, monkeypatch):
    """CuPy, with either kind of kernels."""
    if request.param == "emulated":
        monkeypatch.setattr(cuda_extension, "kernels", emulated_kernels())
    return gpu


@cache
def emulated_kernels():
    """The module: the file that LINATTN_CUDA_EMULATED names, or the installed one."""
    if PATH is None:
        return importlib.import_module(NAME)
    spec = importlib.util.spec_from_file_location("_cuda_emulated", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=["kernels", "cublas"])
def path(request, monkeypatch):
    """Both ways to form the Gram."""
    monkeypatch.setenv("LINATTN_CUDA_PATH", request.param)
    return request.param


def on_device(xp, tokens):
    """The same batch on the device."""
    return tokens.put(xp.empty(0))


FORMS = ("dense", "list", "offsets")


def make_tokens(rng, form, dtype=np.float64, d=3):
    lengths = [4] * 9 if form == "dense" else [1, 5, 3, 1, 12, 5, 2]
    rows = rng.standard_normal((sum(lengths), d)).astype(dtype)
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    if form == "dense":
        return Tokens(rows.reshape(9, 4, d))
    if form == "list":
        return Tokens(tuple(np.split(rows, bounds[1:-1])))
    return Tokens(rows, bounds)


# --------------------------------------------------------------------------------------- moments


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("chosen", [False, True])
def test_moments_are_those_of_the_reference(device, rng, positions, path, form, dtype, chosen):
    tokens = make_tokens(rng, form, dtype)
    y = random_targets(rng, tokens, 2, positions)
    w = rng.random(len(tokens)) if form != "list" else None
    features = la.Features(3, pairs=[(0, 0), (0, 2), (1, 2)], queries=[0, 2]) if chosen else None
    expected = NumpyBackend().moments(samples_of(tokens, y, w, positions, features=features))
    absolute = [Tokens(tuple(np.abs(z) for z in each)) for each in (tokens, y)]
    sizes = NumpyBackend().moments(samples_of(*absolute, w, positions, features=features))
    # As rounding_steps of conftest: S, products and sums of either side
    steps = 2 * (6 * int(tokens.lengths.max()) + 4 + tokens.n_samples(positions))
    for batch, targets in ((tokens, y), (on_device(device, tokens), on_device(device, y))):
        engine = get_backend("cuda")
        found = engine.moments(samples_of(batch, targets, w, positions, features=features))
        for a, b, size in zip(*map(arrays_of, (found.get(), expected, sizes)), strict=True):
            assert a.shape == b.shape
            assert (np.abs(a - b) <= steps * EPS * size).all()
        assert found.accumulation.wide >= 8
        assert not found.accumulation.underflow
        if features is not None:
            sizes_found = to_host(
                engine.summand_sizes(samples_of(batch, None, w, positions, features))
            )
            sizes_wanted = NumpyBackend().summand_sizes(
                samples_of(tokens, None, w, positions, features)
            )
            np.testing.assert_allclose(sizes_found, sizes_wanted, rtol=steps * EPS)
            np.testing.assert_array_equal(to_host(found.magnitudes), sizes_found)
        else:
            assert found.magnitudes is None


def test_sizes_of_summands_are_counted_in_the_roundings(device, rng, positions, path):
    """They are summed a length at a time, by cuBLAS always, and have more sums to add up."""
    tokens = Tokens(tuple(rng.standard_normal((n, 2)) for n in range(1, 41)))
    engine = get_backend("cuda")
    found = engine.moments(
        samples_of(tokens, None, None, positions, features=la.Features(2, [(0, 1)]))
    )
    longest = 40 if positions == "causal" else 1
    assert found.accumulation.wide >= 40 + longest + 8


def test_samples_beyond_a_chunk_are_summed(device, rng, positions, path, monkeypatch):
    monkeypatch.setattr(cuda_blas, "CHUNK", 16)
    tokens = Tokens(rng.standard_normal((50, 3, 3)))
    y = random_targets(rng, tokens, 2, positions)
    expected = NumpyBackend().moments(samples_of(tokens, y, None, positions))
    engine = get_backend("cuda")
    found = engine.moments(
        samples_of(on_device(device, tokens), on_device(device, y), None, positions)
    )
    assert_moments_agree(found.get(), expected, tokens, y, None, positions)
    if path == "cublas":  # sums of a chunk, then chunk after chunk; sequences are not cut
        chunks = 10 if positions == "causal" else 4  # of 5 sequences with 3 samples, or of 16
        assert found.accumulation.wide == 16 + chunks + 8


def test_mixed_precision_errs_by_its_bound(device, rng, positions):
    tokens = Tokens(rng.standard_normal((40, 3, 3)) * [1e-3, 1.0, 1e3])
    y = random_targets(rng, tokens, 2, positions)
    exact = NumpyBackend().moments(samples_of(tokens, y, None, positions))
    sizes = NumpyBackend().moments(
        samples_of(Tokens(np.abs(tokens.storage)), None, None, positions)
    )
    engine = get_backend("cuda")
    found = engine.moments(
        samples_of(on_device(device, tokens), on_device(device, y), None, positions), "mixed"
    ).get()
    narrow = found.accumulation.narrow
    assert narrow == cuda_blas.CHUNK + 3
    error = np.abs(found.gram - exact.gram)
    assert (error <= narrow * 2.0**-24 * sizes.gram).all()
    assert (error > 0).any()
    assert found.accumulation.underflow  # and so nothing is proved
    np.testing.assert_allclose(found.cross, exact.cross, rtol=1e-10, atol=1e-8)


def test_small_tokens_and_weights_may_underflow(device, rng):
    tokens = on_device(device, Tokens(rng.standard_normal((20, 3, 2))))
    tiny = on_device(device, Tokens(np.where(rng.random((20, 3, 2)) < 0.1, 1e-40, 1.0)))
    engine = get_backend("cuda")
    for batch, w, expected in (
        (tokens, None, False),
        (tokens, np.full(20, 1e-200), True),
        (tiny, None, True),
        (on_device(device, Tokens(np.zeros((2, 3, 2)))), None, False),
    ):
        found = engine.moments(samples_of(batch, None, w))
        assert found.accumulation.underflow == expected


# ------------------------------------------------------------------------------------------ fits


def fits(xp, Z, y, **settings):
    """On the device and by the reference."""
    found = la.fit(xp.asarray(Z), xp.asarray(y), **settings)
    assert found.device == 0
    return found.get(), la.fit(Z, y, backend="numpy", **settings)


def assert_same_layer(found, expected):
    """Coefficients agree to the rounding of either solution, which the condition number bounds."""
    size = np.linalg.norm(expected.coefficients)
    error = np.linalg.norm(found.coefficients - expected.coefficients) / size
    lost = (
        np.sqrt(expected.info.condition) if expected.info.refinements else expected.info.condition
    )
    assert error <= 100 * EPS * expected.info.dimension * max(lost, 1.0)
    scale = expected.info.mean_squared_target
    assert abs(found.info.mean_squared_error - expected.info.mean_squared_error) <= 1e-12 * scale
    assert found.info.solver == expected.info.solver
    assert (found.info.backend, expected.info.backend) == ("cuda", "numpy")


@pytest.mark.parametrize("solver", ["auto", "cholesky", "eigh", "qr", "dual", "pcg"])
@pytest.mark.parametrize("alpha", [0.0, 0.1])
def test_every_solver_finds_the_layer_of_the_reference(device, rng, positions, solver, alpha):
    Z = rng.standard_normal((60, 4, 2))
    y = rng.standard_normal((60, 4, 2))
    y = y[:, 0] if positions == "last" else y
    found, expected = fits(
        device, Z, y, positions=positions, solver=solver, alpha=alpha, heads=None,
        sample_weight=rng.random(60) + 0.5,
    )  # fmt: skip
    assert_same_layer(found, expected)
    a, b = found.certificate, expected.certificate
    assert (a.verdict, a.rank, a.dimension) == (b.verdict, b.rank, b.dimension)
    assert a.lambda_min == pytest.approx(b.lambda_min, rel=1e-8)
    assert (a.lower_bound > 0) == (b.lower_bound > 0)


def test_fewer_samples_than_features_go_to_the_dual(device, rng):
    Z, y = rng.standard_normal((12, 4, 3)), rng.standard_normal((12, 2))
    for data in ({}, {"alpha": 0.3}, {"sample_weight": rng.random(12)}):
        found, expected = fits(device, Z, y, heads=None, **data)
        assert found.info.solver == "dual"
        assert_same_layer(found, expected)
    streamed = la.fit(Z, y, backend="cuda", heads=None)  # from the host
    assert_same_layer(streamed.get(), la.fit(Z, y, backend="numpy", heads=None))
    doubled = np.concatenate([Z, Z[:4]])  # a singular kernel: the features are decomposed
    found, expected = fits(device, doubled, np.concatenate([y, y[:4]]), heads=None)
    assert "decomposed" in found.info.reason
    assert_same_layer(found, expected)
    zero, none = fits(device, np.zeros((3, 2, 2)), np.ones(3), heads=None)
    assert not zero.coefficients.any()
    assert not none.coefficients.any()


@pytest.mark.parametrize("solver", ["auto", "eigh", "qr", "pcg"])
def test_singular_problems_have_the_solution_of_least_norm(device, rng, solver):
    Z = rng.standard_normal((80, 4, 3))
    Z[:, :, 2] = Z[:, :, 0] - Z[:, :, 1]
    found, expected = fits(device, Z, rng.standard_normal((80, 2)), solver=solver, heads=None)
    np.testing.assert_allclose(found.coefficients, expected.coefficients, rtol=1e-6, atol=1e-9)
    assert found.certificate.verdict == expected.certificate.verdict != "identifiable"
    one_hot = np.eye(3)[rng.integers(0, 3, (90, 4))]
    found, expected = fits(device, one_hot, rng.standard_normal(90), solver=solver, heads=None)
    np.testing.assert_allclose(found.coefficients, expected.coefficients, rtol=1e-6, atol=1e-9)
    nothing, zero = fits(device, np.zeros((30, 2, 2)), np.ones(30), heads=None, solver=solver)
    assert not nothing.coefficients.any()
    assert not zero.coefficients.any()


def test_blocks_of_queries_that_never_meet_are_solved_one_by_one(device, rng):
    queries = np.eye(3)[rng.integers(0, 3, 90)]
    Z = np.concatenate([rng.standard_normal((90, 4, 3)), queries[:, None]], axis=1)
    y = rng.standard_normal((90, 2))
    for settings in ({}, {"solver": "eigh"}, {"alpha": 0.1}):
        found, expected = fits(device, Z, y, heads=None, **settings)
        assert "in 3 blocks" in found.info.reason
        assert_same_layer(found, expected)
        assert found.certificate.verdict == expected.certificate.verdict
    apart = rng.standard_normal((90, 4, 3)) * np.eye(3)[rng.integers(0, 3, 90)][:, None]
    y = rng.standard_normal((90, 4, 2))
    found, expected = (
        la.Moments(3, 2, positions="all", backend=name).update(apart, y).fit(heads=None).get()
        for name in ("cuda", "numpy")
    )
    assert "in 3 blocks" in found.info.reason
    np.testing.assert_allclose(found.coefficients, expected.coefficients, rtol=1e-9, atol=1e-12)


def test_chosen_features_are_fitted(device, rng):
    features = la.Features(3, pairs=[(0, 2), (1, 2), (2, 2)], queries=[0, 1])
    Z, y = rng.standard_normal((60, 4, 3)), rng.standard_normal((60, 2))
    for solver in ("auto", "pcg", "qr"):
        found, expected = fits(device, Z, y, features=features, solver=solver)
        assert_same_layer(found, expected)
        assert found.certificate.verdict == expected.certificate.verdict
        np.testing.assert_allclose(found.predict(Z), expected.predict(Z), rtol=1e-9, atol=1e-10)


def test_a_planted_layer_is_found_with_its_heads(device, rng):
    truth = plant(rng, 3, 2, 3)
    Z = rng.standard_normal((120, 5, 3))
    for heads in ("minimal", "svd", 2):
        fit = la.fit(device.asarray(Z), truth(device.asarray(Z)), heads=heads)
        assert fit.heads.device == 0
        assert len(fit.heads) == 2 or heads == "svd"
        # The truth, up to the rounding that the condition number allows
        scale = np.linalg.norm(truth.coefficients())
        lost = 100 * EPS * fit.info.dimension * np.sqrt(fit.info.condition)
        assert fit.heads.distance(truth) <= scale * max(lost, 1e-9 if heads == "minimal" else lost)
        assert fit.certificate.verdict == "identifiable"


# ------------------------------------------------------------------------------- what data tells


@pytest.mark.parametrize("singular", [False, True])
def test_a_certificate_answers_for_single_inputs_as_the_reference_does(
    device, rng, positions, singular
):
    Z = rng.standard_normal((60, 4, 3))
    if singular:
        Z[:, :, 2] = Z[:, :, 1]
        Z[:, -1, 0] = 0.0
    new = rng.standard_normal((8, 4, 3))
    new[:4] = Z[:4]
    found = la.certify(device.asarray(Z), positions=positions, spectrum=True)
    expected = la.certify(Z, positions=positions, spectrum=True, backend="numpy")
    size = float(expected.spectrum[-1])
    np.testing.assert_allclose(found.spectrum.get(), expected.spectrum, atol=1e-12 * size)
    for where in ({}, {"positions": "last"}):
        for inputs in (device.asarray(new), new):
            np.testing.assert_array_equal(
                found.covers(inputs, **where).get(), expected.covers(new, **where)
            )
            np.testing.assert_allclose(
                found.leverage(inputs, **where).get(), expected.leverage(new, **where), rtol=1e-6
            )
            np.testing.assert_allclose(
                found.error_bound(inputs, 0.1, **where).get(),
                expected.error_bound(new, 0.1, **where),
                rtol=1e-6,
            )
    listed = found.covers([device.asarray(z) for z in new], positions="all")
    assert isinstance(listed, list)
    assert len(listed) == 8
    if not singular:
        assert found.explain(2) == expected.explain(2)
    assert found.null_space(2).get().shape == (2, 18)
    few, same = la.certify(device.asarray(Z[:5])), la.certify(Z[:5])
    np.testing.assert_array_equal(few.covers(device.asarray(new)).get(), same.covers(new))


# ----------------------------------------------------------------------------------------- layers


@pytest.mark.parametrize("form", FORMS)
def test_layers_are_applied_as_the_reference_applies_them(device, rng, positions, form):
    tokens = make_tokens(rng, form)
    heads = plant(rng, 3, 2, 2)
    C = heads.coefficients()
    expected = NumpyBackend().heads(heads.V, heads.Q, tokens, positions)
    for place in (lambda a: a, device.asarray):
        for batch in (tokens, on_device(device, tokens)):
            engine = get_backend("cuda")
            found = [
                engine.heads(place(heads.V), place(heads.Q), batch, positions),
                engine.coefficients(place(C), batch, positions),
            ]
            for y in found:
                np.testing.assert_allclose(y.get(), expected, rtol=1e-11, atol=1e-11)
    given = [device.asarray(z) for z in tokens]
    outputs = heads(given, positions)
    if positions != "last":
        assert [len(y) for y in outputs] == tokens.lengths.tolist()


def test_generation_continues_prompts_on_the_device(device, rng):
    heads = plant(rng, 3, 2, 3)
    prompts = 0.3 * rng.standard_normal((4, 5, 3))
    for steps, decimals in ((0, None), (4, None), (4, 1)):
        expected = heads.generate(prompts, steps, decimals, backend="numpy")
        found = heads.generate(device.asarray(prompts), steps, decimals)
        np.testing.assert_allclose(found.get(), expected, rtol=1e-9, atol=1e-12)
    single = heads.put(device.empty(0)).generate(prompts[0], 2)
    assert isinstance(single, device.ndarray)
    np.testing.assert_allclose(single.get(), heads.generate(prompts[0], 2), rtol=1e-9)


def test_heads_on_the_device_have_the_properties_of_heads(device, rng):
    heads = plant(rng, 3, 2, 2)
    there = la.Heads(device.asarray(heads.V), heads.Q)
    assert (len(there), there.device, there.get().device) == (2, 0, None)
    assert there.distance(heads) == heads.distance(there) == 0
    np.testing.assert_array_equal(there.coefficients().get(), heads.coefficients())
    np.testing.assert_array_equal(there.normalized().V.get(), heads.normalized().V)
    assert [V.shape for V, _ in there] == [(2, 3), (2, 3)]
    assert there.put(device.empty(0)) is there
    features = la.Features.active(device.ones((3, 2, 2)))
    assert features.everything


def test_weak_cards_fit_the_same_layer(device, rng):
    State.capability = "86"
    Z, y = rng.standard_normal((60, 4, 2)), rng.standard_normal((60, 2))
    found, expected = fits(device, Z, y, heads=None)
    assert found.info.path.startswith("cublas")
    assert_same_layer(found, expected)
    assert found.certificate.lower_bound == pytest.approx(
        expected.certificate.lower_bound, rel=0.01
    )
    mixed, _ = fits(device, Z, y, heads=None, precision="mixed")
    assert_same_layer(mixed, expected)
    assert mixed.certificate.lower_bound == 0


@pytest.mark.parametrize("p", [1, 2, 5, 40])
@pytest.mark.parametrize("condition", [1.0, 1e3, 1e12])
def test_the_condition_number_is_estimated_as_lapack_does(gpu, rng, p, condition):
    vectors = np.linalg.qr(rng.standard_normal((p, p)))[0]
    matrix = (vectors * np.geomspace(1.0, 1 / condition, p)) @ vectors.T
    norm = float(np.abs(matrix).sum(axis=0).max())
    factor = np.linalg.cholesky(matrix)
    found = device_algebra.reciprocal_condition(gpu.asarray(factor), norm)
    expected = host_algebra.reciprocal_condition(np.asfortranarray(factor), norm)
    # Both are 1 / (norm ||A^-1||) or a little more, from the same sequence of vectors
    assert found == pytest.approx(expected, rel=1e-6)
    exact = 1 / (norm * np.abs(np.linalg.inv(matrix)).sum(axis=0).max())
    assert exact * (1 - 1e-3) <= found <= 3 * exact


def test_a_matrix_that_is_not_positive_has_no_factor(gpu):
    assert device_algebra.cholesky(gpu.asarray(-np.eye(3)))[1] == -1
    assert device_algebra.cholesky(gpu.asarray(np.eye(3)))[1] == 0
