"""The best values W for given attention: linear least squares, min ||B W - Y||, of least norm.

B (M, p) has columns of any size, and may have dependent ones (heads with equal Theta read alike).
A second pass over the residuals brings back the digits that forming B'B lost.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...arrays.types import Floats
from .half_inverse import HalfInverse, half_inverse


@dataclass(frozen=True, eq=False)
class Values:
    """The best W for given B, and what is left over."""

    W: Floats
    """Values of all heads, one below the other, (p, d_out)."""
    residual: Floats
    """Residual Y - B W, (M, d_out)."""
    gram: HalfInverse
    """B'B, ready to be divided by."""


def solve_values(B: Floats, Y: Floats) -> Values:
    """Find the W (p, d_out) of least norm among those that minimise ||B W - Y||."""
    gram = half_inverse(B.T @ B)
    W = gram.solve(B.T @ Y)
    residual = Y - B @ W
    W += gram.solve(B.T @ residual)
    if gram.null.size:
        W -= gram.null @ (gram.null.T @ W)
    return Values(W, Y - B @ W, gram)
