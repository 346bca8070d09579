"""Tables of results in the README."""

from __future__ import annotations

from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def show(name: str, text: str) -> None:
    """Replace what stands between the mark of bench/results/<name> and the next end mark."""
    before, mark, rest = README.read_text().partition(f"<!-- bench/results/{name} -->\n")
    assert mark, name
    _, end, after = rest.partition("<!-- end -->")
    README.write_text(f"{before}{mark}{text}{end}{after}")
