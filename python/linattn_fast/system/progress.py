"""How long work goes: bars on the terminal or the caller's own function, and seconds by stage."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeAlias

Progress: TypeAlias = Callable[[int], object] | None
"""Called now and then with the number of samples done; may raise to stop the work."""

Watch: TypeAlias = Callable[[int, float, float], object]
"""Called after every iteration with its number, the residual and the tolerance."""

_UNITS = {
    "sequences": "seq",
    "batches": "batch",
    "starts": "start",
    "heads": "head",
    "rounds": "round",
    "tokens": "token",
    "contexts": "context",
    "percents": "%",
}
"""What may be counted, in short."""


class _Shown:
    """Work whose progress is shown: nowhere, on a bar, or by the caller's own function."""

    def __init__(self, label: str, progress: bool | Callable[[int, Any], object]) -> None:
        if not isinstance(progress, bool) and not callable(progress):
            raise TypeError(
                f"progress: True, False or a function is needed, got {type(progress).__name__}"
            )
        self._label = label
        self._progress = progress
        self._bar: Any = None

    def _open(self, **options: Any) -> None:
        from tqdm.auto import tqdm  # noqa: PLC0415  # slow to import, and only bars need it

        self._bar = tqdm(desc=self._label, **options)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._finish(whole=error is None)

    def _finish(self, *, whole: bool) -> None:
        """Show the end, unless the work was broken off, and close the bar."""
        raise NotImplementedError


class Bar(_Shown):
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
        super().__init__(label, progress)
        self._total = total
        self._unit = _UNITS[unit]
        self._start = done

    def __enter__(self) -> Progress:
        if callable(self._progress):
            function = self._progress
            return lambda done: function(done, self._total)
        if self._progress:
            self._open(total=self._total, unit=self._unit, initial=self._start)
            return lambda done: self._bar.update(done - self._bar.n)
        return None

    def _finish(self, *, whole: bool) -> None:
        total = self._total if whole else None
        if callable(self._progress):
            if total is not None:
                self._progress(total, total)
        elif self._bar is not None:
            if total is not None:
                self._bar.update(total - self._bar.n)
            self._bar.close()


class IterationBar(_Shown):
    """Show an iteration whose end is not known: iterations, residual, estimated time.

    A function is called with the iterations done and the number that the fall of the residual so
    far suggests.
    """

    def __init__(self, label: str, progress: bool | Callable[[int, int], object]) -> None:
        super().__init__(label, progress)
        self._done = 0

    def __enter__(self) -> Watch | None:
        if self._progress is False:
            return None
        if self._progress is True:
            self._open(unit="it")
        return self._watch

    def _watch(self, iteration: int, residual: float, tolerance: float) -> None:
        self._done += 1
        left = 0
        if tolerance < residual < 1:  # a straight line in the logarithm
            left = math.ceil(iteration * (math.log(tolerance) / math.log(residual) - 1))
        if callable(self._progress):
            self._progress(self._done, self._done + left)
        elif self._bar is not None:
            self._bar.total = self._done + left
            self._bar.set_postfix(residual=f"{residual:.1e}", refresh=False)
            self._bar.update(1)

    def _finish(self, *, whole: bool) -> None:
        if callable(self._progress):
            if whole:
                self._progress(self._done, self._done)
        elif self._bar is not None:
            self._bar.total = self._done
            self._bar.close()


class Stages(dict[str, float]):
    """Seconds that each stage of a piece of work has taken."""

    def timed(self, name: str) -> _Timed:
        """Add the time of a block to a stage, unless it fails."""
        return _Timed(self, name)


class _Timed:
    """A block whose time is added to a stage."""

    def __init__(self, stages: Stages, name: str) -> None:
        self._stages, self._name = stages, name

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            spent = time.perf_counter() - self._start
            self._stages[self._name] = self._stages.get(self._name, 0.0) + spent
