"""Installed packages: this one's name and version, and those that only some of the work needs.

Each of the latter is brought by an extra of the distribution.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NAMES = ("linattn-fast", "linattn-fast-cu13")
"""The second has the CUDA module in it (docs/cuda.md)."""


def installed() -> tuple[str, str]:
    """Return name and version; of a source tree, the first name and no number."""
    for name in _NAMES:
        try:
            return name, version(name)
        except PackageNotFoundError:
            continue
    return _NAMES[0], "0+unknown"


NAME, VERSION = installed()


def optional_module(name: str, what: str, extra: str) -> Any:
    """Import a module of an optional package, or say in one sentence what to install.

    Parameters
    ----------
    name
        The module, such as ``matplotlib.figure``.
    what
        What needs it: the subject of the sentence.
    extra
        The extra that installs it.
    """
    try:
        return import_module(name)
    except ImportError:
        raise ImportError(
            f"{what} needs the package {name.partition('.')[0]}, which is not installed "
            f"(pip install '{NAME}[{extra}]')"
        ) from None


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
