"""How heads were found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recovery:
    """How heads were found: ``heads.recovery`` of recovered or fitted heads."""

    method: str
    """"minimal": the fewest that were found. "svd": those of the SVD, asked for, or fallen back on
    where no fewer were found. "fit": the best fit with a given number of heads."""
    residual: float
    """||C(heads) - C|| / ||C||, C the coefficients they stand for (of "fit": the convex optimum).
    """
    at_least: int
    """Ranks show that no fewer heads come within the ``tolerance`` of C."""
    tried: tuple[tuple[int, float], ...]
    """Other numbers of heads that were tried, and the relative residual each of them left."""
    fewer_leave: float
    """One head fewer leaves at least this relative residual, as ranks show; 0 if they do not."""
    reason: str
    """Why this number; a fallback is explained here."""
    loss: float | None = None
    """Of "fit": the training objective, (1/W) sum w ||C h - y||^2 + alpha ||C||^2."""
    convex_loss: float | None = None
    """Of "fit": that of the convex optimum, which no number of heads goes below."""
    tolerance: float | None = None
    """Relative residual up to which C counts as reproduced: what was asked for, but not below
    rounding. None in files of older releases."""

    def __str__(self) -> str:
        text = f"{self.method}, residual {self.residual:.1e}: {self.reason}"
        if self.loss is not None and self.convex_loss is not None:
            text += f"; training objective {self.loss:.4g}, convex optimum {self.convex_loss:.4g}"
        return text
