"""Tables of results, put into the documents that show them."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent


def show_in(document: str, name: str, text: str) -> None:
    """Replace what stands between the mark ``<!-- name -->`` and the next end mark."""
    path = ROOT / document
    before, rest = path.read_text().split(f"<!-- {name} -->\n")
    after = rest.split("<!-- end -->", 1)[1]
    path.write_text(f"{before}<!-- {name} -->\n{text}<!-- end -->{after}")
