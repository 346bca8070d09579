"""Data that is not in memory gives what the same data gives in memory."""

import os
import signal
import threading
import time

import numpy as np
import pytest
from conftest import EPS, assert_moments_agree, home, plant, random_targets, run_python

import linattn_fast as la
from linattn_fast import sources
from linattn_fast.read_ahead import read_ahead
from linattn_fast.tokens import Tokens


class Stored:
    """What Zarr arrays and HDF5 datasets have in common: shape, dtype, slices, perhaps chunks."""

    def __init__(self, array, chunks=None):
        self._array = array
        self.shape, self.dtype = array.shape, array.dtype
        self.reads = []
        if chunks is not None:
            self.chunks = chunks

    def __getitem__(self, rows):
        assert isinstance(rows, slice)
        self.reads.append((rows.start, rows.stop))
        return self._array[rows]

    def __array__(self, *_, **__):
        raise AssertionError("read as a whole")


@pytest.fixture
def small_batches(monkeypatch):
    """Batches of 2,000 bytes, whatever the moments."""
    monkeypatch.setattr(sources, "BATCH_BYTES", 2000)
    monkeypatch.setattr(sources, "_LARGEST_BATCH", 0)


def on_disk(tmp_path, name, array):
    path = tmp_path / f"{name}.npy"
    np.save(path, array)
    return np.load(path, mmap_mode="r")


def targets_for(rng, Z, positions, d_out=2):
    shape = Z.shape[:1] if positions == "last" else Z.shape[:2]
    return rng.standard_normal((*shape, d_out))


def as_tokens_and_targets(Z, y, positions):
    return Tokens(Z), Tokens(y[:, None, :]) if positions == "last" else Tokens(y)


@pytest.mark.parametrize("form", ["memmap", "stored", "chunked", "list", "generator", "mappings"])
@pytest.mark.parametrize("weighted", [False, True])
def test_streamed_moments_are_those_of_the_whole(
    tmp_path, rng, backend, positions, form, weighted, small_batches
):
    Z = rng.standard_normal((103, 6, 3))
    y = targets_for(rng, Z, positions)
    w = rng.random(103) if weighted else None
    expected = la.Moments(3, 2, positions=positions, backend=backend)
    expected.update(Z, y, sample_weight=w)
    parts = [slice(0, 40), slice(40, 41), slice(41, 103)]
    rest = {"sample_weight": w}
    if form == "memmap":
        data = (on_disk(tmp_path, "Z", Z), on_disk(tmp_path, "y", y))
    elif form == "stored":
        data = (Stored(Z), Stored(y))
    elif form == "chunked":
        data = (Stored(Z, (10, 6, 3)), y)
    elif form == "mappings":
        names = {"sample_weight": w} if weighted else {}
        data, rest = (
            [
                (
                    {"Z": Z[part], "y": y[part], **{name: v[part] for name, v in names.items()}}
                    for part in parts
                )
            ],
            {},
        )
    else:
        batches = [(Z[part], y[part], *([w[part]] if weighted else [])) for part in parts]
        data, rest = [batches if form == "list" else (batch for batch in batches)], {}
    found = la.Moments(3, 2, positions=positions, backend=backend).update(*data, **rest)
    assert found.n_samples == expected.n_samples
    assert found.total_weight == pytest.approx(expected.total_weight, rel=1e-14)
    tokens, targets = as_tokens_and_targets(Z, y, positions)
    assert_moments_agree(home(found.sums), home(expected.sums), tokens, targets, w, positions)


@pytest.mark.parametrize("dtype", [np.float32, np.int16])
def test_flat_memory_maps_are_cut_between_sequences(tmp_path, rng, positions, small_batches, dtype):
    lengths = rng.integers(1, 30, 60)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    rows = (10 * rng.standard_normal((offsets[-1], 3))).astype(dtype)
    tokens = Tokens(rows.astype(float), offsets)
    targets = random_targets(rng, tokens, 2, positions)
    y = targets.storage[:, 0] if positions == "last" else targets.storage
    w = rng.random(60)
    expected = la.Moments(3, 2, positions=positions)
    expected.update(rows, y, offsets=offsets, sample_weight=w)
    found = la.Moments(3, 2, positions=positions)
    found.update(on_disk(tmp_path, "rows", rows), y, offsets=offsets, sample_weight=w)
    assert found.rounding_steps > expected.rounding_steps  # it was cut
    assert_moments_agree(found.sums, expected.sums, tokens, targets, w, positions)


