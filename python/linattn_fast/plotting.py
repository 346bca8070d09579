"""matplotlib, where it is installed: the part of it that needs no display."""

from __future__ import annotations

import importlib
from typing import Any


def matplotlib_figure(what: str) -> Any:
    """The class ``matplotlib.figure.Figure``; ``what`` needs it, for the error."""
    try:
        return importlib.import_module("matplotlib.figure").Figure
    except ImportError:
        raise ImportError(
            f"{what} needs the package matplotlib, which is not installed (pip install matplotlib)"
        ) from None
