"""Softmax attention and linear attention, compared on the same data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Comparison:
    """A softmax layer and a linear layer on the same data. Made by ``Fit.compare``."""

    softmax_error: float
    """Relative error of the softmax layer, ||F(X) - Y|| / ||Y||."""
    linear_error: float
    """Relative error of the linear layer."""
    softmax_unknowns: int
    """Number of entries of Theta and W."""
    linear_unknowns: int
    """Number of coefficients of the linear layer."""

    def __str__(self) -> str:
        return (
            f"relative error: softmax {self.softmax_error:.3g} ({self.softmax_unknowns} unknowns), "
            f"linear {self.linear_error:.3g} ({self.linear_unknowns} unknowns)"
        )
