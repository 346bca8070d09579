"""Host data on its way to a device, and results on their way home; on a make-believe CuPy."""

import pickle

import numpy as np
import pytest
from oracles.batches import arrays_of
from stand_ins import fake_cupy
from stand_ins.fake_machine import launches

import linattn_fast as la
from linattn_fast.backend.cuda import batches as cuda_batches

# ------------------------------------------------------------------------------- from the host


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(cuda_batches, "PIECE_BYTES", 700)


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
    for found, expected in zip(*map(arrays_of, sums), strict=True):
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
            # The host packs into the same pinned memory once the copy from it is done.
            before = log[copies[k - 2] : copy]
            marks = [entry[2] for entry in before if entry[:2] == ("record", copying)]
            assert any(e[0] == "host waits" and e[2] in marks for e in before)
        # The next copy is queued without waiting for the kernel.
        if k + 1 < len(copies):
            assert not any(entry[0] == "sync" for entry in log[kernel : copies[k + 1]])
    # At the end no copy may be under way, or its memory would go back to the pools too early.
    assert [e[0] for e in log[kernels[-1] :] if e[0] in ("record", "host waits")][:3] == [
        "record",
        "host waits",
        "host waits",
    ]


def test_host_data_of_conjugate_gradients_is_kept_on_the_device_where_it_fits(
    gpu, rng, small_blocks
):
    Z, y = rng.standard_normal((120, 4, 3)), rng.standard_normal((120, 2))
    expected = la.fit(Z, y, solver="pcg", backend="numpy")
    # Room for all; for the data (13 kB) but not for its samples beside it; for neither.
    for free, streamed, kept in (
        (1 << 40, False, True),
        (31_000, False, False),
        (4000, True, False),
    ):
        fake_cupy.reset()
        fake_cupy.State.free = free
        fit = la.fit(Z, y, solver="pcg", backend="cuda", certify=False)
        assert any(entry[0] == "copy" for entry in fake_cupy.log) == streamed
        assert bool(launches("keep_samples")) == kept
        np.testing.assert_allclose(fit.get().coefficients, expected.coefficients, rtol=1e-9)


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
