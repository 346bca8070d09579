"""How sums came about, and how large their summands were: what bounds on their rounding rest on.

See :mod:`linattn_fast.certificate.lower_bound`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..arrays.types import Floats
from .cubic import self_products
from .samples import Samples

_SEQUENCES_AT_ONCE = 256
"""Sequences whose S_jj are formed together."""


class Accumulation(NamedTuple):
    """How the sums came about: what a bound on their error needs to know."""

    wide: int = 0
    """Roundings in float64 that a summand has gone through, S apart, at most."""
    narrow: int = 0
    """The same in float32; 0 but in mixed precision."""
    longest: int = 0
    """Tokens in the longest sequence, so many roundings has S."""
    underflow: bool = False
    """Whether a result was rounded below the smallest normal number, or may have been; then errors
    are not bounded, and a zero among the sums proves nothing."""
    largest_weight: float = 0.0

    def merged(self, other: Accumulation) -> Accumulation:
        """How the sum of two sums came about."""
        return Accumulation(
            max(self.wide, other.wide) + 1,
            max(self.narrow, other.narrow),
            max(self.longest, other.longest),
            self.underflow or other.underflow,
            max(self.largest_weight, other.largest_weight),
        )


def summand_sizes(samples: Samples) -> Floats:
    """Sum w S_jj S_kk z_l^2 over the samples, (n_pairs, n_queries): how large summands are.

    With all features this is an entry of the Gram; see
    :mod:`linattn_fast.certificate.lower_bound`. A summand goes through the roundings of two or
    three S_jj, 4 of products and one for each other sample.
    """
    features, positions = samples.features, samples.positions
    total = np.zeros((features.n_pairs, features.n_queries))
    j, k = features.pairs.T
    for first in range(0, samples.n_sequences, _SEQUENCES_AT_ONCE):
        part = samples.part(first, min(first + _SEQUENCES_AT_ONCE, samples.n_sequences))
        diagonal = self_products(part.tokens, positions)  # (samples, d)
        queries = [z[-1:] if positions == "last" else z for z in part.tokens]
        squares = np.concatenate(queries).astype(np.float64)[:, features.queries] ** 2
        if positions == "all":  # there z_l^2 is summed to S_ll, and bounds go by that
            ends = np.cumsum(part.tokens.lengths) - 1
            diagonal = diagonal[ends]
            squares = diagonal[:, features.queries]
        if part.weights is not None:
            w = part.weights if positions == "all" else part.weight_of_each()
            squares *= w[:, None]
        total += (diagonal[:, j] * diagonal[:, k]).T @ squares
    return total
