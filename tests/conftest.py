"""Shared by all tests: backends, instruction sets, planted layers and derived tolerances."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from oracles.batches import arrays_of, samples_of, with_rows
from stand_ins import fake_cupy, stand_in_cuda

import linattn_fast as la
from linattn_fast.arrays.compiled import MISSING, core
from linattn_fast.arrays.device import to_host
from linattn_fast.backend.cuda import backend as cuda
from linattn_fast.backend.cuda.backend import extension as cuda_extension
from linattn_fast.backend.reference import NumpyBackend
from linattn_fast.backend.totals import Totals
from linattn_fast.data import sources
from linattn_fast.data.tokens import Tokens

pytest_plugins = ["stand_ins.cli_session"]  # its fixtures: folder, truth, data, model

settings.register_profile(
    "linattn",
    deadline=None,  # the machines are shared and noisy
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("linattn")

# A shell's background jobs start with SIGINT ignored; the tests of Ctrl-C would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)

EPS = np.finfo(np.float64).eps

needs_cpu = pytest.mark.skipif(MISSING is not None, reason=f"no compiled backend: {MISSING}")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20241010)


MAKE_BELIEVE = bool(os.environ.get("LINATTN_MAKE_BELIEVE_CUDA"))
"""Run what needs a GPU on the make-believe one, to see that those tests themselves are right."""

needs_cuda = pytest.mark.skipif(
    cuda.obstacle() is not None and not MAKE_BELIEVE,
    reason=f"no CUDA backend: {cuda.obstacle()}",
)


@pytest.fixture(
    params=[
        "numpy",
        pytest.param("cpu", marks=needs_cpu),
        pytest.param("cuda", marks=needs_cuda),
    ]
)
def backend(request: pytest.FixtureRequest) -> str:
    """Every installed backend in turn; results of "cuda" are on the device, see :func:`home`."""
    if request.param == "cuda" and MAKE_BELIEVE:
        request.getfixturevalue("gpu")
    return request.param


def home(result: Any) -> Any:
    """An array, a list or a tuple of them, on the host."""
    if isinstance(result, list | tuple):
        items = map(home, result)
        return type(result)(*items) if hasattr(result, "_fields") else type(result)(items)
    return to_host(result)


def _instruction_sets() -> list[object]:
    if MISSING is not None:
        return [pytest.param("none", marks=needs_cpu)]
    return [
        pytest.param(name, marks=pytest.mark.skipif(not ok, reason=f"this processor lacks {name}"))
        for name, ok in core.instruction_sets()
    ]


@pytest.fixture(params=_instruction_sets())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every compiled instruction set in turn."""
    core.select_instruction_set(request.param)
    yield request.param
    core.select_instruction_set("")


@pytest.fixture(autouse=True)
def default_threads() -> Iterator[None]:
    yield
    la.set_num_threads(None)


@pytest.fixture(params=["last", "all", "causal"])
def positions(request: pytest.FixtureRequest) -> str:
    """Every mode in turn."""
    return request.param


def plant(rng: np.random.Generator, d: int, heads: int, d_out: int) -> la.Heads:
    """A layer with Gaussian heads."""
    return la.Heads(rng.standard_normal((heads, d_out, d)), rng.standard_normal((heads, d, d)))


def relative(a: np.ndarray, b: np.ndarray) -> float:
    """Distance of a from b, relative to b."""
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def magnitudes(
    tokens: Tokens, y: Tokens | None, w: np.ndarray | None = None, positions: str = "last"
) -> Totals:
    """Moments of absolute values: what the rounding error of every entry is relative to."""
    sizes = Tokens(tuple(np.abs(z.astype(np.float64)) for z in tokens))
    targets = None if y is None else Tokens(tuple(np.abs(z.astype(np.float64)) for z in y))
    return NumpyBackend().moments(samples_of(sizes, targets, w, positions))


def rounding_steps(tokens: Tokens, positions: str = "last") -> int:
    """Most roundings on the way to one entry of the moments.

    Each S has n products and n sums, and there are at most three of them ("all"); the product of w
    and the factors has 4 more; the sum over samples has at most as many as there are, in whatever
    order. Both sides of a comparison may err.
    """
    return 2 * (3 * 2 * int(tokens.lengths.max()) + 4 + tokens.n_samples(positions))


def assert_moments_agree(
    found: Totals,
    expected: Totals,
    tokens: Tokens,
    y: Tokens | None,
    w: np.ndarray | None = None,
    positions: str = "last",
) -> None:
    """Entry by entry, within the standard rounding bound."""
    steps = rounding_steps(tokens, positions)
    sizes = magnitudes(tokens, y, w, positions)
    for a, b, size in zip(*map(arrays_of, (found, expected, sizes)), strict=True):
        assert a.shape == b.shape
        assert (np.abs(a - b) <= steps * EPS * size).all()


def random_targets(rng: np.random.Generator, tokens: Tokens, d_out: int, positions: str) -> Tokens:
    """Gaussian targets, one row a query."""
    if positions == "last":
        return Tokens(rng.standard_normal((len(tokens), 1, d_out)))
    return with_rows(tokens, rng.standard_normal((tokens.n_rows, d_out)))


def targets_for(
    rng: np.random.Generator, Z: np.ndarray | list[np.ndarray], positions: str, d_out: int = 2
) -> np.ndarray | list[np.ndarray]:
    """Gaussian targets of sequences in the form that the sequences have: an array or a list."""
    if positions == "last":
        return rng.standard_normal((len(Z), d_out))
    if isinstance(Z, np.ndarray):
        return rng.standard_normal((*Z.shape[:2], d_out))
    return [rng.standard_normal((len(z), d_out)) for z in Z]


def rows_of(y: np.ndarray | list[np.ndarray], positions: str) -> np.ndarray:
    """Targets with a row for each query, (samples, d_out)."""
    return np.asarray(y) if positions == "last" else np.concatenate(list(y))


def ragged(rng: np.random.Generator, N: int, d: int, longest: int = 5) -> list[np.ndarray]:
    """Gaussian sequences of 1 to ``longest`` tokens."""
    return [rng.standard_normal((rng.integers(1, longest + 1), d)) for _ in range(N)]


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter; the caller looks at the outcome."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def import_error_without(package: str, attempt: str, before: str = "") -> str:
    """What is said where ``attempt`` needs a package that a fresh interpreter has not got."""
    outcome = run_python(
        f"import sys; sys.modules[{package!r}] = None\n"
        f"{before}\n"
        f"try: {attempt}\n"
        "except ImportError as error: print(error)\n"
    )
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """CuPy on a machine with two make-believe devices, and kernels that follow the contract.

    Whatever a test does, the current device and stream are what they were afterwards.
    """
    fake_cupy.reset()
    for name, module in fake_cupy.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(cuda_extension, "kernels", stand_in_cuda, raising=False)
    monkeypatch.setattr(cuda_extension, "MISSING", None)
    yield sys.modules["cupy"]
    assert fake_cupy.State.device == 0
    assert [len(stack) for stack in fake_cupy.State.streams.values()] == [1, 1]


def library(name: str) -> types.ModuleType:
    """An optional library: tests are skipped where it is missing, unless it must be there."""
    if os.environ.get("LINATTN_REQUIRE_LIBRARIES"):
        return importlib.import_module(name)
    return pytest.importorskip(name, reason=f"{name} is an optional library")


@pytest.fixture
def small_batches(monkeypatch):
    """Batches of 2,000 bytes, whatever the moments."""
    monkeypatch.setattr(sources, "BATCH_BYTES", 2000)
    monkeypatch.setattr(sources, "_LARGEST_BATCH", 0)
