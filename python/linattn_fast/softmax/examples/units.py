"""Tokens and targets of unit size, and how a layer is written in either units.

With s (d,) the root mean squares of the tokens' coordinates and t that of all targets,
x_j = X_j / s_j and y = Y / t have the layer

    Theta_jl = s_j s_l Theta^X_jl,    W_ja = s_j W^X_ja / t

Starting points and tolerances then mean the same for every unit. For +-1 tokens s is 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...arrays.types import Floats

_LEAST = 1e-75
"""Least root mean square, in the data's units: 1 / (s_j s_l), t / s_j and their squares must be
numbers. Its inverse is the largest."""


@dataclass(frozen=True, eq=False)
class Units:
    """Sizes of tokens and targets as they were given."""

    tokens: Floats
    """s (d,): the root mean square of each coordinate."""
    targets: float
    """t: the root mean square of all targets."""

    @classmethod
    def of(cls, tokens: Floats, targets: Floats) -> Units:
        """Root mean squares of tokens (M, d) and targets (M, d_out).

        Raises a ValueError where the layer could not be written in these units.
        """
        sizes = _root_mean_squares(tokens), _root_mean_squares(targets.reshape(-1, 1))
        for name, size in zip(("X", "Y"), sizes, strict=True):
            bad = size[(size < _LEAST) | (size > 1 / _LEAST)]
            if bad.size:
                raise ValueError(
                    f"{name}: a root mean square between {_LEAST:g} and {1 / _LEAST:g} is needed, "
                    f"got {bad[0]:.3g}; rescale it"
                )
        return cls(sizes[0], float(sizes[1][0]))

    def theta_in(self, Theta: Floats) -> Floats:
        """Theta (m, d, d) for the tokens as given, rewritten for x."""
        return np.asarray(Theta * np.outer(self.tokens, self.tokens))

    def theta_out(self, Theta: Floats) -> Floats:
        """Theta (m, d, d) for x, or its errors, rewritten for the tokens as given."""
        return np.asarray(Theta / np.outer(self.tokens, self.tokens))

    def values_out(self, W: Floats) -> Floats:
        """W (m, d, d_out) for x and y, or its errors, for tokens and targets as given."""
        return np.asarray(W * (self.targets / self.tokens)[:, None])


def _root_mean_squares(columns: Floats) -> Floats:
    """Root mean square of each column, without overflow; 1 where all are zero."""
    largest = np.abs(columns).max(axis=0)
    zero = largest == 0
    squares = np.mean((columns / np.where(zero, 1.0, largest)) ** 2, axis=0)
    return np.where(zero, 1.0, largest * np.sqrt(squares))
