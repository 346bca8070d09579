"""Charts as SVG, drawn by hand: a page that shows them needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from ..tokens import Floats

_MOST_POINTS = 600
"""Points of a line; more would not be seen."""
_MOST_DOTS = 60
"""Points that are dots as well."""


def minus(exponent: int | str) -> str:
    """A whole number with the sign that printers use."""
    return str(int(exponent)).replace("-", "\N{MINUS SIGN}")


@dataclass(frozen=True)
class _Frame:
    """Where the data is drawn, and how it is scaled: x linear, y logarithmic."""

    x_max: float
    low: int
    """Decade at the bottom."""
    high: int
    width: int = 860
    height: int = 320
    left: int = 70
    right: int = 18
    top: int = 16
    bottom: int = 46

    def x(self, value: float) -> float:
        inside = self.width - self.left - self.right
        return self.left + inside * value / self.x_max

    def y(self, value: float) -> float:
        inside = self.height - self.top - self.bottom
        decade = math.log10(value) if value > 0 else self.low
        share = (min(max(decade, self.low), self.high) - self.low) / (self.high - self.low)
        return self.top + inside * (1 - share)

    def open(self, label: str) -> str:
        return (
            f'<svg viewBox="0 0 {self.width} {self.height}" role="img" '
            f'aria-label="{escape(label)}" xmlns="http://www.w3.org/2000/svg">'
        )

    def decades(self) -> list[str]:
        """Grid lines and labels on the left, at most eight."""
        step = max(1, math.ceil((self.high - self.low) / 8))
        parts = []
        for decade in range(self.low, self.high + 1, step):
            y = self.y(10.0**decade)
            parts.append(f'<line class="grid" x1="{self.left}" x2="{self.width - self.right}" '
                         f'y1="{y:.1f}" y2="{y:.1f}"/>')  # fmt: skip
            parts.append(f'<text class="tick" x="{self.left - 9}" y="{y + 4:.1f}" '
                         f'text-anchor="end">10<tspan dy="-5" font-size="9">{minus(decade)}</tspan>'
                         "</text>")  # fmt: skip
        return parts

    def below(self, ticks: Sequence[tuple[float, str]], label: str) -> list[str]:
        """Labels of the horizontal axis."""
        y = self.height - self.bottom
        parts = [
            f'<line class="axis" x1="{self.left}" x2="{self.width - self.right}" '
            f'y1="{y}" y2="{y}"/>'
        ]
        for value, text in ticks:
            parts.append(f'<text class="tick" x="{self.x(value):.1f}" y="{y + 17}" '
                         f'text-anchor="middle">{escape(text)}</text>')  # fmt: skip
        middle = (self.left + self.width - self.right) / 2
        parts.append(f'<text class="label" x="{middle:.1f}" y="{self.height - 8}" '
                     f'text-anchor="middle">{escape(label)}</text>')  # fmt: skip
        return parts


def _round_ticks(largest: float, most: int = 8) -> list[float]:
    """0 and multiples of 1, 2 or 5 times a power of ten, not above ``largest``."""
    if largest <= 0:
        return [0.0]
    raw = largest / most
    unit = 10.0 ** math.floor(math.log10(raw))
    step = max(1.0, next(m * unit for m in (1, 2, 5, 10) if m * unit >= raw))
    return [i * step for i in range(int(largest / step) + 1)]


def spectrum_chart(spectrum: Floats, lambda_min: float, rank: int) -> str:
    """Eigenvalues, the largest first, on a logarithmic scale; those that count as zero in grey.

    Parameters
    ----------
    spectrum
        (p,), ascending; what rounding made negative counts as zero.
    lambda_min
        Marked by a line, if above zero.
    rank
        How many count as more than zero.
    """
    values = np.maximum(spectrum[::-1], 0.0)
    p = len(values)
    top = float(values[0]) if p and values[0] > 0 else 1.0
    kept = values[:rank][values[:rank] > 0]
    least = min(float(kept[-1]), lambda_min or math.inf) if len(kept) else top
    low = math.floor(math.log10(least)) - (1 if rank < p else 0)
    frame = _Frame(max(p - 1, 1), low, max(math.ceil(math.log10(top)), low + 1))
    index = np.unique(np.linspace(0, p - 1, min(p, _MOST_POINTS)).round().astype(int))
    parts = [frame.open("eigenvalues of the second moment, largest first"), *frame.decades()]
    ticks = [(at, f"{int(at):,}") for at in _round_ticks(frame.x_max)]
    parts += frame.below(ticks, "eigenvalue, largest first")
    if rank < p:
        x = frame.x(min(rank, p - 1))
        parts.append(f'<rect class="missing" x="{x:.1f}" y="{frame.top}" '
                     f'width="{max(frame.x(frame.x_max) - x, 3):.1f}" '
                     f'height="{frame.height - frame.top - frame.bottom}"/>')  # fmt: skip
        parts.append(_rank_label(frame, x, p - rank))
    points = [(frame.x(float(i)), frame.y(float(values[i]))) for i in index if i < rank]
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    parts.append(f'<polyline class="line" points="{joined}"/>')
    if p <= _MOST_DOTS:
        parts += [f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in points]
    if lambda_min > 0:
        y = frame.y(lambda_min)
        parts.append(f'<line class="mark" x1="{frame.left}" x2="{frame.width - frame.right}" '
                     f'y1="{y:.1f}" y2="{y:.1f}"/>')  # fmt: skip
        parts.append(f'<text class="mark-text" x="{frame.left + 8}" y="{y - 6:.1f}">'
                     f"smallest eigenvalue {lambda_min:.4g}</text>")  # fmt: skip
    return "\n".join([*parts, "</svg>"])


def _rank_label(frame: _Frame, x: float, missing: int) -> str:
    """Words beside the shaded part, on the side where there is room."""
    inside = frame.x(frame.x_max) - x > 190
    at, anchor = (x + 10, "start") if inside else (x - 8, "end")
    what = "eigenvalue counts" if missing == 1 else "eigenvalues count"
    return (
        f'<text class="missing-text" x="{at:.1f}" y="{frame.top + 20}" text-anchor="{anchor}">'
        f"{missing:,} {what} as zero</text>"
    )


def share_bar(share: float) -> str:
    """A bar filled to a share of one."""
    return (
        '<svg class="share" viewBox="0 0 860 18" preserveAspectRatio="none" role="img" '
        f'aria-label="{share:.1%}" xmlns="http://www.w3.org/2000/svg">'
        '<rect class="share-rest" width="860" height="18" rx="4"/>'
        f'<rect class="share-part" width="{860 * share:.1f}" height="18" rx="4"/></svg>'
    )
