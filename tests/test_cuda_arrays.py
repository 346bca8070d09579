"""The CUDA backend's care for arrays: where they are, on which stream, and who waits for whom.

Run against a make-believe CuPy (:mod:`fake_cupy`) and a stand-in for the kernels
(:mod:`stand_in_cuda`), so that every line runs where there is no GPU.
"""

import importlib
import json
import pickle
import re
import sys
import types
from pathlib import Path

import fake_cupy
import numpy as np
import pytest
import stand_in_cuda

import linattn_fast as la
from linattn_fast.backend import cuda_batches, cuda_extension, cuda_paths, get_backend
from linattn_fast.tokens import as_tokens


def launches(name=None):
    """(name, stream, pointers) of the kernels that were launched."""
    found = [entry[1:] for entry in fake_cupy.log if entry[0] == "launch"]
    return [entry for entry in found if name is None or entry[0] == name]


def waits():
    """What the host has waited for."""
    return [entry[1] for entry in fake_cupy.log if entry[0] == "sync"]


def pointer(array):
    return array.__cuda_array_interface__["data"][0]


# ------------------------------------------------------------------------- the make-believe CuPy


def test_a_make_believe_array_is_as_unlike_numpy_as_cupys(gpu):
    x, home = gpu.asarray(np.arange(6.0)), np.arange(6.0)
    for wrong in (
        lambda: np.asarray(x),
        lambda: np.sqrt(x),
        lambda: np.concatenate([x, x]),
        lambda: x + home,
        lambda: home * x,
        lambda: x[np.arange(2)],
        lambda: gpu.sqrt(home),
        lambda: gpu.where(x > 1, home, x),
        lambda: x.max(initial=0.0),
        lambda: x.setflags(write=False),
        lambda: home.__setitem__(slice(None), x),
    ):
        with pytest.raises((TypeError, AttributeError)):
            wrong()
    with gpu.cuda.Device(1), pytest.raises(RuntimeError, match="device 0 is used while device 1"):
        x + 1
    assert (2 * x).get().tolist() == (np.float64(2) * x).get().tolist() == (2 * home).tolist()
    assert np.isnan(gpu.empty(3).get()).all()


def test_the_make_believe_cupy_has_no_name_that_cupy_lacks():
    """Where CuPy is installed, with or without a GPU."""
    cupy = pytest.importorskip("cupy")
    fake = fake_cupy.modules()["cupy"]
    for ours, theirs in (
        (fake, cupy),
        (fake.cuda, cupy.cuda),
        (fake.linalg, cupy.linalg),
        (fake.ndarray, cupy.ndarray),
        (fake.cuda.Stream, cupy.cuda.Stream),
        (fake.cuda.Event, cupy.cuda.Event),
        (fake.cuda.Device, cupy.cuda.Device),
    ):
        names = [name for name in vars(ours) if not name.startswith("_")]
        assert [name for name in names if not hasattr(theirs, name)] == []


def test_copies_on_another_stream_are_late_and_read_the_host_memory_then(gpu):
    target, source = gpu.zeros(3), np.ones(3)
    copying, copied = gpu.cuda.Stream(non_blocking=True), gpu.cuda.Event()
    target.set(source, stream=copying)
    copied.record(copying)
    assert target.get().tolist() == [0, 0, 0]
    source[:] = 2
    gpu.cuda.get_current_stream().wait_event(copied)
    assert target.get().tolist() == [2, 2, 2]


# ------------------------------------------------------------------------------ what is possible


@pytest.mark.parametrize(
    ("driver", "devices", "reason"),
    [
        (0, 0, "no NVIDIA driver found"),
        (12040, 1, "the NVIDIA driver supports CUDA 12.4, and CUDA 13.0 is needed"),
        (13010, 0, "no CUDA device found"),
        (13000, 1, None),
        (14000, 2, None),
    ],
)
def test_the_listing_says_in_words_what_is_missing(gpu, monkeypatch, driver, devices, reason):
    monkeypatch.setattr(
        stand_in_cuda, "State", types.SimpleNamespace(driver=driver, devices=devices)
    )
    info = la.backends()[2]
    assert (info.name, info.compiled, info.available) == ("cuda", True, reason is None)
    if reason is None:
        assert "kernels for sm 80-real, 90-real; Gram by kernels" in info.reason
        assert get_backend("cuda").name == "cuda"
    else:
        assert info.reason.startswith(reason)
        with pytest.raises(ValueError, match=f"^backend: 'cuda' is not available: {reason}"):
            la.Moments(2, 1, backend="cuda")


