"""Charts of the report, drawn by matplotlib as SVG that stands inside a page."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np

from ...arrays.types import Floats
from ...system.packages import matplotlib_figure, optional_module

NEEDED_BY, EXTRA = "--report", "report"
"""The option that draws, and the extra with what it draws with."""

COLOURS = {"ink": "#1c2430", "soft": "#5b6675", "line": "#e2e6ec", "blue": "#2f6fb2",
           "red": "#b3402f"}  # fmt: skip
"""Colours of the page in daylight. A chart names them as the page does, so that they change with
it in the dark."""

_MOST_DOTS = 60
"""Eigenvalues up to which each is a dot on the line."""

_STYLE = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "linattn_fast",  # the same page from the same data
    "font.size": 9,
    "axes.edgecolor": COLOURS["soft"],
    "axes.labelcolor": COLOURS["soft"],
    "xtick.color": COLOURS["soft"],
    "ytick.color": COLOURS["soft"],
    "grid.color": COLOURS["line"],
    "mathtext.default": "regular",
}


def spectrum_chart(spectrum: Floats, lambda_min: float, rank: int) -> str:
    """Eigenvalues, the largest first, on a logarithmic scale; those that count as zero are shaded.

    Parameters
    ----------
    spectrum
        (p,), ascending; what rounding made negative counts as zero.
    lambda_min
        Marked by a line, if above zero.
    rank
        How many count as more than zero.
    """
    p = len(spectrum)
    shown = spectrum[::-1][:rank]
    decades = np.log10(shown[shown > 0])
    seen = [*decades, math.log10(lambda_min)] if lambda_min > 0 else [*decades] or [0.0]
    low = math.floor(min(seen)) - (rank < p)
    matplotlib = optional_module("matplotlib", NEEDED_BY, EXTRA)
    with matplotlib.rc_context(_STYLE):
        figure = matplotlib_figure(NEEDED_BY, EXTRA)(figsize=(8.6, 3.2), layout="constrained")
        axes = figure.subplots()
        # Logarithms on a linear scale: eigenvalues may lie at the ends of the range of doubles
        axes.set(xlim=(-0.5, p - 0.5), ylim=(low, max(math.ceil(max(seen)), low + 1)))
        axes.set_xlabel("eigenvalue, largest first")
        axes.locator_params(nbins=8, integer=True)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.yaxis.set_major_formatter("$10^{{{x:.0f}}}$")
        axes.grid(axis="y")
        axes.spines[["left", "right", "top"]].set_visible(False)
        axes.tick_params(length=0)
        axes.plot(decades, color=COLOURS["blue"], marker="o" if p <= _MOST_DOTS else "", ms=4,
                  clip_on=False, gid="spectrum")  # fmt: skip
        if rank < p:
            _shade(axes, rank, p)
        if lambda_min > 0:
            at = math.log10(lambda_min)
            axes.axhline(at, color=COLOURS["red"], lw=1, ls="--")
            _write(axes, f"smallest eigenvalue {lambda_min:.4g}", (0, at), (6, 4),
                   axes.get_yaxis_transform())  # fmt: skip
        return _inline_svg(figure)


def _shade(axes: Any, rank: int, p: int) -> None:
    """Mark the eigenvalues after the first ``rank``, which count as zero."""
    axes.axvspan(rank - 0.5, p - 0.5, color=COLOURS["red"], alpha=0.09, lw=0)
    what = "eigenvalue counts" if p - rank == 1 else "eigenvalues count"
    inside = p - rank > 0.3 * p  # whether the words have room in the shaded part
    _write(axes, f"{p - rank:,} {what} as zero", (rank - 0.5, 1), (8 if inside else -8, -8),
           axes.get_xaxis_transform(), va="top", ha="left" if inside else "right")  # fmt: skip


def _write(
    axes: Any, text: str, at: tuple[float, float], moved: tuple[int, int], place: Any, **align: str
) -> None:
    """Write beside a mark, in its colour; ``moved`` is in points from where it is."""
    axes.annotate(text, at, moved, xycoords=place, textcoords="offset points",
                  color=COLOURS["red"], **align)  # fmt: skip


def _inline_svg(figure: Any) -> str:
    """The element ``svg`` of a figure, its colours by the names that the page gives them."""
    file = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    svg = file.getvalue()
    for name, colour in COLOURS.items():
        svg = svg.replace(colour, f"var(--{name})")
    return svg[svg.index("<svg") :].rstrip()
