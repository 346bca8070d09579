"""The command line: right answers, readable files, one sentence for every error, exit codes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from conftest import plant

import linattn_fast as la
from linattn_fast.cli import files, program
from linattn_fast.cli.arguments import size_in_bytes
from linattn_fast.cli.charts import spectrum_chart
from linattn_fast.cli.json_text import as_json
from linattn_fast.cli.program import COMMANDS, main

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


# ------------------------------------------------------------------ answers


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

    monkeypatch.setattr("linattn_fast.cli.fit.fit", fake)
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
    monkeypatch.setattr("linattn_fast.cli.predict.BATCH_BYTES", 4 * 8 * D)
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
    monkeypatch.setattr("linattn_fast.cli.demo._D", 4)
    monkeypatch.setattr("linattn_fast.cli.demo._SEQUENCES", 400)
    monkeypatch.setattr("linattn_fast.cli.demo.head_path", lambda m, _: la.head_path(m, 1))
    found = json.loads(succeeds(capsys, "demo", "--picture", "demo.png", "--json"))
    assert found["n_heads"] == found["planted_heads"]
    assert found["coefficients_error"] < 1e-12
    assert found["verdict"] == "identifiable"
    assert (folder / "demo.png").read_bytes().startswith(b"\x89PNG")


# ------------------------------------------------------------------ the report


class Page(HTMLParser):
    """Tags that were opened, those still open, and what is shown."""

    def __init__(self, text):
        super().__init__()
        self.open, self.links, self.text = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.links += [value for name, value in attrs if name in ("src", "href", "srcset")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        """Closed at once, as shapes are."""

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.text += data


def report(capsys, *words):
    succeeds(capsys, "certify", *words, "--report", "out.html")
    text = Path("out.html").read_text()
    page = Page(text)
    assert page.open == []  # every tag is closed, by its own end
    assert page.links == []  # nothing is loaded
    assert not re.search(r"@import|url\(|<script", text)
    return page.text, text


def test_the_report_says_that_all_is_determined(capsys, data):
    text, page = report(capsys, "data.npz", "--names", "a,b,<c>")
    assert "Identifiable" in text
    assert "proved" in text
    assert "with query a" in text
    assert "<c>" in text  # as a name, not as a tag
    assert page.count("<polyline") == 1


def test_the_report_says_what_is_missing_and_which_inputs_are_covered(capsys, data):
    Z = data[0].copy()
    Z[:, -1, 1] = 0.0  # the last token never queries x1
    new = Z[:10].copy()
    new[6:, -1, 1] = 1.0
    np.savez("short.npz", Z=Z)
    np.savez("new.npz", Z=new)
    text, _ = report(capsys, "short.npz", "--covers", "new.npz")
    assert "Not identifiable" in text
    assert "6 eigenvalues count as zero" in text
    assert "x0*x0 with query x1" in text
    assert "of 10 predictions, 60.0%" in text
    assert "queries 6, 7, 8, 9" in text
    words = ("certify", "short.npz", "--covers", "new.npz", "--json")
    found = json.loads(succeeds(capsys, *words))
    assert found["condition"] is None  # infinite, which JSON cannot say
    assert found["covers"]["covered"] == int(la.certify(Z).covers(new).sum()) == 6
    assert found["covers"]["uncovered"] == [6, 7, 8, 9]


def test_degenerate_data_has_a_report_too(capsys, data):
    for name, Z in {"zero": np.zeros((30, 2, 2)), "one": np.ones((5, 1, 1))}.items():
        np.savez(f"{name}.npz", Z=Z)
        report(capsys, f"{name}.npz")
    np.savez("few.npz", Z=data[0][:10])
    assert "at least 8 of 18" in report(capsys, "few.npz")[0]


def test_the_chart_draws_each_eigenvalue_where_it_belongs():
    chart = spectrum_chart(np.array([1e-1, 1.0, 1e2]), 1e-1, 3)
    (line,) = re.findall(r'<polyline class="line" points="([^"]*)"', chart)
    x, y = np.array([point.split(",") for point in line.split()], float).T
    assert x[2] - x[1] == pytest.approx(x[1] - x[0], abs=0.2)  # linear, left to right
    assert y[1] - y[0] == pytest.approx(2 * (y[2] - y[1]), abs=0.3)  # two decades, and one


# ------------------------------------------------------------------ what goes wrong


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

    monkeypatch.setattr("linattn_fast.cli.fit.fit", broken)
    with pytest.raises(AssertionError, match="a mistake"):
        main(["fit", "data.npz", "-o", "m.npz"])


def test_traceback_shows_where_an_error_arose(capsys, folder):
    code, _, err = run(capsys, "certify", "nowhere.npz", "--traceback")
    assert code == 1
    assert "Traceback" in err


# ------------------------------------------------------------------ help, terminals, pipes, signals


def test_every_command_has_help_with_an_example_that_can_be_parsed(capsys):
    for command in COMMANDS:
        out = succeeds(capsys, command.name, "--help")
        assert f"example:\n  {command.example.splitlines()[0]}" in out
        for line in command.example.splitlines():
            words = line.split("|")[0].split()
            assert "linattn-fast" in words
            program.parser().parse_args(words[words.index("linattn-fast") + 1 :])
    assert all(command.name in succeeds(capsys, "--help") for command in COMMANDS)
    assert la.__version__ in succeeds(capsys, "--version")


def test_a_bar_is_shown_when_asked_for_and_otherwise_on_a_terminal_alone(capsys, data, monkeypatch):
    monkeypatch.setattr("linattn_fast.cli.bar._PATIENCE", 0)
    words = ("fit", "data.npz", "-o", "m.npz")
    assert run(capsys, *words)[2] == ""
    assert "fit:" in run(capsys, *words, "--progress")[2]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert "fit:" in run(capsys, *words)[2]
    assert run(capsys, *words, "--no-progress")[2] == ""


def test_sizes_are_read_with_their_units():
    assert [size_in_bytes(text) for text in ("12", "2kB", "1.5 GB", "1MiB")] == [
        12, 2000, 1_500_000_000, 1 << 20,
    ]  # fmt: skip


def test_json_has_no_infinity_and_no_kinds_of_numpy():
    value = {"a": np.float32(2), "b": [np.inf, np.nan], "c": np.arange(2), "d": (True, None)}
    assert json.loads(as_json(value)) == {"a": 2, "b": [None, None], "c": [0, 1], "d": [True, None]}


def start(*words, **options):
    """The program as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "linattn_fast.cli", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def test_a_closed_pipe_is_no_error_to_talk_about(folder, model):
    np.save("new.npy", np.ones((20_000, 1, D)))  # more than a pipe holds
    with start("predict", "model.npz", "new.npy") as process:
        assert process.stdout.readline() == b"sequence,y0,y1\n"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_a_full_disk_is_one_sentence():
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "linattn_fast.cli", "info"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "linattn-fast: No space left on device\n")


def test_ctrl_c_ends_the_work_with_130_and_leaves_no_file(folder, rng):
    np.save("Z.npy", rng.standard_normal((20_000, 2, 20)))  # minutes of numpy
    np.save("y.npy", rng.standard_normal(20_000))
    words = ("fit", "Z.npy", "y.npy", "-o", "m.npz", "--backend", "numpy", "--solver", "cholesky")
    with start(*words, "--progress") as process:
        process.stderr.read(1)  # the bar: the work has begun
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == b""
    assert err.endswith(b"linattn-fast: interrupted\n")
    assert b"Traceback" not in err
    assert {path.name for path in folder.iterdir()} == {"Z.npy", "y.npy"}
