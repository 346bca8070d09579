"""The command line: one sentence for every error, and exit codes."""

import sys
from pathlib import Path

import numpy as np
import pytest
from stand_ins.cli_session import fails, run, succeeds, write_moments, write_npy

import linattn_fast as la
from linattn_fast.cli.program import main


def test_wrong_data_is_one_sentence_and_exit_code_1(capsys, data, model, folder):
    Z, y = data
    bad = Z.copy()
    bad[7, 3, 1] = np.nan
    np.savez("nan.npz", Z=bad, y=y)
    np.savez("short.npz", Z=Z, y=y[:5])
    np.savez("objects.npz", Z=np.array([{}], object), y=y)
    (folder / "text.npz").write_text("hello")
    (folder / "text.npy").write_text("hello")
    (folder / "cut.npz").write_bytes((folder / "data.npz").read_bytes()[:-200])
    (folder / "table.csv").write_text("1,2")
    (folder / "plain.zarr").mkdir()
    expected = {
        "nowhere.npz": "nowhere.npz: no such file",
        "nan.npz": "nan.npz: Z: must be finite, got nan in sequence 7, token 3, coordinate 1",
        "short.npz": "short.npz: y: one row of targets a sequence is needed",
        "objects.npz": "objects.npz: 'Z' cannot be read",
        "text.npz": "text.npz is not a whole .npz file",
        "cut.npz": "cut.npz is not a whole .npz file",
        "table.csv": "must end in .npz, .npy, .zarr or .h5",
        "plain.zarr": "plain.zarr",
        "model.npz": "holds linattn_fast.fit, which is no data",
    }
    for name, sentence in expected.items():
        assert sentence in fails(capsys, 1, "fit", name, "-o", "m.npz"), name
        assert not (folder / "m.npz").exists()
    assert "text.npy is not" in fails(capsys, 1, "fit", "text.npy", "y.npy", "-o", "m.npz")
    error = fails(capsys, 1, "fit", "data.npz", "-o", "m.npz", "--tokens", "X")
    assert "data.npz has no array 'X', but Z, y; name the tokens with --tokens" in error
    assert "no folder" in fails(capsys, 1, "fit", "data.npz", "-o", "none/m.npz")
    assert "memory_limit" in fails(
        capsys, 1, "fit", "data.npz", "-o", "m.npz", "--memory-limit", "1kB"
    )
    assert "no model" in fails(capsys, 1, "heads", "data.npz")
    assert "no such file" in fails(capsys, 1, "predict", "nowhere.npz", "data.npz")
    succeeds(capsys, "fit", "data.npz", "-o", "m.npz", "--heads", "none")
    assert "has no heads" in fails(capsys, 1, "heads", "m.npz")


@pytest.mark.parametrize(
    "words",
    [
        "",
        "learn data.npz",
        "fit data.npz",
        "fit data.npz -o data.npz",
        "fit data.npz -o m.npz --alpha -1",
        "fit data.npz -o m.npz --alpha x",
        "fit data.npz -o m.npz --heads some",
        "fit data.npz -o m.npz --heads 0",
        "fit data.npz -o m.npz --solver magic",
        "fit data.npz -o m.npz --memory-limit lots",
        "fit data.npz y.npy -o m.npz --targets y",
        "fit Z.npy -o m.npz",
        "fit moments.npz -o m.npz --solver pcg",
        "certify data.npz --names a,b",
        "predict model.npz data.npz -o y.txt",
        "heads model.npz --show 9",
        "heads model.npz --show x",
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_code_2(capsys, data, words):
    write_npy(*data)
    write_moments(*data)
    la.fit(*data).save("model.npz")
    before = Path("data.npz").read_bytes()
    fails(capsys, 2, *words.split())
    assert Path("data.npz").read_bytes() == before


@pytest.mark.parametrize(("package", "name"), [("h5py", "data.h5"), ("zarr", "data.zarr")])
def test_a_missing_reader_is_named(capsys, folder, monkeypatch, package, name):
    (folder / name).write_text("")
    monkeypatch.setitem(sys.modules, package, None)
    error = fails(capsys, 1, "certify", name)
    assert f"needs the package {package}, which is not installed" in error


def test_a_mistake_of_the_program_is_not_hidden(data, monkeypatch):
    def broken(*_, **__):
        raise AssertionError("a mistake")

    monkeypatch.setattr("linattn_fast.cli.commands.fit.fit", broken)
    with pytest.raises(AssertionError, match="a mistake"):
        main(["fit", "data.npz", "-o", "m.npz"])


def test_traceback_shows_where_an_error_arose(capsys, folder):
    code, _, err = run(capsys, "certify", "nowhere.npz", "--traceback")
    assert code == 1
    assert "Traceback" in err
