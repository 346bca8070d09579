"""A bar with the time left, on a terminal and for long work only."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

Progress: TypeAlias = bool | Callable[[int, Any], object]
"""What the functions of the package take: False, or a function of (done, total)."""

_PATIENCE = 0.5
"""Seconds without a bar; short work shows none."""


@contextmanager
def terminal_bar(arguments: Namespace, label: str, then: str = "") -> Iterator[Progress]:
    """Give the ``progress`` argument of a function, and clear the line when the block ends.

    Parameters
    ----------
    arguments
        ``--progress`` and ``--no-progress``; with neither, there is a bar if stderr is a terminal.
    label
        What is being done.
    then
        What is done when the counted part is over, and takes a while too.
    """
    asked = arguments.progress
    if not (sys.stderr.isatty() if asked is None else asked):
        yield False
        return
    from tqdm import tqdm  # noqa: PLC0415  # only for those who see a bar

    with tqdm(desc=label, delay=_PATIENCE, leave=False, file=sys.stderr) as bar:

        def show(done: int, total: int | None) -> None:
            bar.total = total
            bar.update(done - bar.n)
            if then and done == total and bar.format_dict["elapsed"] > _PATIENCE:
                bar.set_description_str(f"{label} done, {then}")

        yield show
