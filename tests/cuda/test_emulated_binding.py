"""The binding of the CUDA module: what it takes, what it refuses in which words, and devices."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from emulated import Batch, DeviceArray, cuda, device, triples_or_pairs

from linattn_fast.arrays.types import POSITIONS
from linattn_fast.data.tokens import Tokens
from linattn_fast.features.features import Features


@pytest.fixture(autouse=True)
def two_devices() -> Iterator[None]:
    yield
    cuda.set_devices(2)
    cuda.set_current_device(0)
    cuda.forget_places()
    cuda.refuse_launch(-1)


def arguments() -> dict[str, Any]:
    """Arguments of ``Samples`` and of ``accumulate`` in one, all of them right."""
    rng = np.random.default_rng(1)
    tokens = rng.standard_normal((3, 2, 2))
    batch = Batch(Tokens(tokens), Tokens(rng.standard_normal((3, 1, 1))), np.ones(3))
    sizes = cuda.Sizes(positions="last", n_sequences=3, n_rows=6, d=2, d_out=1)
    return {
        **batch.arguments(),
        "gram": device(np.zeros((6, 3))),
        "cross": device(np.zeros((1, 2, 3))),
        "energy": device(np.zeros(1)),
        "workspace": device(np.zeros(sizes.workspace_bytes("accumulate") // 8)),
        "stream": 0,
    }


OF_THE_CALL = ("gram", "cross", "energy", "workspace", "stream")


def samples(**given: Any) -> Any:
    return cuda.Samples(**{key: value for key, value in given.items() if key not in OF_THE_CALL})


def accumulate(**given: Any) -> None:
    cuda.accumulate(samples(**given), **{name: given[name] for name in OF_THE_CALL})


def test_right_arguments_are_taken() -> None:
    given = arguments()
    accumulate(**given)
    assert given["energy"].array[0] > 0


ROWS = np.zeros((6, 2))
OFFSETS = np.array([0, 2, 6])
FORTRAN = np.asfortranarray(np.zeros((3, 2, 2)))

REFUSED = [
    ({"tokens": np.zeros((3, 2, 2))}, TypeError, "tokens: an array with __cuda_array_interface__"),
    ({"tokens": device(np.zeros((3, 2, 2), dtype=np.int32))}, TypeError, "tokens: must be float32"),
    ({"tokens": device(np.zeros((3, 2, 2), dtype=">f8"))}, TypeError, "tokens: dtype >f8"),
    ({"tokens": device(FORTRAN)}, ValueError, "tokens: must be in C order"),
    ({"tokens": device(np.zeros((3, 4, 2))[:, ::2])}, ValueError, "tokens: must be in C order"),
    ({"tokens": device(np.zeros((3, 2)))}, ValueError, r"tokens: must be \(N, n, d\)"),
    ({"tokens": device(np.zeros((3, 0, 2)))}, ValueError, r"tokens: must be \(N, n, d\)"),
    (
        {"tokens": DeviceArray(np.zeros((3, 2, 2)), mask=device(np.zeros(1)))},
        TypeError,
        "tokens: masked",
    ),
    ({"offsets": device(OFFSETS)}, ValueError, r"tokens: must be \(rows, d\) with offsets"),
    (
        {"tokens": device(ROWS), "offsets": device(OFFSETS.astype(np.int32))},
        TypeError,
        "offsets: must be int64, got dtype i4",
    ),
    (
        {"tokens": device(ROWS), "offsets": device(OFFSETS[:1])},
        ValueError,
        r"offsets: must be \(N \+ 1,\)",
    ),
    ({"targets": device(np.zeros((2, 1)))}, ValueError, "targets: must have 3 rows"),
    ({"targets": device(np.zeros(3))}, ValueError, "targets: must have 3 rows"),
    ({"targets": device(np.zeros((3, 1), dtype=np.int64))}, TypeError, "targets: must be float32"),
    ({"weights": device(np.zeros(2))}, ValueError, r"weights: must be \(N,\) = \(3,\)"),
    ({"weights": device(np.zeros(3, np.float32))}, TypeError, "weights: must be float64"),
    ({"positions": "first"}, ValueError, "positions: must be 'last', 'all' or 'causal'"),
    ({"pairs": device(np.zeros(1, np.int64))}, ValueError, "pairs, queries: give both or none"),
    (
        {"pairs": device(np.zeros(1)), "queries": device(np.zeros(1, np.int64))},
        TypeError,
        "pairs: must be int64",
    ),
    (
        {"pairs": device(np.zeros(4, np.int64)), "queries": device(np.zeros(1, np.int64))},
        ValueError,
        "n_pairs: must be 1 to 3, got 4",
    ),
    ({"gram": device(np.zeros(17))}, ValueError, "gram: must have 18 entries"),
    ({"gram": device(np.zeros(18, np.float32))}, TypeError, "gram: must be float64"),
    ({"gram": DeviceArray(np.zeros(18), data=(8, True))}, ValueError, "gram: is read-only"),
    ({"cross": device(np.zeros((1, 3, 2)))}, ValueError, r"cross: must be .* = \(1, 2, 3\)"),
    ({"cross": None}, ValueError, "cross: must be given with targets"),
    ({"targets": None}, ValueError, "cross: must be given with targets, and else be None"),
    ({"energy": device(np.zeros((1, 1)))}, ValueError, r"energy: must be \(d_out,\)"),
    ({"workspace": device(np.zeros(3))}, ValueError, r"workspace: \d+ bytes are needed, got 24"),
    (
        {"workspace": device(np.zeros(1 << 20, np.uint8)[1:])},
        ValueError,
        "workspace: the address must be a multiple of 8",
    ),
]


@pytest.mark.parametrize(("change", "kind", "words"), REFUSED, ids=lambda x: str(x)[:40])
def test_wrong_arguments_are_refused_by_name(
    change: dict[str, Any], kind: type[Exception], words: str
) -> None:
    given = {**arguments(), **change}
    before = cuda.launches()
    with pytest.raises(kind, match=words):
        accumulate(**given)
    assert cuda.launches() == before


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        case
        for case in REFUSED
        if not set(case[0]) & set(OF_THE_CALL) and case[0] != {"targets": None}
    ],
    ids=lambda x: str(x)[:40],
)
def test_wrong_samples_are_refused_when_they_are_made(
    change: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        samples(**{**arguments(), **change})


def test_layers_take_samples_with_all_features_alone() -> None:
    rng = np.random.default_rng(1)
    batch = Batch(Tokens(rng.standard_normal((3, 2, 2))), features=Features(2, [(0, 1)], [0]))
    C, out, space = (device(np.zeros(shape)) for shape in ((1, 6), (3, 1), 1000))
    with pytest.raises(ValueError, match="samples: must have all features"):
        cuda.evaluate_coefficients(C, batch.samples, out=out, workspace=space, stream=0)


def test_a_gradient_needs_targets() -> None:
    batch = Batch(Tokens(np.ones((3, 2, 2))))
    with pytest.raises(ValueError, match="targets: must not be None"):
        cuda.gradient(
            batch.samples, kept=None, coefficients=None, gradient=None, squared_error=None,
            workspace=None, stream=0,
        )  # fmt: skip


@pytest.mark.parametrize("name", ["weights", "gram", "workspace"])
def test_arrays_of_two_devices_are_refused(name: str) -> None:
    given = arguments()
    array = given[name].array
    cuda.place(array.ctypes.data, array.nbytes, 1)
    with pytest.raises(ValueError, match=f"{name}: is on device 1, but tokens is on device 0"):
        accumulate(**given)


def test_host_memory_is_refused() -> None:
    given = arguments()
    array = given["cross"].array
    cuda.place(array.ctypes.data, array.nbytes, -1)
    with pytest.raises(ValueError, match="cross: is not in the memory of a CUDA device"):
        accumulate(**given)


def test_the_device_of_the_arrays_is_current_for_the_call_and_then_the_one_before() -> None:
    given = arguments()
    for item in given.values():
        if isinstance(item, DeviceArray):
            cuda.place(item.array.ctypes.data, item.array.nbytes, 1)
    accumulate(**given)
    assert cuda.last_device() == 1
    assert cuda.current_device() == 0
    cuda.refuse_launch(0)
    with pytest.raises(RuntimeError, match="CUDA: invalid configuration"):
        accumulate(**given)
    assert cuda.current_device() == 0


def test_a_refused_launch_is_reported_with_file_and_line() -> None:
    for after in range(3):
        cuda.refuse_launch(after)
        with pytest.raises(RuntimeError, match=r"CUDA: invalid configuration .*csrc/cuda/\w+\.cu:"):
            accumulate(**arguments())
    cuda.refuse_launch(-1)
    accumulate(**arguments())


def test_without_a_driver_there_are_no_devices_and_calls_say_why() -> None:
    cuda.set_devices(0)
    assert (cuda.driver_version(), cuda.device_count()) == (0, 0)
    with pytest.raises(RuntimeError, match="driver version is insufficient"):
        accumulate(**arguments())


def test_what_the_module_says_of_itself() -> None:
    assert (cuda.driver_version(), cuda.runtime_version(), cuda.device_count()) == (13000, 13000, 2)
    assert cuda.architectures() == ["emulated"]


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("chosen", [None, Features(4, [(0, 1), (2, 3), (1, 1)], [0, 3])])
def test_the_size_of_the_gram(positions: str, chosen: Features | None) -> None:
    features = Features(4) if chosen is None else chosen
    counts = {} if chosen is None else {"n_pairs": chosen.n_pairs, "n_queries": chosen.n_queries}
    sizes = cuda.Sizes(positions=positions, n_sequences=1, n_rows=1, d=4, **counts)
    assert sizes.gram_size == triples_or_pairs(features, positions)


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("chosen", [None, Features(4, [(0, 1), (2, 3), (1, 1)], [0, 3])])
def test_samples_have_the_sizes_of_their_arrays(positions: str, chosen: Features | None) -> None:
    tokens = Tokens(np.ones((6, 4)), np.array([0, 2, 6]))
    batch = Batch(tokens, None, None, positions, chosen)
    counts = {} if chosen is None else {"n_pairs": chosen.n_pairs, "n_queries": chosen.n_queries}
    told = cuda.Sizes(positions=positions, n_sequences=2, n_rows=6, d=4, **counts)
    for name in ("gram_size", "kept_bytes", "summation_steps"):
        assert getattr(batch.samples.sizes, name) == getattr(told, name)
    found = batch.samples.sizes.workspace_bytes("normal", m=2)
    assert found == told.workspace_bytes("normal", m=2) > 0


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize(
    ("operation", "more"),
    [
        ("accumulate", {}),
        ("keep_samples", {}),
        ("kronecker_factors", {"kept": True}),
        ("normal", {"m": 3}),
        ("gradient", {}),
        ("evaluate_heads", {"m": 5}),
        ("evaluate_coefficients", {}),
    ],
)
def test_workspace_does_not_grow_with_the_number_of_sequences(
    operation: str, more: dict[str, Any], positions: str
) -> None:
    sizes = {"positions": positions, "d": 16, "d_out": 2}
    million, billion = (
        cuda.Sizes(**sizes, n_sequences=n, n_rows=10 * n).workspace_bytes(operation, **more)
        for n in (10**6, 10**9)
    )
    assert million == billion
    assert million < 256 << 20


def test_sizes_that_make_no_sense_are_refused() -> None:
    sizes = {"positions": "last", "n_sequences": 1, "n_rows": 1, "d": 2, "d_out": 1}
    right = cuda.Sizes(**sizes)
    with pytest.raises(ValueError, match="operation: there is none called 'fit'"):
        right.workspace_bytes("fit")
    with pytest.raises(ValueError, match="m: must be positive for 'normal'"):
        right.workspace_bytes("normal")
    with pytest.raises(ValueError, match="d_out: must be positive for 'gradient'"):
        right.workspace_bytes("gradient", d_out=0)
    with pytest.raises(ValueError, match="d_out: must be 0 to"):
        right.workspace_bytes("gradient", d_out=-1)
    with pytest.raises(ValueError, match="n_pairs, n_queries: give both or none"):
        cuda.Sizes(**sizes, n_pairs=1)
    with pytest.raises(ValueError, match="d: must be 1 to"):
        cuda.Sizes(**{**sizes, "d": 0})


@pytest.mark.parametrize("positions", POSITIONS)
def test_summation_steps_are_fewer_than_samples_and_grow_slowly(positions: str) -> None:
    def steps(n: int) -> int:
        return cuda.Sizes(positions=positions, n_sequences=n, n_rows=n, d=8).summation_steps

    assert steps(1) <= 16  # a panel of eight, and what is added to
    assert steps(100) <= 128
    assert steps(10**7) < 10**5


def test_calls_from_several_threads_do_not_disturb_each_other() -> None:
    expected = arguments()
    accumulate(**expected)
    shared = samples(**expected)
    results = [arguments() for _ in range(4)]
    workers = [
        threading.Thread(
            target=cuda.accumulate,
            args=(shared,),
            kwargs={name: given[name] for name in OF_THE_CALL},
        )
        for given in results
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for given in results:
        np.testing.assert_array_equal(given["gram"].array, expected["gram"].array)
