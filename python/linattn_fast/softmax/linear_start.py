"""From linear attention to softmax attention, and both on the same data.

For small Theta, softmax attention with P_ba = (1 + x_b' Theta (x_a - mean)) / k is the mean token
plus linear attention, whose heads (V_h, Q_h) read S Q_h x_b. So Q_h' points where a softmax head
that does the same has its Theta; its scale is lost in the linear layer, and W is solved for anyway.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..arrays.types import Floats
from ..fitting.result import Fit as LinearFit
from ..heads.heads import Heads
from .examples import Units
from .starts import NORMS, TokenSpace


def theta_of_linear(
    linear: LinearFit | Heads, heads: int, space: TokenSpace, units: Units
) -> Floats:
    """Theta (heads, d, d) of a first start's norm, from the largest heads of a linear layer.

    The linear layer is for tokens as they were given; ``space`` and the result are for tokens of
    unit size.
    """
    found = linear.heads if isinstance(linear, LinearFit) else linear
    d = len(space.keys)
    if found is None:
        raise ValueError(
            "start: the linear fit has no heads; fit it with heads='minimal' or a number"
        )
    if found.d != d:
        raise ValueError(f"start: heads with d = {d} coordinates are needed, got {found.d}")
    if len(found) < heads:
        raise ValueError(f"start: at least {heads} heads are needed, got {len(found)}")
    home = found.get()
    sizes = np.linalg.norm(home.V, axis=(1, 2)) * np.linalg.norm(home.Q, axis=(1, 2))
    largest = np.sort(np.argsort(-sizes, kind="stable")[:heads])
    Q = home.Q[largest]
    Q = Q / np.maximum(np.abs(Q).max(axis=(1, 2), keepdims=True), np.finfo(np.float64).tiny)
    Theta = space.seen(units.theta_in(Q.transpose(0, 2, 1)))
    norms = np.linalg.norm(Theta, axis=(1, 2), keepdims=True)
    return np.asarray(NORMS[0] * np.divide(Theta, norms, out=np.zeros_like(Theta), where=norms > 0))


@dataclass(frozen=True)
class Comparison:
    """A softmax layer and a linear layer on the same data. Made by ``Fit.compare``."""

    softmax_error: float
    """||F(X) - Y|| / ||Y||."""
    linear_error: float
    """The same for the linear layer."""
    softmax_unknowns: int
    """Entries of Theta and W."""
    linear_unknowns: int
    """Coefficients of the linear layer."""

    def __str__(self) -> str:
        return (
            f"relative error: softmax {self.softmax_error:.3g} ({self.softmax_unknowns} unknowns), "
            f"linear {self.linear_error:.3g} ({self.linear_unknowns} unknowns)"
        )
