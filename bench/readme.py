"""Tables of results in the README and other documents; docs/performance.md includes the files."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent


def show(name: str, text: str, document: str = "README.md") -> None:
    """Replace what stands between the mark of bench/results/<name> and the next end mark."""
    path = ROOT / document
    before, mark, rest = path.read_text().partition(f"<!-- bench/results/{name} -->\n")
    assert mark, name
    _, end, after = rest.partition("<!-- end -->")
    path.write_text(f"{before}{mark}{text}{end}{after}")
