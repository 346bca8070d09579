"""How sums were formed, and how large their summands were, for bounds on their rounding errors.

:mod:`linattn_fast.certificate.lower_bound` has the bounds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..arrays.types import Floats
from ..data.stream_states import StreamStates
from .cubic import self_products
from .samples import Samples

_SEQUENCES_AT_ONCE = 256
"""Number of sequences whose S_jj are formed together."""


class Accumulation(NamedTuple):
    """How the sums were formed: the facts that a bound on their error needs."""

    wide: int = 0
    """Number of roundings in float64 that a summand goes through, at most, besides those of S."""
    narrow: int = 0
    """Number of roundings in float32 that a summand goes through, at most; 0 unless mixed."""
    longest: int = 0
    """Number of tokens in the longest sequence, which is the number of roundings of S."""
    underflow: bool = False
    """Whether a result was rounded below the smallest normal number, or may have been. Then errors
    are not bounded, and a zero among the sums proves nothing."""
    largest_weight: float = 0.0
    """Largest weight of a sample."""

    def merged(self, other: Accumulation) -> Accumulation:
        """How the sum of two such sums is formed."""
        return Accumulation(
            max(self.wide, other.wide) + 1,
            max(self.narrow, other.narrow),
            max(self.longest, other.longest),
            self.underflow or other.underflow,
            max(self.largest_weight, other.largest_weight),
        )


def summand_sizes(samples: Samples) -> Floats:
    """Sum w S_jj S_kk z_l^2 over the samples, (n_pairs, n_queries): the sizes of the summands.

    With all features this is an entry of the Gram; see
    :mod:`linattn_fast.certificate.lower_bound`. A summand goes through the roundings of two or
    three S_jj, four roundings of products, and one for each other sample.
    """
    features, positions = samples.features, samples.positions
    if not features.sums_cancel:
        return _feature_sizes(samples)
    total = np.zeros((features.n_pairs, features.n_queries))
    j, k = features.pairs.T
    for first in range(0, samples.n_sequences, _SEQUENCES_AT_ONCE):
        part = samples.part(first, min(first + _SEQUENCES_AT_ONCE, samples.n_sequences))
        diagonal = self_products(part.tokens, positions)  # (samples, d)
        queries = [z[-1:] if positions == "last" else z for z in part.tokens]
        squares = np.concatenate(queries).astype(np.float64)[:, features.queries] ** 2
        if positions == "all":  # there the sum of z_l^2 is S_ll, and bounds use that
            ends = np.cumsum(part.tokens.lengths) - 1
            diagonal = diagonal[ends]
            squares = diagonal[:, features.queries]
        if part.weights is not None:
            w = part.weights if positions == "all" else part.weight_of_each()
            squares *= w[:, None]
        total += (diagonal[:, j] * diagonal[:, k]).T @ squares
    return total


def sizes_are_apart(samples: Samples) -> bool:
    """Whether the Gram lacks the sizes of summands: those of keys and values of streams."""
    return isinstance(samples.tokens, StreamStates)


def _feature_sizes(samples: Samples) -> Floats:
    """Sum w s_u^2 z_l^2, (n_pairs, n_queries), where each feature is a summand of its own.

    A memory that is summed from keys and values counts as the sum of absolute values.
    """
    total = np.zeros((samples.features.n_pairs, samples.features.n_queries))
    for first in range(0, samples.n_sequences, _SEQUENCES_AT_ONCE):
        part = samples.part(first, min(first + _SEQUENCES_AT_ONCE, samples.n_sequences))
        if isinstance(part.tokens, StreamStates):
            part = replace(part, tokens=part.tokens.sizes())
        s, z = part.rows()
        total += (s**2).T @ (z**2 * part.weight_of_each()[:, None])
    return total
