"""What the CUDA backend says about itself: where it can be used, which way it takes, its documents.

And that the make-believe CuPy, on which all of this is tested, is as strict as it says.
"""

import importlib
import json
import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from stand_ins import fake_cupy, stand_in_cuda
from stand_ins.fake_machine import launches

import linattn_fast as la
from linattn_fast.backend.choice import get_backend
from linattn_fast.backend.cuda import paths as cuda_paths
from linattn_fast.backend.cuda.backend import extension as cuda_extension

# ------------------------------------------------------------------------- the make-believe CuPy


def test_a_make_believe_array_is_as_unlike_numpy_as_cupys(gpu):
    x, home = gpu.asarray(np.arange(6.0)), np.arange(6.0)
    implicit, unsupported = "Implicit conversion to a NumPy array", "Unsupported type .*numpy"
    for message, wrong in (
        (implicit, lambda: np.asarray(x)),
        ("does not support ufuncs", lambda: np.sqrt(x)),
        ("numpy.concatenate was called", lambda: np.concatenate([x, x])),
        (unsupported, lambda: x + home),
        (unsupported, lambda: home * x),
        (unsupported, lambda: x[np.arange(2)]),
        ("sqrt: an array on a device is needed", lambda: gpu.sqrt(home)),
        (unsupported, lambda: gpu.where(x > 1, home, x)),
        ("unexpected keyword argument 'initial'", lambda: x.max(initial=0.0)),
        ("no attribute 'setflags'", lambda: x.setflags(write=False)),
        (implicit, lambda: home.__setitem__(slice(None), x)),
    ):
        with pytest.raises((TypeError, AttributeError), match=message):
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

    monkeypatch.setattr("linattn_fast.backend.cuda.backend.cupy", fail)
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

ROOT = Path(__file__).parents[2]


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
