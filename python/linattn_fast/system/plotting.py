"""matplotlib, where it is installed: the part of it that needs no display."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .extras import optional_module

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def matplotlib_figure(what: str, extra: str = "plot") -> Any:
    """The class ``matplotlib.figure.Figure``; without it, an error says that ``what`` needs it."""
    return optional_module("matplotlib.figure", what, extra).Figure


@contextmanager
def axes_for(path_or_ax: str | os.PathLike[str] | Axes | None) -> Iterator[Axes]:
    """Axes to draw one panel in: those given, or new ones, which a file is made of at a path.

    Needs the extra ``plot``.
    """
    if path_or_ax is not None and not isinstance(path_or_ax, str | os.PathLike):
        yield path_or_ax
        return
    figure = matplotlib_figure("plot")(figsize=(5, 3.6), layout="constrained")
    yield figure.subplots()
    if path_or_ax is not None:
        figure.savefig(path_or_ax, dpi=120)
