"""The programs in examples/ run, at a small size, and find what they are to find."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import linattn_fast as la

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(*arguments, name="job_array.py"):
    return subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / name, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "MPLBACKEND": "Agg"},
    )


def test_every_example_is_tried_here():
    text = Path(__file__).read_text()
    for path in EXAMPLES.glob("*.py"):
        assert f'"{path.name}"' in text, path


def test_jobs_write_moments_and_the_last_one_fits(tmp_path):
    for part in range(3):
        assert run("part", part, 3, tmp_path / "of3").returncode == 0
    done = run("merge", 3, tmp_path / "of3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("10000 samples, identifiable, relative error ")
    assert float(done.stdout.split()[-1]) < 1e-2  # noise of 0.1, 10,000 samples, 126 features
    run("part", 0, 1, tmp_path / "alone")
    run("merge", 1, tmp_path / "alone")
    one, three = (la.load(tmp_path / name / "fit.npz") for name in ("alone", "of3"))
    np.testing.assert_allclose(three.coefficients, one.coefficients, rtol=0, atol=1e-10)
    assert sorted(path.name for path in (tmp_path / "of3").iterdir()) == [
        "fit.npz",
        *(f"moments_{part}.npz" for part in range(3)),
    ]


def test_a_part_that_does_not_exist_is_refused(tmp_path):
    outcome = run("part", 3, 3, tmp_path)
    assert outcome.returncode == 2
    assert "part must be between 0 and 2, got 3" in outcome.stderr


def test_in_context_regression_is_learned(tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "curves.png"
    done = run("--d", 8, "--picture", picture, name="in_context_regression.py")
    assert done.returncode == 0, done.stderr
    errors = [float(error) for error in re.findall(r"test error ([\d.]+)", done.stdout)]
    assert len(errors) == 9 * 5  # sizes; three ridges at one length, and one at two others
    assert min(errors) < 0.6  # predicting 0 has 1.01
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_universal_turing_machine_is_learned():
    done = run("--traces", 400, "--cells", 3, name="turing_machine.py")
    assert done.returncode == 0, done.stderr
    assert "covered: proved" in done.stdout