def test_the_listing_says_when_cupy_is_missing_or_broken(gpu, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    info = la.backends()[2]
    assert info.reason == "CuPy is not installed: pip install 'linattn-fast[cuda13]'"
    assert info.compiled
    assert not info.available
    broken = types.ModuleType("cupy")
    broken.__spec__ = types.SimpleNamespace(name="cupy")
    monkeypatch.setitem(sys.modules, "cupy", broken)

    def fail():
        raise ImportError("libcublas.so.13 not found")

    monkeypatch.setattr("linattn_fast.backend.cuda.cupy", fail)
    assert la.backends()[2].reason.startswith("CuPy cannot be imported (libcublas.so.13 not found)")


def test_the_listing_says_when_the_extension_was_not_built(monkeypatch):
    monkeypatch.setattr(cuda_extension, "MISSING", "built without CUDA: nvcc was not found")
    info = la.backends()[2]
    assert (info.compiled, info.available) == (False, False)
    assert info.reason.startswith("built without CUDA: nvcc was not found")


def test_arrays_on_a_device_go_to_cuda_and_to_no_other_backend(gpu, rng, monkeypatch):
    Z, y = rng.standard_normal((30, 3, 2)), rng.standard_normal(30)
    on_gpu = gpu.asarray(Z), gpu.asarray(y)
    monkeypatch.setenv("LINATTN_BACKEND", "numpy")
    assert la.fit(*on_gpu).info.backend == "cuda"
    assert la.fit(Z, y).info.backend == "numpy"
    heads = la.Heads(np.ones((1, 1, 2)), np.ones((1, 2, 2)))
    for name in ("cpu", "numpy"):
        message = f"^backend: '{name}' cannot read arrays on a CUDA device; take 'cuda' or 'auto'"
        with pytest.raises(ValueError, match=message):
            la.fit(*on_gpu, backend=name)
        with pytest.raises(ValueError, match=message):
            la.Moments(2, 1, backend=name).update(*on_gpu)
        with pytest.raises(ValueError, match=message):
            la.certify(on_gpu[0], backend=name)
        with pytest.raises(ValueError, match=message):
            heads(on_gpu[0], backend=name)
        with pytest.raises(ValueError, match=message):
            la.fit(*on_gpu).predict(Z, backend=name)


# ------------------------------------------------------------------------------ nothing is copied


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("flat", [False, True])
def test_arrays_on_the_device_are_read_where_they_are(gpu, rng, positions, dtype, flat):
    Z = gpu.asarray(rng.standard_normal((12, 5, 3)).astype(dtype))
    y = gpu.asarray(rng.standard_normal((12, 5, 2)).astype(dtype))
    y = gpu.ascontiguousarray(y[:, 0]) if positions == "last" else y
    offsets = None
    if flat:
        Z, offsets = Z.reshape(60, 3), np.arange(0, 61, 5)
        y = y if positions == "last" else y.reshape(60, 2)
    la.Moments(3, 2, positions=positions).update(Z, y, offsets=offsets)
    (launch,) = launches("accumulate")
    assert launch[2][:2] == [pointer(Z), pointer(y)]
    heads = la.Heads(gpu.ones((1, 2, 3)), gpu.ones((1, 3, 3)))
    out = heads(Z, positions, offsets=offsets)
    (launch,) = launches("evaluate_heads")
    assert launch[2] == [pointer(heads.V), pointer(heads.Q), pointer(Z), pointer(out)]


def test_arrays_that_are_not_in_c_order_are_copied_on_the_device(gpu, rng):
    Z = gpu.asarray(rng.standard_normal((3, 5, 12))).T
    moments = la.Moments(3, 0).update(Z)
    expected = la.Moments(3, 0, backend="numpy").update(Z.get()).sums.gram
    np.testing.assert_allclose(moments.get().sums.gram, expected, rtol=1e-13)


class Foreign:
    """An array of another library, on device 1."""

    on = 1

    def __init__(self, array):
        self.array = array

    @property
    def __cuda_array_interface__(self):
        return self.array.__cuda_array_interface__


class ForeignTensor(Foreign):
    def __dlpack_device__(self):
        return (2, self.on)

    def __dlpack__(self, **kwargs):
        return "capsule"


class HostTensor:
    """A tensor of another library in host memory."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **kwargs):
        raise AssertionError("host memory is not brought to the device")


@pytest.mark.parametrize("kind", [Foreign, ForeignTensor])
def test_arrays_of_other_libraries_are_taken_without_a_copy(gpu, rng, kind):
    with gpu.cuda.Device(1):
        Z, y = gpu.asarray(rng.standard_normal((20, 5, 2))), gpu.asarray(rng.standard_normal(20))
    fit = la.fit(kind(Z), kind(y))
    assert (fit.info.backend, fit.device) == ("cuda", 1)
    assert launches("accumulate")[0][2][:2] == [pointer(Z), pointer(y)]
    assert fit.predict(kind(Z)).device.id == 1
    assert la.certify(kind(Z)).verdict == fit.certificate.verdict


def test_tensors_in_host_memory_are_read_on_the_host(gpu, rng):
    Z = rng.standard_normal((20, 5, 2))
    assert la.certify(HostTensor(Z)).lambda_min == la.certify(Z).lambda_min
    assert launches() == []


def test_a_foreign_array_says_what_is_needed_to_read_it(gpu, rng, monkeypatch):
    Z = Foreign(gpu.asarray(rng.standard_normal((20, 5, 2))))

    class Broken(Foreign):
        @property
        def __cuda_array_interface__(self):
            raise RuntimeError("requires grad")

    with pytest.raises(TypeError, match=r"^Z: cannot be read as a CuPy array \(requires grad\)"):
        as_tokens(Broken(None))
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(TypeError, match="^Z: this Foreign is on a CUDA device, and CuPy is needed"):
        as_tokens(Z)


# --------------------------------------------------------------------------- devices and streams


def everything_on(gpu, device, rng):
    """Call every public function with arrays on a device while device 0 is current."""
    Z, y = rng.standard_normal((60, 4, 2)), rng.standard_normal((60, 2))
    with gpu.cuda.Device(device):
        Z, y = gpu.asarray(Z), gpu.asarray(y)
    w = rng.random(60)
    moments = la.Moments(2, 2).update(Z, y, sample_weight=w)
    fits = [la.fit(Z, y, solver=name) for name in ("auto", "eigh", "qr", "pcg", "dual")]
    fits += [moments.fit(alpha=0.1), la.fit(Z, y, heads=1), la.fit(Z, y, heads="svd")]
    fit = fits[0]
    certificate = la.certify(Z, spectrum=True)
    return [
        *moments.sums,
        moments.gram(),
        moments.cross(),
        moments.second_moment(),
        moments.gram_diagonal(),
        *(found.coefficients for found in fits),
        *(found.heads.V for found in fits),
        fit.heads.Q,
        fit.heads.coefficients(),
        fit.heads.normalized().V,
        fit.heads[:1].V,
        fit.predict(Z),
        fit.predict(Z, "causal"),
        fit.heads(Z, "all"),
        fit.heads.generate(0.01 * Z[:3].copy() if device == 0 else Z[:3], 0),
        certificate.spectrum,
        certificate.leverage(Z),
        certificate.covers(Z),
        certificate.error_bound(Z, 0.1),
        certificate.null_space(2),
        la.recover_heads(fit.coefficients, 2).V,
        la.cubic_features(Z),
        la.paper_features(Z),
    ]


@pytest.mark.parametrize("device", [0, 1])
def test_every_result_is_on_the_device_of_the_data_and_the_current_one_is_restored(
    gpu, rng, device
):
    for result in everything_on(gpu, device, rng):
        assert isinstance(result, gpu.ndarray)
        assert result.device.id == device
        assert fake_cupy.State.device == 0


def test_the_current_device_is_restored_after_errors(gpu, rng):
    with gpu.cuda.Device(1):
        Z = gpu.asarray(rng.standard_normal((60, 4, 2)))
        y = gpu.asarray(rng.standard_normal((60, 2)))
        bad = Z.copy()
        bad[7, 1, 0] = np.nan
    heads = la.Heads(np.ones((1, 2, 2)), np.ones((1, 2, 2)))
    for call in (
        lambda: la.fit(bad, y),
        lambda: la.fit(bad, y, solver="pcg"),
        lambda: la.certify(bad),
        lambda: la.Moments(2, 2).update(bad, y),
        lambda: heads(bad),
        lambda: la.cubic_features(bad),
    ):
        with pytest.raises(ValueError, match="^Z: must be finite, got nan in sequence 7, token 1"):
            call()
        assert fake_cupy.State.device == 0
    with pytest.raises(RuntimeError, match="stop"):
        la.Moments(2, 2).update(Z, y, progress=lambda done, total: _stop())
    assert fake_cupy.State.device == 0


def _stop():
    raise RuntimeError("stop")


def test_work_is_queued_on_the_current_stream(gpu, rng):
    Z, y = gpu.asarray(rng.standard_normal((60, 4, 2))), gpu.asarray(rng.standard_normal((60, 2)))
    with gpu.cuda.Stream() as stream:
        fit = la.fit(Z, y, solver="pcg")
        la.fit(Z, y)
        fit.predict(Z)
        fit.heads(Z)
    used = {name for name, _, _ in launches()}
    assert used >= {"accumulate", "normal", "gradient", "kronecker_factors", "keep_samples"}
    assert {number for _, number, _ in launches()} == {stream.ptr}


@pytest.mark.parametrize("n", [20, 3000])
def test_an_update_waits_for_the_device_a_fixed_number_of_times(gpu, rng, n):
    Z, y = gpu.asarray(rng.standard_normal((n, 4, 2))), gpu.asarray(rng.standard_normal((n, 2)))
    moments = la.Moments(2, 2)
    fake_cupy.log.clear()
    moments.update(Z, y)
    # are the sums finite; the smallest token; the largest entry of the diagonal
    assert waits() == ["get", "float", "float"]
    fake_cupy.log.clear()
    first, second = la.Moments(2, 2), moments
    first + second
    moments.gram(), moments.cross(), moments.second_moment()
    assert waits() == []


def test_applying_a_layer_waits_once_to_see_whether_outputs_are_finite(gpu, rng):
    Z = gpu.asarray(rng.standard_normal((50, 4, 2)))
    heads = la.Heads(gpu.ones((1, 2, 2)), gpu.ones((1, 2, 2)))
    fake_cupy.log.clear()
    heads(Z, "causal")
    assert waits() == ["bool"]


def test_an_iteration_of_conjugate_gradients_brings_home_three_numbers_an_output(gpu, rng):
    Z, y = gpu.asarray(rng.standard_normal((200, 4, 3))), gpu.asarray(rng.standard_normal((200, 2)))
    fake_cupy.log.clear()
    fit = la.fit(Z, y, solver="pcg", heads=None, certify=False, alpha=1e-3)
    passes = len(launches("normal"))
    assert passes == fit.info.iterations > 5
    gets = [entry for entry in fake_cupy.log if entry[:2] == ("sync", "get")]
    # energy, ||C||^2 and the new residual each; what is around the iterations does not grow
    assert len(gets) <= 3 * passes + 40
    uploads = sum(entry[1] for entry in fake_cupy.log if entry[0] == "upload")
    assert uploads < 100 * passes + 8 * fit.coefficients.size + 2000


# ------------------------------------------------------------------------------- from the host


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(cuda_batches, "BLOCK_BYTES", 700)


def host_batch(rng, form, positions):
    """Tokens, offsets, targets of sequences of 1 to 9 tokens, the first longer than a block."""
    lengths = np.concatenate([[40], rng.integers(1, 10, 60)])
    if form == "dense":
        lengths = np.full(61, 6)
    rows = rng.standard_normal((lengths.sum(), 3))
    y = rng.standard_normal((len(lengths) if positions == "last" else len(rows), 2))
    ends = np.cumsum(lengths)[:-1]
    if form == "dense":
        return rows.reshape(61, 6, 3), None, y if positions == "last" else y.reshape(61, 6, 2)
    if form == "list":
        return np.split(rows, ends), None, y if positions == "last" else np.split(y, ends)
    return rows, np.concatenate([[0], np.cumsum(lengths)]), y


@pytest.mark.parametrize("form", ["dense", "list", "offsets"])
def test_host_arrays_come_over_in_blocks_and_give_the_same_sums(
    gpu, rng, positions, form, small_blocks
):
    Z, offsets, y = host_batch(rng, form, positions)
    w = rng.random(61)
    sums = [
        la.Moments(3, 2, positions=positions, backend=name)
        .update(Z, y, offsets=offsets, sample_weight=w)
        .get()
        .sums
        for name in ("cuda", "numpy")
    ]
    blocks = launches("accumulate")
    assert len(blocks) > 5
    for found, expected in zip(*sums, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-10)
    assert len([entry for entry in fake_cupy.log if entry[0] == "pinned"]) == 2
    heads = la.Heads(rng.standard_normal((1, 2, 3)), rng.standard_normal((1, 3, 3)))
    fake_cupy.log.clear()
    found = heads(Z, positions, offsets=offsets, backend="cuda")
    assert len(launches("evaluate_heads")) > 5
    expected = heads(Z, positions, offsets=offsets, backend="numpy")
    parts = zip(found, expected, strict=True) if isinstance(found, list) else [(found, expected)]
    for a, b in parts:
        np.testing.assert_allclose(a.get(), b, rtol=1e-12, atol=1e-11)


def test_copies_and_computation_overlap_and_wait_for_each_other_alone(gpu, rng, small_blocks):
    Z = rng.standard_normal((50, 5, 3))
    la.Moments(3, 0, backend="cuda").update(Z)
    log = fake_cupy.log
    copies = [i for i, entry in enumerate(log) if entry[0] == "copy"]
    kernels = [i for i, entry in enumerate(log) if entry[:2] == ("launch", "accumulate")]
    assert len(copies) == len(kernels) > 6
    current, (copying,) = 0, {log[i][1] for i in copies}
    assert copying.ptr != current
    for k, (copy, kernel) in enumerate(zip(copies, kernels, strict=True)):
        # The kernel starts after the copy of its block ...
        between = log[copy:kernel]
        marks = [entry[2] for entry in between if entry[:2] == ("record", copying)]
        assert any(e[0] == "wait" and e[1].ptr == current and e[2] in marks for e in between)
        # ... and the copy into the same memory after the kernel that used it, two blocks ago.
        if k >= 2:
            before = log[kernels[k - 2] : copy]
            marks = [
                entry[2] for entry in before if entry[0] == "record" and entry[1].ptr == current
            ]
            assert any(e[0] == "wait" and e[1] is copying and e[2] in marks for e in before)
            assert log[copies[k - 2]][3] == log[copy][3] != log[copies[k - 1]][3]
        # The next copy is queued without waiting for the kernel.
        if k + 1 < len(copies):
            assert not any(entry[0] == "sync" for entry in log[kernel : copies[k + 1]])


def test_host_data_of_conjugate_gradients_is_kept_on_the_device_where_it_fits(
    gpu, rng, small_blocks
):
    Z, y = rng.standard_normal((120, 4, 3)), rng.standard_normal((120, 2))
    expected = la.fit(Z, y, solver="pcg", backend="numpy")
    for free, streamed in ((1 << 40, False), (4000, True)):
        fake_cupy.reset()
        fake_cupy.State.free = free
        fit = la.fit(Z, y, solver="pcg", backend="cuda")
        assert any(entry[0] == "copy" for entry in fake_cupy.log) == streamed
        assert bool(launches("keep_samples")) == (not streamed)
        np.testing.assert_allclose(fit.get().coefficients, expected.coefficients, rtol=1e-9)


# ------------------------------------------------------------------------------ several devices


def test_moments_of_several_devices_are_merged_where_the_first_are(gpu, rng):
    Z, y = rng.standard_normal((90, 4, 3)), rng.standard_normal((90, 2))
    chosen = la.Features(3, pairs=[(0, 1), (1, 2)], queries=[0, 2])
    for features in (None, chosen):
        whole = la.Moments(3, 2, features=features, backend="numpy").update(Z, y)
        parts = []
        for device in (1, 0):
            part = slice(None, 40) if device == 1 else slice(40, None)
            with gpu.cuda.Device(device):
                moments = la.Moments(3, 2, features=features)
                parts.append(moments.update(gpu.asarray(Z[part]), gpu.asarray(y[part])))
        merged, host = parts[0] + parts[1], la.Moments(3, 2, features=features)
        host.update(Z[40:], y[40:])
        for total, device in ((merged, 1), (parts[1] + parts[0], 0), (parts[0] + host, 1)):
            assert total.device == device
            assert total.n_samples == 90
            for found, expected in zip(total.get().sums, whole.sums, strict=True):
                np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-11)
            if features is not None:
                np.testing.assert_allclose(total.get().magnitudes, whole.magnitudes, rtol=1e-12)
        assert (host + parts[0]).device is None
        assert merged.fit().device == 1


def test_batches_of_a_stream_may_be_on_a_device(gpu, rng):
    Z, y = rng.standard_normal((90, 4, 3)), rng.standard_normal((90, 2))
    batches = [(gpu.asarray(Z[i : i + 30]), gpu.asarray(y[i : i + 30])) for i in (0, 30, 60)]
    expected = la.fit(Z, y, backend="numpy")
    for data in (batches, iter(batches)):
        fit = la.fit(data)
        assert (fit.info.backend, fit.device) == ("cuda", 0)
        np.testing.assert_allclose(fit.get().coefficients, expected.coefficients, rtol=1e-8)
    assert la.Moments(3, 2).update(batches).device == 0


def test_stored_arrays_are_read_onto_the_device(gpu, rng, tmp_path):
    Z, y = rng.standard_normal((90, 4, 3)), rng.standard_normal((90, 2))
    np.save(tmp_path / "Z.npy", Z)
    stored = np.load(tmp_path / "Z.npy", mmap_mode="r")
    fit = la.fit(stored, y, backend="cuda")
    assert fit.device == 0
    expected = la.fit(Z, y, backend="numpy").coefficients
    np.testing.assert_allclose(fit.get().coefficients, expected, rtol=1e-8)


# ------------------------------------------------------------------------------------ going home


def test_a_fit_comes_home_whole(gpu, rng, tmp_path):
    Z, y = rng.standard_normal((60, 4, 2)), rng.standard_normal((60, 2))
    with gpu.cuda.Device(1):
        fit = la.fit(gpu.asarray(Z), gpu.asarray(y))
    for home in (fit.get(), fit.to_host()):
        assert home.device is None
        assert home.get() is home
        assert isinstance(home.coefficients, np.ndarray)
        assert not home.coefficients.flags.writeable
        assert isinstance(home.heads.V, np.ndarray)
        assert home.heads.recovery == fit.heads.recovery
        np.testing.assert_allclose(home.predict(Z), fit.predict(Z).get(), rtol=1e-12)
        found, expected = home.certificate.leverage(Z), fit.certificate.leverage(Z).get()
        np.testing.assert_allclose(found, expected, rtol=1e-9)
        assert home.info == fit.info
    fit.save(tmp_path / "fit.npz")
    loaded = la.load(tmp_path / "fit.npz")
    np.testing.assert_array_equal(loaded.coefficients, fit.get().coefficients)
    assert loaded.info == fit.info
    assert "kernels: float64" in str(loaded.info)
    copied = pickle.loads(pickle.dumps(fit.get()))
    np.testing.assert_array_equal(copied.coefficients, loaded.coefficients)
    few = la.certify(gpu.asarray(Z[:3]))  # fewer samples than features
    np.testing.assert_allclose(few.get().leverage(Z[:3]), few.leverage(Z[:3]).get(), rtol=1e-9)


def test_moments_come_home_and_go_to_a_file(gpu, rng, tmp_path):
    Z, y = gpu.asarray(rng.standard_normal((60, 4, 2))), gpu.asarray(rng.standard_normal((60, 2)))
    moments = la.Moments(2, 2).update(Z, y)
    home = moments.get()
    assert (moments.device, home.device) == (0, None)
    assert home.get() is home
    assert home.update(Z.get(), y.get()).n_samples == 120
    assert moments.n_samples == 60
    assert (moments + moments).get().n_samples == 120
    moments.save(tmp_path / "moments.npz")
    assert la.Moments.load(tmp_path / "moments.npz").device is None
    again = la.Moments.load(tmp_path / "moments.npz", backend="cuda")
    assert again.device == 0
    np.testing.assert_array_equal(again.get().sums.gram, moments.get().sums.gram)
    assert pickle.loads(pickle.dumps(moments)).device == 0
    assert len(la.head_path(moments, 2).heads) == 2


# ---------------------------------------------------------------------------------------- errors


def test_wrong_arguments_on_a_device_are_named(gpu, rng):
    Z, y = gpu.asarray(rng.standard_normal((20, 4, 2))), gpu.asarray(rng.standard_normal((20, 2)))

    def changed(array, index, value):
        other = array.copy()
        other[index] = value
        return other

    for message, call in {
        "^Z: dtype must be float32, float64 or an integer type, got complex128": lambda: la.fit(
            Z.astype(complex), y
        ),
        "^Z: dtype must be float32, .*, got float16; convert it": lambda: la.fit(
            Z.astype(np.float16), y
        ),
        r"^Z: an array \(N, n, d\), .*, got shape \(4, 2\)": lambda: la.fit(Z[0], y),
        "^y: one row of targets a sequence is needed": lambda: la.fit(Z, y[:5]),
        "^y: must be finite, got inf for sequence 3, output 1": lambda: la.fit(
            Z, changed(y, (3, 1), np.inf)
        ),
        "^y: must be finite, got nan for sequence 4, output 0": lambda: la.fit(
            Z, changed(y, (4, 0), np.nan), solver="pcg"
        ),
        "^Z: values up to 1e[+]80, with y up to .* overflow float64": lambda: la.fit(
            changed(Z, (2, 0, 0), 1e80), y
        ),
        "^offsets: must start at 0": lambda: la.fit(
            Z.reshape(80, 2), y, offsets=gpu.asarray(np.arange(1, 82, 4))
        ),
        "^sample_weight: must be finite and not negative": lambda: la.fit(
            Z, y, sample_weight=gpu.asarray(np.full(20, -1.0))
        ),
        "^V: must be finite": lambda: la.Heads(
            changed(Z[:1], (0, 0, 0), np.nan), gpu.ones((1, 2, 2))
        ),
    }.items():
        with pytest.raises((ValueError, TypeError), match=message):
            call()
    integers = la.fit(gpu.asarray(rng.integers(-3, 4, (40, 4, 2))), gpu.ones(40))
    assert integers.device == 0
    values = Z.get()
    values[5, 2, 1] = np.inf
    with pytest.raises(ValueError, match="^Z: must be finite, got inf in sequence 5, token 2"):
        la.Moments(2, 0, backend="cuda").update(values)  # from the host
    tiny = gpu.asarray(np.full((20, 4, 2), 1e-60))
    with pytest.raises(ValueError, match="^Z: values of at most 1e-60 underflow"):
        la.Moments(2, 0).update(tiny)
    with pytest.raises(ValueError, match="^Z0: the generated tokens overflow"):
        la.Heads(gpu.ones((1, 2, 2)), gpu.ones((1, 2, 2))).generate(10 * gpu.ones((3, 2)), 50)


def test_a_failed_update_changes_nothing(gpu, rng):
    Z = gpu.asarray(rng.standard_normal((20, 4, 2)))
    moments = la.Moments(2, 0).update(Z)
    before = moments.get().sums.gram
    bad = Z.copy()
    bad[3] = np.nan
    with pytest.raises(ValueError, match="sequence 3"):
        moments.update(bad)
    np.testing.assert_array_equal(moments.get().sums.gram, before)


def test_a_fit_larger_than_the_device_is_refused_before_any_work(gpu, rng, monkeypatch):
    Z, y = gpu.asarray(rng.standard_normal((300, 4, 6))), gpu.asarray(rng.standard_normal(300))
    monkeypatch.setattr(fake_cupy.Device, "mem_info", (1000, 1000))
    with pytest.raises(MemoryError, match="needs .* kB; memory_limit is 1 kB"):
        la.fit(Z, y)
    assert launches() == []


# ------------------------------------------------------------------------------------- two paths


@pytest.mark.parametrize(
    ("capability", "path"),
    [("80", "kernels"), ("90", "kernels"), ("100", "kernels"), ("86", "cublas"), ("120", "cublas")],
)
def test_the_path_follows_the_rate_of_float64_and_is_told(gpu, rng, capability, path):
    fake_cupy.State.capability = capability
    Z, y = gpu.asarray(rng.standard_normal((60, 4, 2))), gpu.asarray(rng.standard_normal((60, 2)))
    fit = la.fit(Z, y)
    assert fit.info.path.startswith(f"{path}: float64")
    assert f"sm_{capability}" in fit.info.path
    gram = [entry[2][2] for entry in launches("accumulate")]
    assert (gram[0] is not None) == (path == "kernels")
    assert fit.certificate.verdict == "identifiable"


def test_the_environment_forces_a_path(gpu, rng, monkeypatch):
    Z, y = gpu.asarray(rng.standard_normal((60, 4, 2))), gpu.asarray(rng.standard_normal((60, 2)))
    for path in cuda_paths.PATHS:
        monkeypatch.setenv("LINATTN_CUDA_PATH", path)
        assert la.fit(Z, y).info.path == f"{path}: asked for by LINATTN_CUDA_PATH"
    assert la.fit(Z, y, precision="mixed").info.path == "cublas: mixed precision is cuBLAS's alone"
    monkeypatch.setenv("LINATTN_CUDA_PATH", "magic")
    message = "LINATTN_CUDA_PATH: must be kernels or cublas, got 'magic'"
    with pytest.raises(ValueError, match=message):
        la.fit(Z, y)
    assert (la.backends()[2].available, la.backends()[2].reason) == (False, message)


def test_emulated_float64_proves_nothing(gpu, rng, monkeypatch):
    Z = gpu.asarray(rng.standard_normal((60, 4, 2)))
    monkeypatch.setenv("LINATTN_CUDA_PATH", "cublas")
    assert la.certify(Z).lower_bound > 0
    monkeypatch.setenv("CUBLAS_EMULATE_DOUBLE_PRECISION", "1")
    certificate = la.certify(Z)
    assert (certificate.lower_bound, certificate.verdict) == (0, "undecided")
    monkeypatch.setenv("LINATTN_CUDA_PATH", "kernels")
    assert la.certify(Z).lower_bound > 0


# ------------------------------------------------------------------------------------- documents

ROOT = Path(__file__).parent.parent


def test_the_examples_of_the_document_run(gpu):
    text = (ROOT / "docs" / "cuda.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) == 2
    names = {}
    for block in blocks:
        exec(compile(block, "docs/cuda.md", "exec"), names)
    assert names["fit"].certificate.verdict == "identifiable"
    assert names["fit"].heads.distance(names["truth"]) < 1e-8


@pytest.fixture
def benchmark_program(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "bench")
    program = importlib.import_module("cuda_backend")
    monkeypatch.setattr(program, "RESULTS", tmp_path)
    monkeypatch.setattr(program, "REPEATS", 1)
    return program


def test_the_benchmark_checks_and_measures(gpu, benchmark_program, tmp_path, capsys):
    sizes = {"last": [(2, 3, 40)], "all": [(2, 3, 20)], "causal": [(2, 3, 10)]}
    assert benchmark_program.main(sizes, (2, 3, 60)) == 0
    assert "| moments, last, d = 2, n = 3, N = 40 | expert CuPy |" in capsys.readouterr().out
    record = json.loads((tmp_path / "cuda.json").read_text())
    assert len(record["rows"]) == 5 + 4 + 4 + 6
    assert (tmp_path / "cuda.md").read_text().startswith("none (sm_80)")
    with pytest.raises(SystemExit, match="the answers differ by"):
        benchmark_program.check(np.eye(2) * 1.1, np.eye(2), 1e-3)


def test_the_benchmark_says_when_there_is_no_card(benchmark_program, monkeypatch, capsys):
    monkeypatch.setattr(cuda_extension, "MISSING", "no NVIDIA driver found")
    assert benchmark_program.main({}, (2, 3, 60)) == 2
    assert capsys.readouterr().err == "bench-cuda: nothing measured: no NVIDIA driver found\n"
