import re

import numpy as np
import pytest
from conftest import needs_cpu, run_python

import linattn_fast as la
from linattn_fast import distribution
from linattn_fast.backend import cpu, cuda


def test_all_backends_are_listed_with_a_reason():
    infos = {info.name: info for info in la.backends()}
    assert list(infos) == ["cpu", "numpy", "cuda"]
    assert infos["numpy"].available
    assert infos["cuda"].available == (cuda.obstacle() is None)
    assert all(info.reason for info in infos.values())
    assert ("unavailable" in str(infos["cuda"])) != infos["cuda"].available


def test_an_unavailable_backend_is_refused_with_the_reason(monkeypatch):
    monkeypatch.setattr(cuda, "obstacle", lambda: "no NVIDIA driver found")
    with pytest.raises(ValueError, match="^backend: 'cuda' is not available: no NVIDIA driver"):
        la.Moments(2, 1, backend="cuda")
    with pytest.raises(
        ValueError, match="^backend: must be one of auto, cpu, numpy, cuda, got 'tpu'"
    ):
        la.Moments(2, 1, backend="tpu")


def test_the_environment_chooses_the_backend(monkeypatch, rng):
    monkeypatch.setenv("LINATTN_BACKEND", "numpy")
    assert la.fit(rng.standard_normal((30, 3, 2)), np.zeros(30)).info.backend == "numpy"
    monkeypatch.setenv("LINATTN_BACKEND", "cuda")
    monkeypatch.setattr(cuda, "obstacle", lambda: "no NVIDIA driver found")
    with pytest.raises(ValueError, match="^LINATTN_BACKEND: 'cuda' is not available"):
        la.fit(rng.standard_normal((30, 3, 2)), np.zeros(30))


@needs_cpu
def test_the_instruction_set_can_be_forced():
    code = "import linattn_fast as la; print(la.backends()[0].reason)"
    outcome = run_python(code, LINATTN_ISA="baseline")
    assert outcome.stdout.startswith("C++ kernels for baseline,"), outcome.stderr


@needs_cpu
@pytest.mark.parametrize("name", ["sse9", "AVX2 "])
def test_an_unknown_instruction_set_lists_what_is_possible(name):
    code = "import linattn_fast as la; la.certify([[[1.0]]])"
    message = f"LINATTN_ISA: '{name}' is not an instruction set; possible here: .*baseline"
    outcome = run_python(code, LINATTN_ISA=name)
    assert outcome.returncode == 1
    assert re.search(f"ValueError: {message}", outcome.stderr), outcome.stderr
    listing = run_python("import linattn_fast as la; print(la.backends()[0])", LINATTN_ISA=name)
    assert "unavailable" in listing.stdout
    assert re.search(message, listing.stdout), listing.stdout


@needs_cpu
def test_an_instruction_set_the_processor_lacks_is_refused():
    missing = [name for name, supported in cpu._cpu.instruction_sets() if not supported]
    for name in missing:
        with pytest.raises(
            ValueError, match=f"'{name}' is not supported by this processor; possible"
        ):
            cpu._cpu.select_instruction_set(name)
    with pytest.raises(ValueError, match="'mmx' is not an instruction set"):
        cpu._cpu.select_instruction_set("mmx")


def test_without_the_extension_numpy_works_and_import_says_how_to_build():
    outcome = run_python(
        """
import sys, warnings
sys.modules["linattn_fast._cpu"] = None  # makes the import fail, as a missing file would
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import linattn_fast as la
(warning,) = [str(w.message) for w in caught if w.category is RuntimeWarning]
assert "pip install ." in warning and "numpy backend" in warning, warning
import numpy as np
Z = np.random.default_rng(0).standard_normal((60, 4, 2))
fit = la.fit(Z, Z[:, 0])
assert fit.info.backend == "numpy" and fit.certificate.verdict == "identifiable"
assert fit.heads(Z, "causal").shape == (60, 4, 2)
assert not la.backends()[0].available and "pip install ." in la.backends()[0].reason
try:
    la.fit(Z, Z[:, 0], backend="cpu")
except ValueError as error:
    assert "pip install ." in str(error)
else:
    raise AssertionError("no error")
"""
    )
    assert outcome.returncode == 0, outcome.stderr


