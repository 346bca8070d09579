"""What a figure of the paper is: something to run, and then a table, a text and a picture."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..features.files import replacing
from ..system.machine import get_num_threads, processor
from ..system.packages import matplotlib_figure

_DPI = 110


@dataclass(frozen=True)
class Settings:
    """What the caller of a figure decides."""

    quick: bool = False
    """Smaller sizes: seconds instead of minutes, and a picture of the same kind."""
    seed: int = 0
    """Of the data and of what is trained. Two runs with the same seed find the same."""
    folder: Path | None = None
    """Where finished parts of a long run are kept, so that it goes on where it was stopped."""
    progress: Callable[[int, int], object] | None = None
    """Called with the steps done and all of them."""

    def report(self, done: int, total: int) -> None:
        """Tell the caller how far the work has come."""
        if self.progress is not None:
            self.progress(done, total)


@dataclass(frozen=True)
class Finding:
    """What running a figure gives."""

    rows: Sequence[Mapping[str, object]]
    """Of the table: column to number or word, in the order of the columns."""
    text: str
    """The setting, and what was found; plain text, for people."""
    draw: Callable[[Any], None]
    """Draw into an empty ``matplotlib.figure.Figure`` (its object interface, never pyplot)."""
    size: tuple[float, float] = (10.0, 4.5)
    """Of the picture, in inches."""
    data: dict[str, Any] = field(default_factory=dict)
    """The numbers of the text, for scripts."""


@dataclass(frozen=True)
class Figure:
    """One figure, entered in :mod:`linattn_fast.paper.registry`."""

    name: str
    """On the command line, and of the files."""
    title: str
    """One line, for the list of figures."""
    description: str
    """A few lines: the task, what is compared, how long it takes."""
    run: Callable[[Settings], Finding]
    require: Callable[[], None] = lambda: None
    """Raise, before any work, ImportError with the pip command for a package that is missing."""


def machine() -> str:
    """What a figure was made on, for its text."""
    threads = get_num_threads()
    return f"{processor()}, {threads} thread{'s' * (threads > 1)}"


def require_plotting() -> None:
    """Raise when there is nothing to draw with."""
    matplotlib_figure("linattn-fast paper")


def write(finding: Finding, folder: Path, name: str) -> list[Path]:
    """Write NAME.png, NAME.csv and NAME.txt, each whole or not at all."""
    contents = {
        "png": _picture(finding),
        "csv": _table(finding.rows).encode(),
        "txt": f"{finding.text}\n".encode(),
    }
    paths = []
    for kind, content in contents.items():
        path = folder / f"{name}.{kind}"
        with replacing(path) as file:
            file.write(content)
        paths.append(path)
    return paths


def _picture(finding: Finding) -> bytes:
    figure = matplotlib_figure("linattn-fast paper")(figsize=finding.size, layout="constrained")
    finding.draw(figure)
    file = io.BytesIO()
    figure.savefig(file, dpi=_DPI, format="png")
    return file.getvalue()


def _table(rows: Sequence[Mapping[str, object]]) -> str:
    """Comma-separated values; numbers with all their digits, nothing where a row lacks a column."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()
