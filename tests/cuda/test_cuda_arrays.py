"""The CUDA backend's care for arrays: where they are, on which stream, and who waits for whom.

Run against a make-believe CuPy (:mod:`fake_cupy`) and a stand-in for the kernels
(:mod:`stand_in_cuda`), so that every line runs where there is no GPU.
"""

import sys

import numpy as np
import pytest
from oracles.batches import arrays_of
from stand_ins import fake_cupy
from stand_ins.fake_machine import launches, waits

import linattn_fast as la
from linattn_fast.data.tokens import as_tokens


def pointer(array):
    return array.__cuda_array_interface__["data"][0]


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
        *arrays_of(moments.sums),
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
            for found, expected in zip(
                *map(arrays_of, (total.get().sums, whole.sums)), strict=True
            ):
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