def test_without_the_cuda_extension_the_listing_says_why():
    outcome = run_python(
        """
import sys
sys.modules["linattn_fast._cuda"] = None  # makes the import fail, as a missing file would
import linattn_fast as la
info = la.backends()[2]
assert not info.compiled and not info.available
assert info.reason.startswith("built without CUDA: nvcc was not found"), info.reason
try:
    la.fit([[[1.0]]], [1.0], backend="cuda")
except ValueError as error:
    assert str(error).startswith("backend: 'cuda' is not available: built without CUDA")
else:
    raise AssertionError("no error")
"""
    )
    assert outcome.returncode == 0, outcome.stderr


def test_the_version_is_that_of_whichever_wheel_is_installed(monkeypatch):
    def version(name):
        if name != "linattn-fast-cu13":
            raise distribution.PackageNotFoundError(name)
        return "1.2"

    assert distribution.installed() == (distribution.NAME, la.__version__)
    monkeypatch.setattr(distribution, "version", version)
    assert distribution.installed() == ("linattn-fast-cu13", "1.2")
    monkeypatch.setattr(distribution, "_NAMES", ("linattn-fast",))
    assert distribution.installed() == ("linattn-fast", "0+unknown")


def accumulate(
    module, tokens, offsets=None, *, targets=None, weights=None, positions="last",
    precision="float64", threads=1,
):  # fmt: skip
    return module.accumulate(
        tokens, offsets, targets, None, weights, positions, precision, True, threads, None
    )


@needs_cpu
@pytest.mark.parametrize(
    "call",
    [
        lambda c: accumulate(c, np.zeros((2, 3))),
        lambda c: accumulate(c, np.zeros((2, 3, 4), int)),
        lambda c: accumulate(c, ()),
        lambda c: accumulate(c, (np.zeros((2, 3)), np.zeros((2, 4)))),
        lambda c: accumulate(c, "tokens"),
        lambda c: accumulate(c, np.zeros((6, 3)), np.array([0, 9, 6])),
        lambda c: accumulate(c, np.zeros((6, 3)), np.array([0, 7])),
        lambda c: accumulate(c, np.ones((2, 3, 4)), targets=np.ones((3, 1, 1))),
        lambda c: accumulate(c, np.ones((2, 3, 4)), targets=np.ones((2, 2, 1))),
        lambda c: accumulate(c, np.ones((2, 3, 4)), targets=np.ones((2, 2, 1)), positions="all"),
        lambda c: accumulate(c, np.ones((2, 3, 4)), positions="first"),
        lambda c: accumulate(c, np.ones((2, 3, 4)), precision="half"),
        lambda c: accumulate(c, np.ones((2, 3, 4)), weights=np.ones(3)),
        lambda c: accumulate(c, np.ones((2, 3, 4)), threads=0),
        lambda c: c.evaluate_heads(
            np.ones((1, 1, 2)), np.ones((1, 2, 2)), np.ones((1, 1, 3)), None, "last", 1
        ),
        lambda c: c.evaluate_heads(
            np.ones((1, 1, 2)), np.ones((2, 2, 2)), np.ones((1, 1, 2)), None, "last", 1
        ),
        lambda c: c.evaluate_heads(
            np.ones((1, 1, 2)), np.ones((1, 2, 2)), np.ones((1, 1, 2)), None, "first", 1
        ),
        lambda c: c.evaluate_coefficients(np.ones((1, 5)), np.ones((1, 1, 2)), None, "last", 1),
        lambda c: c.generate(
            np.ones((1, 1, 2)), np.ones((1, 2, 2)), np.ones((1, 1, 2)), 1, None, 1
        ),
        lambda c: c.generate(
            np.ones((1, 2, 2)), np.ones((1, 2, 2)), np.ones((1, 1, 2)), -1, None, 1
        ),
    ],
)
def test_the_extension_itself_survives_wrong_arguments(call):
    with pytest.raises((ValueError, TypeError)):
        call(cpu._cpu)
