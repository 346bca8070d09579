"""The command line: right answers and readable files."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from stand_ins.cli_session import (
    D_OUT,
    D,
    fails,
    succeeds,
    write_hdf5,
    write_moments,
    write_npy,
    write_zarr,
)

import linattn_fast as la
from linattn_fast.cli import files


def test_fit_saves_the_layer_that_the_library_finds(capsys, data):
    out = succeeds(capsys, "fit", "data.npz", "-o", "model.npz", "--alpha", "0.5")
    assert "identifiable" in out
    assert "model.npz" in out
    np.testing.assert_array_equal(
        la.load("model.npz").coefficients, la.fit(*data, alpha=0.5).coefficients
    )


def test_every_option_of_fit_reaches_the_library(capsys, data, monkeypatch):
    given = {}

    def fake(Z, y, **options):
        given.update(options, threads=la.get_num_threads())
        return la.fit(Z, y)

    monkeypatch.setattr("linattn_fast.cli.commands.fit.fit", fake)
    succeeds(
        capsys, "fit", "data.npz", "-o", "m.npz", "--positions", "causal", "--alpha", "2",
        "--heads", "3", "--solver", "pcg", "--backend", "numpy", "--precision", "mixed",
        "--memory-limit", "3MB", "--no-certify", "--threads", "1",
    )  # fmt: skip
    assert given == {
        "offsets": None, "sample_weight": None, "positions": "causal", "alpha": 2.0, "heads": 3,
        "solver": "pcg", "backend": "numpy", "precision": "mixed", "certify": False,
        "memory_limit": 3_000_000, "progress": False, "threads": 1,
    }  # fmt: skip


def test_json_of_fit_has_the_numbers_of_the_model(capsys, data):
    found = json.loads(succeeds(capsys, "fit", "data.npz", "-o", "model.npz", "--json"))
    layer = la.load("model.npz")
    assert found["n_heads"] == len(layer.heads) == 2
    assert found["certificate"]["verdict"] == layer.certificate.verdict == "identifiable"
    assert found["certificate"]["lambda_min"] == layer.certificate.lambda_min
    assert found["info"]["mean_squared_error"] == layer.info.mean_squared_error


def test_weights_and_offsets_are_used(capsys, folder, rng, truth):
    rows, offsets = rng.standard_normal((300, D)), np.arange(0, 301, 3)
    y, w = rng.standard_normal((300, D_OUT)), rng.uniform(0.1, 1, 100)
    np.savez("data.npz", rows=rows, y=y, sample_weight=w, ends=offsets)
    np.save("offsets.npy", offsets)
    expected = la.fit(rows, y, offsets=offsets, sample_weight=w, positions="causal").coefficients
    for where in ("ends", "offsets.npy"):  # in the file, or in one of its own
        succeeds(
            capsys, "fit", "data.npz", "-o", "m.npz", "--tokens", "rows", "--offsets", where,
            "--positions", "causal",
        )  # fmt: skip
        np.testing.assert_array_equal(la.load("m.npz").coefficients, expected)


@pytest.mark.parametrize("write", [write_npy, write_hdf5, write_zarr, write_moments])
def test_every_kind_of_file_gives_the_same_layer(capsys, data, truth, write):
    succeeds(capsys, "fit", *write(*data), "-o", "m.npz")
    assert la.load("m.npz").heads.distance(truth) < 1e-9


@pytest.mark.parametrize("write", [write_npy, write_hdf5, write_zarr, write_moments])
def test_every_kind_of_file_can_be_certified(capsys, data, write):
    named = [word for word in write(*data) if word not in ("y.npy", "--targets", "train/y")]
    found = json.loads(succeeds(capsys, "certify", *named, "--json"))
    assert found["verdict"] == "identifiable"
    assert found["lambda_min"] == pytest.approx(la.certify(data[0]).lambda_min, rel=1e-9)


def test_files_too_large_to_load_are_certified_from_one_reading(capsys, data, monkeypatch):
    monkeypatch.setattr(files, "usable_memory", lambda: 4)
    name, *words = write_hdf5(*data)
    found = json.loads(succeeds(capsys, "certify", name, *words[:2], "--json"))
    assert found["lambda_min"] == pytest.approx(la.certify(data[0]).lambda_min, rel=1e-9)


@pytest.mark.parametrize("positions", ["last", "all", "causal"])
def test_predictions_are_those_of_the_model(capsys, rng, model, positions):
    Z = rng.standard_normal((7, 4, D))
    np.save("new.npy", Z)
    words = ["predict", "model.npz", "new.npy", "--positions", positions]
    expected = model.predict(Z, positions)
    for name in ("y.npy", "y.npz"):
        succeeds(capsys, *words, "-o", name)
        found = np.load(name) if name == "y.npy" else np.load(name)["y"]
        np.testing.assert_array_equal(found, expected)
    succeeds(capsys, *words, "-o", "y.csv")
    printed = succeeds(capsys, *words)
    assert (model.d_out, printed) == (D_OUT, Path("y.csv").read_text())
    table = np.loadtxt("y.csv", delimiter=",", skiprows=1)
    np.testing.assert_array_equal(table[:, -D_OUT:], expected.reshape(-1, D_OUT))
    if positions != "last":
        assert printed.startswith("sequence,token,y0,y1\n")
        np.testing.assert_array_equal(table[4:6, :2], [[1, 0], [1, 1]])


def test_predicting_ragged_tokens_a_part_at_a_time_changes_nothing(capsys, rng, model, monkeypatch):
    rows, offsets = rng.standard_normal((50, D)), np.array([0, 3, 4, 20, 50])
    np.savez("new.npz", Z=rows, offsets=offsets)
    monkeypatch.setattr("linattn_fast.cli.commands.predict.BATCH_BYTES", 4 * 8 * D)
    out = succeeds(capsys, "predict", "model.npz", "new.npz", "--positions", "causal", "--json")
    found = np.array(json.loads(out)["y"])
    expected = model.predict(rows, "causal", offsets=offsets)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12 * np.abs(expected).max())


def test_predict_reports_the_error_where_there_are_targets(capsys, rng, model, truth):
    Z = rng.standard_normal((9, 4, D))
    np.savez("new.npz", Z=Z, y=truth(Z) + 1)
    out = succeeds(capsys, "predict", "model.npz", "new.npz", "-o", "y.npy", "--json")
    assert json.loads(out)["score"]["mean_squared_error"] == pytest.approx(D_OUT)
    # Targets that happen to be there need not fit; those that were asked for must.
    words = ("predict", "model.npz", "new.npz", "-o", "y.npy", "--positions", "all")
    assert "not compared" in succeeds(capsys, *words)
    assert "y: one row" in fails(capsys, 1, *words, "--targets", "y")


def test_heads_are_listed_and_shown(capsys, model):
    out = succeeds(capsys, "heads", "model.npz")
    assert len(re.findall(r"^ +[01]  ", out, flags=re.MULTILINE)) == 2
    shown = succeeds(capsys, "heads", "model.npz", "--show", "1")
    assert f"{model.heads.V[1, 0, 0]:.4f}"[:6] in shown
    found = json.loads(succeeds(capsys, "heads", "model.npz", "--normalized", "--json"))
    np.testing.assert_array_equal(found["V"], model.heads.normalized().V)


def test_info_knows_versions_backends_and_threads(capsys):
    found = json.loads(succeeds(capsys, "info", "--json"))
    assert found["version"] == la.__version__
    assert found["packages"]["numpy"] == np.__version__
    assert found["threads"] == la.get_num_threads()
    assert [each["name"] for each in found["backends"]] == [b.name for b in la.backends()]
    assert "instruction set" in succeeds(capsys, "info")


def test_bench_checks_its_answers(capsys, monkeypatch):
    words = ("bench", "--d", "3", "--sequences", "200", "--length", "4", "--repeats", "1")
    row = json.loads(succeeds(capsys, *words, "--json"))["rows"][0]
    assert row["ratio"] == row["numpy"] / row["ours"]
    assert max(row["our_error"], row["numpy_error"]) < 1e-8
    assert "sequences" in succeeds(capsys, *words)
    monkeypatch.setattr(
        "linattn_fast.cli.comparison.numpy_coefficients", lambda Z, y: np.zeros((3, 18))
    )
    assert "not those of the planted layer" in fails(capsys, 1, *words)
    assert "fewer than the" in fails(capsys, 1, "bench", "--d", "5", "--sequences", "60")


def test_demo_recovers_what_was_planted_and_draws_without_a_display(capsys, folder, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.setattr("linattn_fast.cli.commands.demo._D", 4)
    monkeypatch.setattr("linattn_fast.cli.commands.demo._SEQUENCES", 400)
    monkeypatch.setattr("linattn_fast.cli.commands.demo.head_path", lambda m, _: la.head_path(m, 1))
    found = json.loads(succeeds(capsys, "demo", "--picture", "demo.png", "--json"))
    assert found["n_heads"] == found["planted_heads"]
    assert found["coefficients_error"] < 1e-12
    assert found["verdict"] == "identifiable"
    assert (folder / "demo.png").read_bytes().startswith(b"\x89PNG")
