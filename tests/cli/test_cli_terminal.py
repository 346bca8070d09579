"""The command line: help, terminals, pipes and signals."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from stand_ins.cli_session import D, run, succeeds

import linattn_fast as la
from linattn_fast.cli import program
from linattn_fast.cli.arguments import size_in_bytes
from linattn_fast.cli.json_text import as_json
from linattn_fast.cli.program import COMMANDS


def test_every_command_has_help_with_an_example_that_can_be_parsed(capsys):
    for name, command in COMMANDS.items():
        out = succeeds(capsys, name, "--help")
        assert f"example:\n  {command.example.splitlines()[0]}" in out
        for line in command.example.splitlines():
            words = line.split("|")[0].split()
            assert "linattn-fast" in words
            program.parser().parse_args(words[words.index("linattn-fast") + 1 :])
    assert all(name in succeeds(capsys, "--help") for name in COMMANDS)
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
