import os
import stat

import numpy as np
import pytest
from conftest import plant
from oracles.batches import arrays_of

import linattn_fast as la


@pytest.fixture
def moments(rng):
    return la.Moments(3, 2).update(rng.standard_normal((50, 4, 3)), rng.standard_normal((50, 2)))


def test_saved_moments_come_back_whole(tmp_path, moments):
    path = tmp_path / "moments.npz"
    moments.save(path)
    loaded = la.Moments.load(path)
    for a, b in zip(*map(arrays_of, (loaded.sums, moments.sums)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert repr(loaded) == repr(moments)
    assert loaded.total_weight == moments.total_weight
    np.testing.assert_array_equal(loaded.fit().coefficients, moments.fit().coefficients)


def test_empty_moments_can_be_saved(tmp_path):
    la.Moments(2, 1).save(tmp_path / "empty.npz")
    assert la.Moments.load(tmp_path / "empty.npz").n_samples == 0


@pytest.mark.parametrize("heads", ["minimal", "svd", 1, None])
@pytest.mark.parametrize("certify", [True, False])
def test_saved_fits_come_back_whole(tmp_path, rng, heads, certify):
    Z = rng.standard_normal((90, 5, 3))
    fit = la.fit(Z, plant(rng, 3, 2, 2)(Z), heads=heads, certify=certify)
    fit.save(tmp_path / "fit.npz")
    loaded = la.load(tmp_path / "fit.npz")
    np.testing.assert_array_equal(loaded.predict(Z), fit.predict(Z))
    assert loaded.info == fit.info
    assert loaded.certificate == fit.certificate
    assert (loaded.heads is None) == (heads is None)
    if heads:
        np.testing.assert_array_equal(loaded.heads.V, fit.heads.V)


@pytest.mark.parametrize("keep", [0, 10, 300, 0.5, 0.99])
def test_a_truncated_file_is_refused(tmp_path, moments, keep):
    path = tmp_path / "moments.npz"
    moments.save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: keep if isinstance(keep, int) else int(keep * len(whole))])
    with pytest.raises(
        ValueError, match="^path: .*moments.npz is not a whole linattn_fast.moments"
    ):
        la.Moments.load(path)


def test_a_damaged_file_is_refused(tmp_path, moments):
    path = tmp_path / "moments.npz"
    moments.save(path)
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match="^path: "):
        la.Moments.load(path)


def test_another_version_or_kind_is_refused(tmp_path, moments, rng):
    path = tmp_path / "file.npz"
    moments.save(path)
    with np.load(path) as archive:
        contents = dict(archive)
    np.savez(path, **{**contents, "version": np.array(99)})
    with pytest.raises(ValueError, match="format version 99 of linattn_fast.moments; .* reads 2"):
        la.Moments.load(path)
    moments.save(path)
    with pytest.raises(ValueError, match="holds linattn_fast.moments, not linattn_fast.fit"):
        la.load(path)
    np.savez(path, x=np.zeros(3))
    with pytest.raises(ValueError, match="is not a whole linattn_fast.moments file"):
        la.Moments.load(path)
    (tmp_path / "text").write_text("not an archive")
    with pytest.raises(ValueError, match="^path: .*text is not a whole linattn_fast.fit file"):
        la.load(tmp_path / "text")
    for meta in ("{", "{}", "3"):
        np.savez(path, **{**contents, "meta": np.array(meta)})
        with pytest.raises(ValueError, match="^path: .*is not a whole linattn_fast.moments file"):
            la.Moments.load(path)
    np.save(tmp_path / "array.npy", np.zeros(3))
    with pytest.raises(ValueError, match="^path: .*is not a"):
        la.Moments.load(tmp_path / "array.npy")
    np.savez(path, **{**contents, "gram": np.zeros((2, 2))})
    with pytest.raises(ValueError, match="holds arrays of shape"):
        la.Moments.load(path)


def test_a_missing_file_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.npz"):
        la.Moments.load(tmp_path / "nowhere.npz")
    with pytest.raises(FileNotFoundError, match="no such folder"):
        la.Moments(2, 1).save(tmp_path / "no" / "folder.npz")


def test_a_failed_save_keeps_the_old_file_and_leaves_nothing_behind(tmp_path, moments, monkeypatch):
    path = tmp_path / "moments.npz"
    moments.save(path)
    before = path.read_bytes()

    def fail(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez", fail)
    with pytest.raises(OSError, match="disk full"):
        moments.save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["moments.npz"]


def test_saved_files_have_the_usual_permissions(tmp_path, moments):
    moments.save(tmp_path / "a.npz")
    (tmp_path / "b").write_text("")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a.npz", "b")]
    assert modes[0] == modes[1]
