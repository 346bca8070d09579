"""matplotlib, where it is installed: the part of it that needs no display."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def matplotlib_figure(what: str) -> Any:
    """The class ``matplotlib.figure.Figure``; ``what`` needs it, for the error."""
    try:
        return importlib.import_module("matplotlib.figure").Figure
    except ImportError:
        raise ImportError(
            f"{what} needs the package matplotlib, which is not installed (pip install matplotlib)"
        ) from None


@contextmanager
def axes_for(path_or_ax: str | os.PathLike[str] | Axes | None) -> Iterator[Axes]:
    """Axes to draw one panel in: those given, or new ones, which a file is made of at a path.

    Needs the extra ``plot``.
    """
    if path_or_ax is not None and not isinstance(path_or_ax, str | os.PathLike):
        yield path_or_ax
        return
    try:
        figure = matplotlib_figure("plot")(figsize=(5, 3.6), layout="constrained")
    except ImportError:
        raise ImportError("plot: matplotlib is needed; pip install linattn-fast[plot]") from None
    yield figure.subplots()
    if path_or_ax is not None:
        figure.savefig(path_or_ax, dpi=120)
