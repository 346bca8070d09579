"""Samples with features that were left out because the data never has them.

    h[(j,k), l] = S[j,k] z[l] != 0    where the pair or the query is not among the active features

Nothing is determined there: such a feature is zero in every sample, so that its coefficients have
no part in any prediction on the data. Training data that does have such a feature is therefore
refused. (Features that were left out by choice are another matter: they have no part in the layer.)
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .device import module_of, put
from .features import Features
from .prefixes import Samples, occurring_pairs
from .tokens import Floats, Positions, Tokens

_BATCH_BYTES = 64 << 20
"""Of S formed at a time."""


def with_features_left_out(
    tokens: Tokens, positions: Positions, features: Features
) -> npt.NDArray[np.bool_]:
    """Which queries have a feature that is not chosen, (rows,)."""
    tokens = tokens.put(np.zeros(0))
    left_out = occurring_pairs(tokens)
    left_out[features.pairs[:, 0], features.pairs[:, 1]] = False
    pairs = np.argwhere(np.triu(left_out))
    queries = np.delete(np.arange(features.d), features.queries)
    samples = Samples.of(tokens, positions)
    found = np.zeros(len(samples), dtype=bool)
    step = max(1, _BATCH_BYTES // (8 * (len(pairs) + features.d)))
    for where, part in samples.parts(step):
        z = part.query_tokens()
        found[where] = z[:, queries].any(axis=1)  # S has the square of each
        if len(pairs):
            found[where] |= z.any(axis=1) & part.pair_sums(pairs).any(axis=1)
    return found


def require_none_left_out(
    tokens: Tokens, weights: Floats | None, positions: Positions, features: Features
) -> None:
    """Check that training data lacks the features that were left out because data lacks them.

    Samples of weight 0 are no part of the data.
    """
    if not features.others_are_zero:
        return
    found = with_features_left_out(tokens, positions, features)
    if weights is not None:
        counts = weights > 0
        found &= counts if positions == "last" else np.repeat(counts, tokens.lengths)
    if found.any():
        i = int(Samples.of(tokens, positions).sequences[np.argmax(found)])
        raise ValueError(
            f"features: Features.active left features out as zero in the data, but sequence {i} "
            "has some; find the active features of all data, or leave others out of the "
            "layer by choice: features.because(others_are_zero=False)"
        )


def unless_left_out(
    values: Floats, otherwise: float, tokens: Tokens, positions: Positions, features: Features
) -> Floats:
    """Values (rows,), and ``otherwise`` at queries with features that the data never has."""
    if features.everything or not features.others_are_zero:
        return values
    found = put(with_features_left_out(tokens, positions, features), like=values)
    chosen: Floats = module_of(values).where(found, otherwise, values)
    return chosen