def test_a_stream_of_one_batch_has_the_bits_of_the_array(tmp_path, rng):
    Z, y = rng.standard_normal((50, 4, 3)), rng.standard_normal(50)
    expected = la.Moments(3, 1).update(Z, y)
    for found in (
        la.Moments(3, 1).update(on_disk(tmp_path, "Z", Z), y),
        la.Moments(3, 1).update([(Z, y)]),
        la.Moments(3, 1).update(Stored(Z), list(y)),
    ):
        for a, b in zip(found.sums, expected.sums, strict=True):
            np.testing.assert_array_equal(a, b)


def test_moments_without_targets_take_tokens_alone(rng):
    Z = rng.standard_normal((30, 4, 3))
    expected = la.Moments(3, 0).update(Z[:20]).update(Z[20:])
    for stream in (iter([Z[:20], Z[20:]]), [(Z[:20], None), (list(Z[20:]), None)]):
        found = la.Moments(3, 0).update(stream)
        np.testing.assert_array_equal(found.sums.gram, expected.sums.gram)


def test_a_list_of_sequences_is_one_batch_and_no_stream(rng):
    """Also of two or three sequences, or of tokens given as tuples."""
    for sequences in (
        [rng.standard_normal((2, 3)) for _ in range(2)],
        [((1.0, 2.0, 3.0), (3.0, 1.0, 0.0))],
        [[[1.0, 2.0, 3.0], [3.0, 1.0, 0.0], [0.0, 1.0, 1.0]]] * 3,
        ([np.ones(3), np.ones(3)],),
    ):
        assert la.Moments(3, 0).update(sequences).n_samples == len(sequences)


@pytest.mark.parametrize(
    ("sequences", "first"),
    [
        (100, [90, 180, 270]),
        (10, [30, 60]),  # chunks larger than a batch are read whole
        (7, [7, 14]),  # unless they are much larger
    ],
)
def test_batches_follow_the_chunks_of_storage(monkeypatch, sequences, first):
    monkeypatch.setattr(sources, "BATCH_BYTES", 80 * sequences)
    Z = Stored(np.zeros((1000, 5, 2)), (30, 5, 2))  # 80 bytes a sequence
    cut = [batch.end for batch in sources.as_source(Z).read()]
    assert cut[: len(first)] == first
    assert cut[-1] == 1000


@pytest.mark.parametrize("kind", ["zarr", "h5py"])
def test_zarr_and_hdf5_are_streams(tmp_path, rng, kind, small_batches):
    module = pytest.importorskip(kind)
    Z, y = rng.standard_normal((200, 4, 3)), rng.standard_normal((200, 2))
    if kind == "zarr":
        group = module.open_group(str(tmp_path / "data.zarr"), mode="w")
        for name, array in (("Z", Z), ("y", y)):
            chunks = (16, *array.shape[1:])
            group.create_array(name, shape=array.shape, chunks=chunks, dtype="f8")[:] = array
    else:
        group = module.File(tmp_path / "data.h5", "w")
        group.create_dataset("Z", data=Z, chunks=(16, 4, 3), compression="gzip")
        group.create_dataset("y", data=y)
    expected = la.Moments(3, 2).update(Z, y)
    found = la.Moments(3, 2).update(group["Z"], group["y"])
    assert found.rounding_steps > expected.rounding_steps
    assert_moments_agree(found.sums, expected.sums, Tokens(Z), Tokens(y[:, None]))
    if kind == "h5py":
        group.close()


# ------------------------------------------------------------------------------------ bad streams


