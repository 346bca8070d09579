"""A bar with the time left, on a terminal and for long work only."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeAlias

Progress: TypeAlias = bool | Callable[[int, Any], object]
"""What the functions of the package take: False, or a function of (done, total)."""

_PATIENCE = 0.5
"""Seconds without a bar; short work shows none."""


class TerminalBar:
    """Context manager: gives the ``progress`` argument of a function, and clears the line after.

    Parameters
    ----------
    arguments
        ``--progress`` and ``--no-progress``; with neither, there is a bar if stderr is a terminal.
    label
        What is being done.
    then
        What is done when the counted part is over, and takes a while too.
    """

    def __init__(self, arguments: Namespace, label: str, then: str = "") -> None:
        wanted = arguments.progress
        self._wanted = sys.stderr.isatty() if wanted is None else bool(wanted)
        self._label = label
        self._then = then
        self._bar: Any = None

    def __enter__(self) -> Progress:
        if not self._wanted:
            return False
        from tqdm import tqdm  # noqa: PLC0415  # only for those who see a bar

        self._bar = tqdm(desc=self._label, delay=_PATIENCE, leave=False, file=sys.stderr)
        return self._show

    def _show(self, done: int, total: int | None) -> None:
        self._bar.total = total
        self._bar.update(done - self._bar.n)
        if self._then and done == total and self._bar.format_dict["elapsed"] > _PATIENCE:
            self._bar.set_description_str(f"{self._label} done, {self._then}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()
