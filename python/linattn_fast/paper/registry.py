"""Every figure that ``linattn-fast paper`` makes."""

from __future__ import annotations

from . import fig2, fig4
from .figure import Figure

FIGURES: tuple[Figure, ...] = (fig2.FIGURE, fig4.FIGURE)
"""In the order in which the help lists them."""

BY_NAME: dict[str, Figure] = {figure.name: figure for figure in FIGURES}
