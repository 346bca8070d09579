"""The start that a user gives: a layer, its Theta, or linear attention on the same data.

For small Theta, softmax attention with P_ba = (1 + x_b' Theta (x_a - mean)) / k is the mean token
plus linear attention, whose heads (V_h, Q_h) read S Q_h x_b. So Q_h' has the direction of Theta in
a softmax head that does the same. The scale of Theta is lost in the linear layer, and W is solved
for anyway.
"""

from __future__ import annotations

import numpy as np

from ...arrays.floats import as_matrix
from ...arrays.types import Floats
from ...fitting.result import Fit as LinearFit
from ...heads.heads import Heads
from ..examples.split import Split
from ..examples.units import Units
from ..layer.layer import Layer
from .token_space import NORMS, TokenSpace

_LARGEST_ENTRY = 1e100
"""Largest entry of a Theta to start from, for tokens of unit size, whose square is a number."""


def given_theta(start: object, heads: int, split: Split) -> Floats | None:
    """Theta (heads, d, d) to start from, for tokens of unit size; None for random starts alone."""
    if start is None:
        return None
    if isinstance(start, LinearFit | Heads):
        return theta_of_linear(start, heads, TokenSpace.of(split.training), split.units)
    Theta = start.Theta if isinstance(start, Layer) else as_matrix(start, "start", 3)
    shape = (heads, split.training.d, split.training.d)
    if Theta.shape != shape:
        raise ValueError(
            f"start: a Layer, a linear fit, or a Theta of shape {shape} is needed, got shape "
            f"{Theta.shape}"
        )
    if not np.abs(Theta).max() < _LARGEST_ENTRY / split.units.tokens.max() ** 2:
        raise ValueError(
            f"start: the logits overflow with entries of {np.abs(Theta).max():.3g} and tokens of "
            f"size {split.units.tokens.max():.3g}"
        )
    return split.units.theta_in(Theta)


def theta_of_linear(
    linear: LinearFit | Heads, heads: int, space: TokenSpace, units: Units
) -> Floats:
    """Theta (heads, d, d) from the largest heads of a linear layer, with the norm of a first start.

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
