"""``linattn-fast paper softmax``: planted layers and parities, in a table, a text and a picture."""

import csv
import json
from pathlib import Path

import pytest

from linattn_fast.cli.program import main
from linattn_fast.paper import softmax

pytest.importorskip("matplotlib", reason="figures are drawn by matplotlib")


@pytest.fixture
def small(monkeypatch):
    """Few instances of small layers, and parities of fewer bits."""
    for name, value in {
        "_D": 4,
        "_QUICK_DIMENSIONS": (3, 4),
        "_EQUATIONS": (1.5, 10.0, 20.0, 30.0),
        "_QUICK_INSTANCES": 1,
        "_PARITY_D": 6,
        "_PARITY_N": 200,
        "_STARTS": 2,
    }.items():
        monkeypatch.setattr(softmax, name, value)


def test_rates_parities_and_verdicts_are_counted(capsys, tmp_path, small):
    assert main(["paper", "softmax", "--quick", "-o", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    with open(tmp_path / "softmax.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    planted = [row for row in rows if row["panel"] != "parity"]
    assert {row["panel"] for row in planted} == {"heads", "dimension", "logits"}
    assert len(planted) == 4 * 6  # equations, and two shapes in each of three panels
    for ratio in ("10.0", "20.0", "30.0"):
        mine = [row for row in planted if row["equations_per_unknown"] == ratio]
        rate = sum(float(row["error"]) < 1e-6 for row in mine) / len(mine)
        assert found["rates"][ratio] == pytest.approx(rate)
        assert rate > 0.5
        # A fifth is held out; the rest has so many equations an unknown
        for row in mine:
            N, m, d = (int(row[name]) for name in ("sequences", "heads", "d"))
            assert 0.8 * N * 4 * d == pytest.approx(float(ratio) * 2 * m * d * d, rel=0.2)
    parities = {row["bits"]: row for row in rows if row["panel"] == "parity"}
    assert set(parities) == {"1", "3"}
    assert parities["3"]["verdict"] == "not learned"
    assert float(parities["3"]["error"]) > 0.1
    assert (found["parity_failures"], found["wrongly"]) == (1, 0)
    text = (tmp_path / "softmax.txt").read_text()
    assert 'Parities of 3 and more of 6 bits: 1 of 1 "not learned"' in text
    assert 'Verdicts "learned" with an error above 1e-06: 0 of 26.' in text
    assert Path(tmp_path / "softmax.png").read_bytes()[:4] == b"\x89PNG"
