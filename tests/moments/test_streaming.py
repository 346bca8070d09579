"""Data that is not in memory gives what the same data gives in memory."""

import numpy as np
import pytest
from conftest import assert_moments_agree, random_targets, targets_for
from oracles.batches import arrays_of
from stand_ins.stored import Stored, on_disk

import linattn_fast as la
from linattn_fast.data import sources
from linattn_fast.data.tokens import Tokens


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
    assert_moments_agree(found.get().sums, expected.get().sums, tokens, targets, w, positions)


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
        for a, b in zip(*map(arrays_of, (found.sums, expected.sums)), strict=True):
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
    before = [total.copy() for total in arrays_of(moments.sums)]
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
    for a, b in zip(arrays_of(moments.sums), before, strict=True):
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
