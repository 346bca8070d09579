"""The report of a certificate: what it says and what it draws."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from cli_session import succeeds

import linattn_fast as la
from linattn_fast.cli.charts import spectrum_chart


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
