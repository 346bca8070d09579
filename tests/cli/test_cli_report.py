"""The report of a certificate: what it says and what it draws."""

import importlib.util
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from stand_ins.cli_session import fails, succeeds

import linattn_fast as la
from linattn_fast.cli.report import page
from linattn_fast.cli.report.charts import spectrum_chart
from linattn_fast.system.packages import NAME

written = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("jinja2", "matplotlib"))),
    reason="pages are made by Jinja2 and matplotlib, the extra 'report'",
)


class Page(HTMLParser):
    """Tags that were opened, those still open, and what is shown."""

    def __init__(self, text):
        super().__init__()
        self.open, self.links, self.text = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.links += [value for name, value in attrs if name in ("src", "href", "srcset")
                       or (name == "xlink:href" and not value.startswith("#"))]  # fmt: skip
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
    assert not re.search(r"@import|url\((?!#)|<script", text)
    return page.text, text


@written
def test_the_report_says_that_all_is_determined(capsys, data):
    text, page = report(capsys, "data.npz", "--names", "a,b,<c>")
    assert "Identifiable" in text
    assert "proved" in text
    assert "with query a" in text
    assert "<c>" in text  # as a name, not as a tag
    assert page.count('<g id="spectrum">') == 1


@written
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


@written
def test_degenerate_data_has_a_report_too(capsys, data):
    for name, Z in {"zero": np.zeros((30, 2, 2)), "one": np.ones((5, 1, 1))}.items():
        np.savez(f"{name}.npz", Z=Z)
        report(capsys, f"{name}.npz")
    np.savez("few.npz", Z=data[0][:10])
    assert "at least 8 of 18" in report(capsys, "few.npz")[0]


@written
def test_the_chart_draws_each_eigenvalue_where_it_belongs():
    chart = spectrum_chart(np.array([1e-1, 1.0, 1e2]), 1e-1, 3)
    (line,) = re.findall(r'<g id="spectrum">\s*<path d="([^"]*)"', chart)
    x, y = np.array([point.split()[1:] for point in line.splitlines()], float).T
    assert x[2] - x[1] == pytest.approx(x[1] - x[0], abs=0.2)  # linear, left to right
    assert y[1] - y[0] == pytest.approx(2 * (y[2] - y[1]), abs=0.3)  # two decades, and one


@written
def test_eigenvalues_at_the_ends_of_the_range_of_doubles_are_drawn():
    assert "1 eigenvalue counts" in spectrum_chart(np.array([0.0, 5e-324, 1.7e308]), 0.0, 2)
    assert "smallest eigenvalue 4.941e-324" in spectrum_chart(np.array([5e-324]), 5e-324, 1)


@written
def test_a_report_is_the_same_whenever_it_is_written(capsys, data):
    first = report(capsys, "data.npz", "--covers", "data.npz")[1]
    assert report(capsys, "data.npz", "--covers", "data.npz")[1] == first
    assert "<metadata" not in first


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_without_its_packages_a_report_says_what_to_install_before_any_work(
    capsys, folder, monkeypatch, package
):
    for name in ("jinja2", "matplotlib.figure"):
        there = None if name.startswith(package) else ModuleType(name)
        monkeypatch.setitem(sys.modules, name, there)
    error = fails(capsys, 1, "certify", "nowhere.npz", "--report", "out.html")
    assert error == (
        f"linattn-fast: --report needs the package {package}, which is not installed "
        f"(pip install '{NAME}[report]')\n"
    )


def test_the_template_is_installed_with_the_package():
    assert page._TEMPLATE.read_text(encoding="utf-8").endswith("</html>\n")
