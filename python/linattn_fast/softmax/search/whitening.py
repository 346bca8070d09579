"""Coordinates for descents: tokens R x of unit second moment.

The damping of Levenberg-Marquardt and the steps of L-BFGS see how tokens are scaled and mixed; in
these coordinates there is nothing to see. A layer (T, V) on R x is the layer (R' T R, R' V) on x.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...arrays.types import Floats
from ..descent.objective import Objective
from ..examples.groups import Examples
from .token_space import inverse_root


@dataclass(frozen=True, eq=False)
class Whitening:
    """The map from tokens x to tokens R x of unit second moment."""

    R: Floats
    """Invertible matrix (d, d), the identity on directions that no token has."""

    @classmethod
    def of(cls, examples: Examples) -> Whitening:
        """The whitening of the tokens of these examples."""
        x = examples.queries()
        root, span = inverse_root(x.T @ x / len(x))
        return cls(root + np.eye(len(span)) - span)

    def objective(self, examples: Examples, *, compiled: bool) -> Objective:
        """The reduced objective as a function of Theta for R x."""
        return Objective(examples.mixed(self.R), compiled=compiled)

    def into(self, Theta: Floats) -> Floats:
        """Theta for x, rewritten for R x."""
        back = np.linalg.inv(self.R)
        return np.asarray(back.T @ Theta @ back)

    def out_of(self, Theta: Floats) -> Floats:
        """Theta for R x, rewritten for x."""
        return np.asarray(self.R.T @ Theta @ self.R)
