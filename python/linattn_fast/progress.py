"""Progress of long work: a bar on the terminal, or the caller's own function."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from .backend import Progress


class Bar:
    """Context manager that gives a backend its progress function, or None.

    Parameters
    ----------
    total
        Number of steps; None where that is not known.
    label
        What is being done.
    progress
        False for nothing, True for a bar, or a function of (done, total).
    unit
        What is counted.
    done
        Steps that were done before.
    """

    def __init__(
        self,
        total: int | None,
        label: str,
        progress: bool | Callable[[int, Any], object],
        *,
        unit: str = "sequences",
        done: int = 0,
    ) -> None:
        if not isinstance(progress, bool) and not callable(progress):
            raise TypeError(
                f"progress: True, False or a function is needed, got {type(progress).__name__}"
            )
        self._total = total
        self._label = label
        self._progress = progress
        self._unit = {"sequences": "seq", "batches": "batch"}[unit]
        self._start = done
        self._bar: Any = None

    def __enter__(self) -> Progress:
        if callable(self._progress):
            function = self._progress
            return lambda done: function(done, self._total)
        if self._progress:
            from tqdm.auto import tqdm  # noqa: PLC0415  # only for those who want a bar

            self._bar = tqdm(
                total=self._total, desc=self._label, unit=self._unit, initial=self._start
            )
            return lambda done: self._bar.update(done - self._bar.n)
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        total = self._total if error is None else None
        if callable(self._progress):
            if total is not None:
                self._progress(total, total)
        elif self._bar is not None:
            if total is not None:
                self._bar.update(total - self._bar.n)
            self._bar.close()
