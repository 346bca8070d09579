"""What a benchmark leaves in bench/results/: a table in Markdown, and its figures in JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def markdown_table(above: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A paragraph and a table below it."""
    first, *others = (f"| {' | '.join(map(str, row))} |" for row in (header, *rows))
    return "\n".join([above, "", first, "|" + "---|" * len(header), *others]) + "\n"


def keep(folder: Path, name: str, text: str, figures: object) -> None:
    """Write NAME.md and NAME.json."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.md").write_text(text)
    (folder / f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n")
