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
from ..system.packages import matplotlib_figure, optional_module

_DPI = 110
"""Dots of a picture per inch."""
_NEEDED_BY = "linattn-fast paper"
"""What needs matplotlib, in its errors."""


@dataclass(frozen=True)
class Settings:
    """What the caller of a figure decides."""

    quick: bool = False
    """Smaller sizes: seconds instead of minutes, and a picture of the same kind."""
    seed: int = 0
    """Seed of the data and of what is trained. Two runs with the same one find the same."""
    folder: Path | None = None
    """Where finished parts of a long run are kept, so that it goes on where it was stopped."""
    progress: Callable[[int, int], object] | None = None
    """Called with the steps done and all of them."""

    def report(self, done: int, total: int) -> None:
        """Tell the caller how far the work has come."""
        if self.progress is not None:
            self.progress(done, total)


class Steps:
    """Steps done of those to do; each call tells the caller of the figure."""

    def __init__(self, settings: Settings, total: int) -> None:
        self.settings, self.total, self.done = settings, total, 0

    def __call__(self, steps: int = 1) -> None:
        """Count steps that were done."""
        self.done += steps
        self.settings.report(self.done, self.total)


@dataclass(frozen=True)
class Finding:
    """What running a figure gives."""

    rows: Sequence[Mapping[str, object]]
    """Rows of the table: column to number or word, in the order of the columns."""
    text: str
    """The setting, and what was found; plain text, for people."""
    draw: Callable[[Any], None]
    """Draw into an empty ``matplotlib.figure.Figure`` (its object interface, never pyplot)."""
    size: tuple[float, float] = (10.0, 4.5)
    """Width and height of the picture, in inches."""
    numbers: dict[str, Any] = field(default_factory=dict)
    """The numbers of the text, for scripts."""


@dataclass(frozen=True)
class Figure:
    """One figure, entered in :mod:`linattn_fast.paper.registry`."""

    name: str
    """Its name on the command line, and that of its files."""
    title: str
    """One line, for the list of figures."""
    description: str
    """A few lines: the task, what is compared, how long it takes."""
    run: Callable[[Settings], Finding]
    needs: tuple[str, ...] = ()
    """Optional packages of the extra ``paper`` without which it is not begun."""
    table: str = ""
    """Name of its table, where another figure has the same; its own by default."""

    def make(
        self,
        folder: Path,
        *,
        quick: bool,
        seed: int,
        progress: Callable[[int, int], object] | None,
    ) -> tuple[Finding, list[Path]]:
        """Run the figure and write its files; nothing is begun where a package is missing."""
        matplotlib_figure(_NEEDED_BY)
        for package in self.needs:
            optional_module(package, f"{_NEEDED_BY} {self.name}", "paper")
        folder.mkdir(parents=True, exist_ok=True)
        finding = self.run(Settings(quick, seed, folder, progress))
        return finding, write(finding, folder, self.name, self.table)


def machine() -> str:
    """What a figure was made on, for its text."""
    threads = get_num_threads()
    return f"{processor()}, {threads} thread{'s' * (threads > 1)}"


def write(finding: Finding, folder: Path, name: str, table: str = "") -> list[Path]:
    """Write NAME.png, TABLE.csv (NAME.csv by default) and NAME.txt, each whole or not at all."""
    contents = {
        folder / f"{name}.png": _picture(finding),
        folder / f"{table or name}.csv": _table(finding.rows).encode(),
        folder / f"{name}.txt": f"{finding.text}\n".encode(),
    }
    for path, content in contents.items():
        with replacing(path) as file:
            file.write(content)
    return list(contents)


def _picture(finding: Finding) -> bytes:
    figure = matplotlib_figure(_NEEDED_BY)(figsize=finding.size, layout="constrained")
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
