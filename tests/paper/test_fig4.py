"""Figure 4 at its smallest: the table, the text and the picture say what the certificates do."""

import itertools

import pytest

from linattn_fast.paper import fig4
from linattn_fast.paper.figure import Settings, write


@pytest.fixture
def smallest(monkeypatch):
    monkeypatch.setattr(fig4, "_BASE", {"states": 2, "symbols": 2, "length": 2})
    monkeypatch.setattr(fig4, "_QUICK_SIZES", range(2, 3))
    monkeypatch.setattr(fig4, "_QUICK_MACHINES", ((1, 2, 2),))
    monkeypatch.setattr(fig4, "_QUICK_RUNS", 40)


def test_traces_are_doubled_until_everything_is_covered(smallest, tmp_path):
    pytest.importorskip("matplotlib")
    calls = []
    settings = Settings(quick=True, progress=lambda done, total: calls.append((done, total)))
    finding = fig4.FIGURE.run(settings)
    assert calls[0] == (0, 4)
    assert calls[-1] == (4, 4)
    for part in ("states", "symbols", "length", "Turing machine"):
        rows = [row for row in finding.rows if row["part"] == part]
        assert [row["verdict"] == "covered" for row in rows] == [False] * (len(rows) - 1) + [True]
        assert all(b["traces"] == 2 * a["traces"] for a, b in itertools.pairwise(rows))
        ranks = [row["rank"] for row in rows]
        assert ranks == sorted(ranks)
        assert rows[-1]["covered_runs"] == rows[-1]["right_runs"] == rows[-1]["runs"]
    assert finding.numbers["covered_but_wrong"] == 0
    assert "all covered, proved, after" in finding.text
    names = [path.name for path in write(finding, tmp_path, "fig4")]
    assert names == ["fig4.png", "fig4.csv", "fig4.txt"]
    assert (tmp_path / "fig4.png").stat().st_size > 10_000
