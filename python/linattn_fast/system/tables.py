"""Tables of plain text, as wide as the terminal."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_WIDEST = 110
"""Longer lines are hard to read, however wide the terminal is."""


def _width() -> int:
    return max(50, min(shutil.get_terminal_size().columns, _WIDEST))


def facts(rows: Sequence[tuple[str, object]]) -> str:
    """Names and what there is to say about them, one below the other; long text is wrapped.

    Examples
    --------
    >>> print(facts([("solver", "cholesky"), ("heads", 3)]))
    solver  cholesky
    heads   3
    """
    column = max(len(name) for name, _ in rows) + 2
    room = max(30, _width() - column)
    lines = []
    for name, what in rows:
        paragraphs = [_wrapped(part.strip(), room) for part in str(what).splitlines()]
        wrapped = [line for paragraph in paragraphs for line in paragraph]
        for i, line in enumerate(wrapped or [""]):
            lines.append(f"{name if i == 0 else '':{column}}{line}".rstrip())
    return "\n".join(lines)


def _wrapped(paragraph: str, room: int) -> list[str]:
    """Lines of a paragraph; what follows the first of a numbered one stands below its text."""
    number = re.match(r"\d+\. ", paragraph)
    hang = " " * len(number[0]) if number else ""
    return textwrap.wrap(paragraph, room, subsequent_indent=hang, break_on_hyphens=False) or [""]


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns with a header; columns of numbers to the right.

    Examples
    --------
    >>> print(table(["head", "size"], [[0, "2.5"], [1, "0.125"]]))
    head   size
    ----  -----
       0    2.5
       1  0.125
    """
    cells = [[str(cell) for cell in row] for row in rows]
    columns = list(zip(header, *cells, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [bool(cells) and all(_numeric(cell) for cell in column[1:]) for column in columns]

    def line(row: Sequence[str]) -> str:
        parts = zip(row, widths, right, strict=True)
        return "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in parts).rstrip()

    return "\n".join([line(list(header)), line(["-" * w for w in widths]), *map(line, cells)])


def _numeric(cell: str) -> bool:
    """Whether a cell is a number, with a unit perhaps."""
    number = r"[-+]?[\d,]*\.?\d+(e[-+]?\d+)?( ?(x|ms|s|min \d+ s))?"
    return re.fullmatch(number, cell) is not None


def matrix(array: npt.NDArray[np.float64]) -> str:
    """A matrix of numbers, every row on one line."""
    return np.array2string(
        array, precision=4, suppress_small=True, threshold=array.size + 1, max_line_width=10**6
    )


def seconds(spent: float) -> str:
    """Seconds for people: 12 ms, 3.4 s, 5 min 20 s."""
    if spent < 1:
        return f"{1e3 * spent:.3g} ms"
    if spent < 100:
        return f"{spent:.3g} s"
    return f"{int(spent) // 60} min {int(spent) % 60} s"
