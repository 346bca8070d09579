import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import needs_cpu, run_python

import linattn_fast as la
from linattn_fast.arrays.compiled import core
from linattn_fast.backend.cuda import backend as cuda
from linattn_fast.system import packages

TOKENS = np.ones((2, 3, 4))
V, Q, PROMPT = np.ones((1, 1, 2)), np.ones((1, 2, 2)), np.ones((1, 1, 2))  # d = 2, d_out = 1


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
    missing = [name for name, supported in core.instruction_sets() if not supported]
    for name in missing:
        with pytest.raises(
            ValueError, match=f"'{name}' is not supported by this processor; possible"
        ):
            core.select_instruction_set(name)
    with pytest.raises(ValueError, match="'mmx' is not an instruction set"):
        core.select_instruction_set("mmx")


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
from linattn_fast.arrays import compiled
print(compiled.BLOCK_STRIDE, compiled.SAMPLE_QUANTUM)
"""
    )
    assert outcome.returncode == 0, outcome.stderr
    if core is not None:  # estimates of memory are the same
        assert outcome.stdout.split() == [str(core.BLOCK_STRIDE), str(core.SAMPLE_QUANTUM)]


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
            raise packages.PackageNotFoundError(name)
        return "1.2"

    assert packages.installed() == (packages.NAME, la.__version__)
    monkeypatch.setattr(packages, "version", version)
    assert packages.installed() == ("linattn-fast-cu13", "1.2")
    monkeypatch.setattr(packages, "_NAMES", ("linattn-fast",))
    assert packages.installed() == ("linattn-fast", "0+unknown")


def accumulate(tokens, **given):
    """Call the extension with one argument that is wrong; the others are in order."""
    options = {"precision": "float64", "with_gram": True, "threads": 1, "progress": None}
    options |= {name: given.pop(name) for name in options if name in given}
    samples = core.Samples(**{"tokens": tokens, "positions": "last", **given})
    return core.accumulate(samples, **options)


@needs_cpu
@pytest.mark.parametrize(
    ("tokens", "changes", "error", "message"),
    [
        (np.zeros((2, 3)), {}, ValueError, r"tokens: must be \(N, n, d\), not empty"),
        (np.zeros((2, 3, 4), int), {}, TypeError, "tokens: dtype must be float32 or float64"),
        ((), {}, ValueError, "tokens: no sequences"),
        ((np.ones((2, 3)), np.ones((2, 4))), {}, ValueError, "tokens: all .* have the same d"),
        ("tokens", {}, TypeError, "tokens: must be an array or a tuple of arrays"),
        (np.zeros((6, 3)), {"offsets": np.array([0, 9, 6])}, ValueError, "offsets: must increase"),
        (np.zeros((6, 3)), {"offsets": np.array([0, 7])}, ValueError, "offsets: must run from 0"),
        (TOKENS, {"targets": np.ones((3, 1, 1))}, ValueError, "targets: as many sequences"),
        (TOKENS, {"targets": np.ones((2, 2, 1))}, ValueError, "targets: one row a query"),
        (
            TOKENS,
            {"targets": np.ones((2, 2, 1)), "positions": "all"},
            ValueError,
            "targets: one row a query",
        ),
        (TOKENS, {"positions": "first"}, ValueError, "positions: must be .* got 'first'"),
        (TOKENS, {"precision": "half"}, ValueError, "precision: must be 'float64' or 'mixed'"),
        (TOKENS, {"weights": np.ones(3)}, ValueError, r"weights: must be \(N,\)"),
        (TOKENS, {"queries": np.array([0])}, ValueError, "pairs, queries: give both or none"),
        (TOKENS, {"threads": 0}, ValueError, "threads: must be between 1 and 65536"),
    ],
)
def test_sums_of_wrong_arguments_are_refused_by_the_extension(tokens, changes, error, message):
    with pytest.raises(error, match=f"^{message}"):
        accumulate(tokens, **changes)


@needs_cpu
def test_the_extension_takes_the_arguments_that_the_cases_above_spoil():
    found = accumulate(TOKENS, targets=np.ones((2, 1, 1)), weights=np.ones(2))
    sums = found.gram, found.cross, found.energy, found.sizes
    # d = 4: 10 pairs, so 55 pairs of those by 10 pairs of coordinates
    assert [total.shape for total in sums] == [(55 * 10,), (1, 4, 10), (1,), (0, 0)]
    assert found.energy.tolist() == [2.0]
    assert (found.roundings[1], found.underflow) == (0, False)


@needs_cpu
@pytest.mark.parametrize("samples", [None, TOKENS, {"tokens": TOKENS}])
def test_what_is_not_samples_is_refused_by_the_extension(samples):
    with pytest.raises(TypeError, match="incompatible .* arguments"):
        core.NormalEquations(samples, keep=True)
    with pytest.raises(TypeError, match="incompatible .* arguments"):
        core.evaluate_heads(V, Q, samples, 1)


@needs_cpu
def test_samples_outlive_the_names_of_their_arrays():
    def equations():
        tokens = np.arange(60.0).reshape(4, 5, 3)
        return core.NormalEquations(core.Samples(tokens=tokens, positions="all"), keep=False)

    first = equations()
    others = [
        np.full((4, 5, 3), np.nan) for _ in range(50)
    ]  # would take the memory if it were free
    for found, expected in zip(
        first.kronecker_factors(1), equations().kronecker_factors(1), strict=True
    ):
        np.testing.assert_array_equal(found, expected)
    del others


@needs_cpu
def test_threads_may_share_samples():
    rng = np.random.default_rng(0)
    tokens, pairs, queries = rng.standard_normal((500, 4, 6)), np.arange(3), np.arange(2)
    samples = core.Samples(tokens=tokens, positions="all", pairs=pairs, queries=queries)

    def gram(_):
        return core.accumulate(
            samples, precision="float64", with_gram=True, threads=2, progress=None
        ).gram

    with ThreadPoolExecutor(4) as pool:
        grams = list(pool.map(gram, range(16)))
    assert grams[0].any()
    for other in grams:
        np.testing.assert_array_equal(other, grams[0])


@needs_cpu
@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("evaluate_heads", (V, Q, {"tokens": np.ones((1, 1, 3))}, 1), "tokens: d must be that"),
        ("evaluate_heads", (V, Q[[0, 0]], {}, 1), "V, Q: must be"),
        ("evaluate_heads", (V, Q, {"positions": "first"}, 1), "positions: must be .* got 'first'"),
        (
            "evaluate_heads",
            (V, Q, {"pairs": np.array([0]), "queries": np.array([1])}, 1),
            "samples: must have all features",
        ),
        ("evaluate_coefficients", (np.ones((1, 5)), {}, 1), "coefficients: must be"),
        ("generate", (V, Q, PROMPT, 1, None, 1), "V: d_out must be d"),
        ("generate", (np.ones((1, 2, 2)), Q, PROMPT, -1, None, 1), "steps: must not be negative"),
    ],
)
def test_layers_of_wrong_arguments_are_refused_by_the_extension(name, arguments, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        getattr(core, name)(
            *(
                core.Samples(**{"tokens": PROMPT, "positions": "last", **given})
                if isinstance(given, dict)
                else given
                for given in arguments
            )
        )
