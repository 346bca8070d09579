"""A folder with data and a model in it, and the command line run there."""

import numpy as np
import pytest
from conftest import plant

import linattn_fast as la
from linattn_fast.cli.program import main

D, D_OUT = 3, 2  # 18 features


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


@pytest.fixture
def truth(rng):
    return plant(rng, D, 2, D_OUT)


@pytest.fixture
def data(folder, rng, truth):
    """``data.npz`` with Z and y, and the arrays."""
    Z = rng.standard_normal((200, 6, D))
    np.savez("data.npz", Z=Z, y=truth(Z))
    return Z, truth(Z)


@pytest.fixture
def model(data):
    """``model.npz``, fitted to the data."""
    assert main(["fit", "data.npz", "-o", "model.npz"]) == 0
    return la.load("model.npz")


def run(capsys, *argv):
    """Exit code, stdout and stderr of a command line."""
    capsys.readouterr()
    code = main([str(word) for word in argv])
    out, err = capsys.readouterr()
    return code, out, err


def succeeds(capsys, *argv):
    code, out, err = run(capsys, *argv)
    assert (code, err) == (0, "")
    return out


def fails(capsys, code, *argv):
    """One sentence on stderr, nothing on stdout; it is returned."""
    found, out, err = run(capsys, *argv)
    assert (found, out) == (code, "")
    assert err.startswith("linattn-fast")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err


def write_npy(Z, y):
    np.save("Z.npy", Z)
    np.save("y.npy", y)
    return ["Z.npy", "y.npy"]


def write_hdf5(Z, y):
    h5py = pytest.importorskip("h5py")
    with h5py.File("data.h5", "w") as file:
        file["train/Z"], file["train/y"] = Z, y
    return ["data.h5", "--tokens", "train/Z", "--targets", "train/y"]


def write_zarr(Z, y):
    zarr = pytest.importorskip("zarr")
    for path, array in (("data.zarr/Z", Z), ("data.zarr/y", y)):
        zarr.save_array(path, array)
    zarr.open_group("data.zarr", mode="a")
    return ["data.zarr"]


def write_moments(Z, y):
    la.Moments(D, D_OUT).update(Z, y).save("moments.npz")
    return ["moments.npz"]