def test_a_bad_batch_is_named_and_changes_nothing(tmp_path, rng, small_batches):
    Z, y = rng.standard_normal((100, 5, 3)), rng.standard_normal((100, 2))
    moments = la.Moments(3, 2).update(Z[:7], y[:7])
    before = [total.copy() for total in moments.sums]
    bad = Z.copy()
    bad[70, 2, 1] = np.nan
    good = (Z[:10], y[:10])
    cases = [
        ([good, good, (bad, y)], r"^Z: must be finite, got nan in sequence 70.*; in batch 2$"),
        ([good, (Z, y[:50])], r"^y: one row .*; in batch 1$"),
        ([good, (Z[:, :, :2], y)], r"^Z: tokens must have d = 3 .*; in batch 1$"),
        ([good, (Z, y, -np.ones(100))], r"^sample_weight: must be finite.*; in batch 1$"),
        ([good, {"Z": Z, "targets": y}], r"^Z: a batch that is a mapping has.*; in batch 1$"),
        ([good, {"Z": Z[0], "y": y[:2], "offsets": [0, 9]}], r"^offsets: .*; in batch 1$"),
    ]
    for stream, message in cases:
        with pytest.raises(ValueError, match=message):
            moments.update(stream)
    with pytest.raises(ValueError, match=r"^Z: must be finite.*in sequences 64:80, counted from 6"):
        moments.update(on_disk(tmp_path, "bad", bad), y)
    with pytest.raises(TypeError, match=r"^Z: a batch must be \(Z, y\).*got a list of 1; in batch"):
        moments.update([good, [Z]])
    with pytest.raises(ValueError, match="^Z: the stream is empty"):
        moments.update(iter([]))
    assert moments.n_samples == 7
    for a, b in zip(moments.sums, before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_bad_stored_arrays_are_refused_before_anything_is_read(rng):
    Z, y = Stored(rng.standard_normal((20, 4, 3))), rng.standard_normal((20, 2))
    moments = la.Moments(3, 2)
    flat = Stored(np.zeros((20, 3)))
    for arguments, named, message in [
        ((Z, y[:19]), {}, "^y: one entry a sequence is needed along its first axis, 20, got shape"),
        ((Z, y), {"sample_weight": np.ones(3)}, r"^sample_weight: .* shape \(20,\)"),
        ((flat, y), {}, r"^Z: an array \(N, n, d\).* got shape \(20, 3\)"),
        ((flat, y), {"offsets": [0, 5, 21]}, "^offsets: must start at 0 and end at .* 20; got 0"),
        ((iter([(Z, y)]), y), {}, "^y: Z is an iterable of batches, which bring their own y"),
    ]:
        with pytest.raises(ValueError, match=message):
            moments.update(*arguments, **named)
    assert Z.reads == []


def test_what_a_reader_raises_is_raised_here_as_it_was(rng):
    class Broken(Exception):
        pass

    def stream():
        yield rng.standard_normal((5, 4, 3)), rng.standard_normal(5)
        raise Broken("the disk is gone")

    moments = la.Moments(3, 1)
    with pytest.raises(Broken, match="the disk is gone") as caught:
        moments.update(stream())
    assert any(entry.name == "stream" for entry in caught.traceback)
    assert moments.n_samples == 0


# ----------------------------------------------------------------------------------- reading ahead


def readers():
    return [thread for thread in threading.enumerate() if thread.name == "linattn_fast reader"]


def test_reading_and_computing_overlap_and_no_more_than_two_items_exist():
    alive, most, events = 0, 0, []

    class Item:
        def __init__(self, i):
            nonlocal alive, most
            self.i = i
            alive += 1
            most = max(most, alive)

        def __del__(self):
            nonlocal alive
            alive -= 1

    def items():
        for i in range(5):
            events.append(f"read {i}")
            yield Item(i)

    with read_ahead(items()) as stream:
        for item in stream:
            if item.i < 4:  # the next one is read while this one is in use
                deadline = time.monotonic() + 10
                while f"read {item.i + 1}" not in events and time.monotonic() < deadline:
                    time.sleep(0.001)
                assert f"read {item.i + 1}" in events
                assert f"read {item.i + 2}" not in events
            del item
    assert most == 2
    assert alive == 0
    assert not readers()


def test_a_reader_ends_with_the_work_that_failed(rng):
    def endless():
        while True:
            yield rng.standard_normal((5, 4, 3)), rng.standard_normal(4)

    with pytest.raises(ValueError, match="in batch 0$"):
        la.Moments(3, 1).update(endless())
    assert not readers()


def test_ctrl_c_stops_a_stream_and_leaves_the_moments_as_they_were(rng):
    Z, y = rng.standard_normal((2000, 5, 8)), rng.standard_normal(2000)

    def endless():
        while True:
            yield Z, y

    moments = la.Moments(8, 1).update(Z[:9], y[:9])
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        moments.update(endless())
    assert moments.n_samples == 9
    assert not readers()


def test_ctrl_c_works_while_nothing_comes(rng):
    """A reader that is stuck for good is left behind; it does not keep the program alive."""
    outcome = run_python(
        """
import os, signal, threading, time
import linattn_fast as la, linattn_fast.read_ahead
linattn_fast.read_ahead._PATIENCE = 0.1
def stuck():
    time.sleep(1000)
    yield
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    la.Moments(2, 1).update(stuck())
except KeyboardInterrupt:
    print("stopped")
"""
    )
    assert outcome.stdout == "stopped\n", outcome.stderr
    assert outcome.returncode == 0


def test_settings_of_the_caller_hold_for_the_reading():
    seen = []

    def stream():
        seen.append(np.geterr()["over"])
        yield np.ones((2, 2, 2)), np.ones(2)

    with np.errstate(over="raise"):
        la.Moments(2, 1).update(stream())
    assert seen == ["raise"]


# ---------------------------------------------------------------------------------------- progress


def test_progress_counts_sequences_or_batches(tmp_path, rng, small_batches, capsys):
    Z, y = rng.standard_normal((100, 5, 3)), rng.standard_normal(100)
    seen = []
    report = lambda done, total: seen.append((done, total))  # noqa: E731
    la.Moments(3, 1).update(on_disk(tmp_path, "Z", Z), y, progress=report)
    assert seen[0] == (16, 100)
    assert seen[-1] == (100, 100)
    seen.clear()
    la.Moments(3, 1).update([(Z, y)] * 3, progress=report)
    assert seen[:3] == [(1, 3), (2, 3), (3, 3)]
    seen.clear()
    la.Moments(3, 1).update(iter([(Z, y)] * 3), progress=report)
    assert seen == [(1, None), (2, None), (3, None)]
    la.Moments(3, 1).update(iter([(Z, y)] * 3), progress=True)
    assert "3batch" in capsys.readouterr().err


def test_memory_maps_of_every_mode_are_read_and_left_alone(tmp_path, rng, small_batches):
    Z, y = rng.standard_normal((100, 5, 3)), rng.standard_normal(100)
    np.save(tmp_path / "Z.npy", Z)
    private = np.load(tmp_path / "Z.npy", mmap_mode="c")
    private[3] = 7.0  # nowhere but in memory
    shared = np.load(tmp_path / "Z.npy", mmap_mode="r+")
    for mapped in (private, shared, shared[::-1], shared[5::2, :, ::-1], shared[:, 1:3]):
        wanted = np.array(mapped)
        found = la.Moments(3, 1).update(mapped, y[: len(mapped)])
        np.testing.assert_array_equal(mapped, wanted)
        expected = la.Moments(3, 1).update(wanted, y[: len(mapped)])
        size = np.abs(expected.sums.cross).max()
        np.testing.assert_allclose(found.sums.cross, expected.sums.cross, atol=1e-12 * size)
    np.testing.assert_array_equal(np.load(tmp_path / "Z.npy"), Z)


# ------------------------------------------------------------------------------------------ fitting


def planted(rng, positions, n=600, d=3, condition=1.0):
    """Mixed tokens of a condition number, and the targets of a planted layer."""
    Z = rng.standard_normal((n, 6, d)) * np.geomspace(1, 1 / condition, d)
    Z = Z @ np.linalg.qr(rng.standard_normal((d, d)))[0]
    truth = plant(rng, d, 2, 2)
    return Z, truth(Z, positions), truth


@pytest.mark.parametrize("form", ["memmap", "list", "generator"])
def test_a_fit_from_a_stream_is_the_fit_from_memory(tmp_path, rng, positions, form, small_batches):
    Z, y, _ = planted(rng, positions)
    y = y + 0.1 * rng.standard_normal(y.shape)
    w = rng.random(len(Z))
    expected = la.fit(Z, y, positions=positions, sample_weight=w)
    if form == "memmap":
        fit = la.fit(on_disk(tmp_path, "Z", Z), y, positions=positions, sample_weight=w)
    else:
        parts = [slice(i, i + 70) for i in range(0, 600, 70)]
        stream = [(Z[part], y[part], w[part]) for part in parts]
        fit = la.fit(stream if form == "list" else iter(stream), positions=positions)
    assert_same_fit(fit, expected)
    assert fit.certificate.verdict == expected.certificate.verdict == "identifiable"
    assert fit.info.n_samples == expected.info.n_samples
    assert bool(fit.info.refinements) == (form != "generator")
    assert ("read once" in fit.info.reason) == (form == "generator")
    assert ("no data at hand" in str(fit.info)) == (form == "generator")


def assert_same_fit(fit, expected):
    """Coefficients to the rounding that their condition allows, errors to that of the targets."""
    size = np.linalg.norm(expected.coefficients)
    distance = np.linalg.norm(fit.coefficients - expected.coefficients)
    assert distance <= 100 * EPS * fit.info.condition * size
    assert fit.info.mean_squared_error == pytest.approx(
        expected.info.mean_squared_error, rel=1e-9, abs=1e-24
    )
    assert fit.info.mean_squared_target == pytest.approx(expected.info.mean_squared_target)


def test_a_second_reading_recovers_what_the_gram_lost(tmp_path, rng, small_batches):
    """Tokens of condition 30, features of 30^3 and a Gram of 30^6, which keeps half the digits."""
    Z, y, truth = planted(rng, "last", condition=30.0)
    wanted = truth.coefficients()
    refined = la.fit(on_disk(tmp_path, "Z", Z), y, heads=None)
    once = la.fit(((Z[i : i + 50], y[i : i + 50]) for i in range(0, 600, 50)), heads=None)
    errors = [np.linalg.norm(fit.coefficients - wanted) for fit in (refined, once)]
    assert errors[0] < errors[1] / 100
    assert refined.info.solver == once.info.solver == "cholesky"


@pytest.mark.parametrize("form", ["memmap", "list"])
def test_conjugate_gradients_read_a_stream_in_every_pass(
    tmp_path, rng, positions, form, small_batches
):
    Z, y, _ = planted(rng, positions)
    y = y + 0.1 * rng.standard_normal(y.shape)
    w = rng.random(len(Z))
    expected = la.fit(Z, y, positions=positions, sample_weight=w, solver="pcg", heads=None)
    if form == "memmap":
        data = (on_disk(tmp_path, "Z", Z), y)
        fit = la.fit(*data, positions=positions, sample_weight=w, solver="pcg", heads=None)
    else:
        stream = [(Z[i : i + 90], y[i : i + 90], w[i : i + 90]) for i in range(0, 600, 90)]
        fit = la.fit(stream, positions=positions, solver="pcg", heads=None)
    assert_same_fit(fit, expected)
    assert fit.info.solver == "pcg"
    assert "read in every pass" in fit.info.reason
    assert fit.certificate.lambda_min == pytest.approx(expected.certificate.lambda_min, rel=1e-6)
    assert fit.certificate.noise_samples == pytest.approx(expected.certificate.noise_samples)


def test_a_stream_whose_gram_does_not_fit_is_fitted_without_it(tmp_path, rng, monkeypatch):
    monkeypatch.setattr(sources, "BATCH_BYTES", 200_000)
    Z, y = rng.standard_normal((1500, 6, 10)), rng.standard_normal(1500)
    fit = la.fit(on_disk(tmp_path, "Z", Z), y, heads=None, certify=False, memory_limit=3_000_000)
    assert fit.info.solver == "pcg"
    assert fit.info.reason.startswith("Cholesky needs 5.54 MB, more than the 3 MB that may be used")
    assert_same_fit(fit, la.fit(Z, y, heads=None, certify=False, solver="cholesky"))


@pytest.mark.parametrize("form", ["memmap", "list"])
def test_singular_streams_are_solved_on_the_data(tmp_path, rng, form, small_batches):
    Z = rng.standard_normal((400, 5, 3))
    Z[:, :, 2] = Z[:, :, 0]
    y = plant(rng, 3, 1, 2)(Z)
    expected = la.fit(Z, y)
    data = (on_disk(tmp_path, "Z", Z), y)
    if form == "list":
        data = ([(Z[i : i + 7], y[i : i + 7]) for i in range(0, 400, 7)],)
    fit = la.fit(*data)
    assert fit.info.solver == expected.info.solver == "qr"
    assert fit.certificate.rank == expected.certificate.rank == 6
    assert fit.certificate.verdict == "not identifiable"
    np.testing.assert_allclose(fit.coefficients, expected.coefficients, atol=1e-10)


@pytest.mark.parametrize("form", ["memmap", "list", "generator"])
def test_streams_of_fewer_samples_than_features(tmp_path, rng, form, small_batches):
    Z, y = rng.standard_normal((100, 5, 6)), rng.standard_normal((100, 2))
    expected = la.fit(Z, y, heads=None)
    stream = [(Z[:60], y[:60]), (list(Z[60:]), y[60:])]
    data = {
        "memmap": (on_disk(tmp_path, "Z", Z), y),
        "list": (stream,),
        "generator": (iter(stream),),
    }[form]
    fit = la.fit(*data, heads=None)
    assert fit.info.solver == ("eigh" if form == "generator" else "dual")
    np.testing.assert_allclose(fit.coefficients, expected.coefficients, atol=1e-8)
    assert fit.certificate.rank == 100


@pytest.mark.parametrize("form", ["memmap", "iterable", "list"])
def test_what_the_dual_loads_counts_as_memory_and_is_told(tmp_path, rng, form, small_batches):
    Z, y = rng.standard_normal((100, 300, 6)), rng.standard_normal((100, 2))
    stream = [(Z[i : i + 20], y[i : i + 20]) for i in range(0, 100, 20)]

    class Again:
        def __iter__(self):
            return iter(stream)

    given = {"memmap": (on_disk(tmp_path, "Z", Z), y), "iterable": (Again(),), "list": (stream,)}
    settings = {"heads": None, "certify": False}
    fit = la.fit(*given[form], solver="dual", **settings)
    assert "all samples of the stream loaded into memory" in fit.info.reason
    limit = la.estimate_memory(6, 2, n_samples=100)["qr"]
    assert la.estimate_memory(6, 2, n_samples=100)["dual"] < limit < Z.nbytes
    if form == "list":  # at hand already
        limited = la.fit(*given[form], solver="dual", memory_limit=limit, **settings)
        np.testing.assert_array_equal(limited.coefficients, fit.coefficients)
        return
    with pytest.raises(MemoryError, match="^Z: the stream, .* needs .* MB, memory_limit is"):
        la.fit(*given[form], solver="dual", memory_limit=limit, **settings)
    if form == "memmap":  # whose size is known, so another solver is taken
        other = la.fit(*given[form], memory_limit=limit, **settings)
        assert other.info.solver != "dual"
        np.testing.assert_allclose(other.coefficients, fit.coefficients, atol=1e-8)


def test_a_certificate_estimated_on_a_stream_says_what_can_answer_for_single_inputs(rng):
    Z, y = rng.standard_normal((300, 5, 3)), rng.standard_normal(300)
    stream = [(Z[:100], y[:100]), (Z[100:], y[100:])]
    certificate = la.fit(stream, solver="pcg", heads=None).certificate
    message = "^certificate: .*solver='pcg' on a stream or a cluster; make it with la.certify"
    for ask in (certificate.covers, certificate.leverage):
        with pytest.raises(ValueError, match=message):
            ask(Z[:2])
    moments = la.Moments(3, 1).update(stream)
    assert la.certify(moments).covers(Z[:2]).all()


def test_small_stored_arrays_give_the_bits_of_arrays(tmp_path, rng, positions):
    Z, y, _ = planted(rng, positions)
    expected = la.fit(Z, y, positions=positions)
    fit = la.fit(on_disk(tmp_path, "Z", Z), on_disk(tmp_path, "y", y), positions=positions)
    np.testing.assert_array_equal(fit.coefficients, expected.coefficients)


def test_bad_streams_of_a_fit_are_named(rng, small_batches):
    Z, y = rng.standard_normal((50, 4, 2)), rng.standard_normal(50)
    for stream, named, message in [
        (iter([]), {}, "^Z: the stream is empty"),
        ([(Z, y), (Z[:, :, :1], y)], {}, "^Z: tokens must have d = 2 .*in batch 1$"),
        ([(Z, y), (Z, np.ones((50, 2)))], {}, "^y: d_out = 1 targets.*in batch 1$"),
        ([(Z, y, 0 * y)] * 2, {}, "^sample_weight: at least one weight must be positive"),
        ([(Z, y, 0 * y)], {"solver": "dual"}, "^sample_weight: at least one weight must be"),
        (iter([(Z, y)]), {"solver": "qr"}, "^solver: 'qr' reads the data again"),
        (iter([(Z, y)]), {"solver": "pcg"}, "^solver: 'pcg' reads the data again"),
        ([(Z, y, 0 * y)] * 2, {"solver": "pcg"}, "^sample_weight: at least one weight"),
        (iter([(Z, y)]), {"sample_weight": y}, "^sample_weight: Z is an iterable of batches"),
    ]:
        with pytest.raises(ValueError, match=message):
            la.fit(stream, **named)
    with pytest.raises(TypeError, match="^y: "):
        la.fit(iter([Z]))
