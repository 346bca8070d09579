"""The reduced objective: the squared error as a function of Theta alone, with the best W for it.

    f(Theta) = min_W ||Y - B(Theta) W||^2 / ||Y||^2,      B = [A_1 ... A_m]

W being optimal, the derivative of f by Theta is that for fixed W:

    df/dTheta_i = -2 sum_b x_b (G_b^i r_b)' / ||Y||^2,    r = Y - B W

With weights, rows b of B and Y are multiplied by sqrt(w_b), and so is G_b.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...arrays.compiled import MISSING
from ...arrays.types import Floats
from ..examples.groups import Examples
from ..layer.attention import attention, pulled_back, read
from .best_values import Values, solve_values

SOLVED = 1e-8
"""Relative training error of a fit that is exact but for rounding, which grows with the logits."""


class Objective:
    """The function f on given examples.

    ``compiled`` says whether normal matrices are formed in the compiled core, where there is one.
    """

    def __init__(self, examples: Examples, *, compiled: bool = True) -> None:
        self.examples = examples
        self.compiled = compiled and MISSING is None
        self.roots = examples.weight_roots()
        self.targets = self.weighted(examples.targets())
        self.energy = float(np.sum(self.targets**2)) or 1.0

    def at(self, Theta: Floats) -> Point:
        """Evaluate f at Theta (m, d, d)."""
        with np.errstate(over="ignore", invalid="ignore"):  # a step too far is seen in the loss
            P = tuple(attention(group.x, Theta) for group in self.examples.groups)
            parts = [read(p, group.x) for p, group in zip(P, self.examples.groups, strict=True)]
            B = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if not np.isfinite(B).all():
            return Point(self, Theta, P, B, None)
        return Point(self, Theta, P, B, solve_values(self.weighted(B), self.targets))

    def weighted(self, rows: Floats, part: slice = slice(None)) -> Floats:
        """Rows (queries, ..), or a part of them, times the square roots of their weights."""
        if self.roots is None:
            return rows
        return rows * self.roots[part].reshape(-1, *[1] * (rows.ndim - 1))


@dataclass(frozen=True, eq=False)
class Point:
    """Theta with everything that was computed there."""

    objective: Objective
    Theta: Floats
    P: tuple[Floats, ...]
    """Attention weights of each group, (m, n, k, k)."""
    B: Floats
    """What the heads read, (queries, m d), without weights."""
    values: Values | None
    """The best values for weighted rows; None where the logits overflow."""

    @property
    def known(self) -> Values:
        """The best values at a point where the logits do not overflow."""
        assert self.values is not None
        return self.values

    @cached_property
    def loss(self) -> float:
        """Value of f: 0 for an exact fit, 1 for predicting zero."""
        if self.values is None:
            return np.inf
        return float(np.sum(self.values.residual**2)) / self.objective.energy

    @property
    def error(self) -> float:
        """Relative training error, sqrt(f)."""
        return float(np.sqrt(self.loss))

    @property
    def W(self) -> Floats:
        """Values of the heads, (m, d, d_out)."""
        m, d = self.Theta.shape[:2]
        return self.known.W.reshape(m, d, -1)

    def gradient(self) -> Floats:
        """Derivative of f by Theta, (m, d, d)."""
        total = np.zeros_like(self.Theta)
        first = 0
        for P, group in zip(self.P, self.objective.examples.groups, strict=True):
            rows = slice(first, first + group.rows.size)
            residual = self.objective.weighted(self.known.residual[rows], rows)
            total += pulled_back(P, group.x, self.W, residual)
            first = rows.stop
        return -2 / self.objective.energy * total
