"""Every figure that ``linattn-fast paper`` makes."""

from __future__ import annotations

from . import fig1, fig2, fig3, fig4, softmax
from .figure import Figure

FIGURES: tuple[Figure, ...] = (
    fig1.FIGURE,
    fig2.FIGURE,
    fig3.FIGURE,
    fig4.FIGURE,
    softmax.FIGURE,
)
"""Every figure, in the order in which the help lists them."""

BY_NAME: dict[str, Figure] = {figure.name: figure for figure in FIGURES}
