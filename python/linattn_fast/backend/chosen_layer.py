"""Apply coefficients of chosen features: y = C h.

A backend applies coefficients of all features. Where few of many are chosen, as for one-hot tokens,
writing the others out as zeros would take too much memory. Then, with C_l (d_out, n_pairs) the
columns of query coordinate l,

    y = sum_l z_l C_l s

where the sum is over the coordinates that are not zero: one of them for one-hot tokens.
"""

from __future__ import annotations

import numpy as np

from ..arrays.device import module_of
from ..arrays.types import Floats, Positions
from ..data.non_finite import largest_size, non_finite_error
from ..data.prefixes import Prefixes
from ..data.tokens import Tokens
from ..features.features import Features, feature_count, pair_count
from .interface import Backend

_WRITTEN_OUT = 8 << 20
"""Bytes of coefficients of all features up to which they are simply written out."""
_BATCH_BYTES = 64 << 20
"""Bytes of s that are formed at a time."""


def outputs_of(
    C: Floats, features: Features, tokens: Tokens, positions: Positions, engine: Backend
) -> Floats:
    """Outputs C h of every query, (rows, d_out), for C (d_out, n_features)."""
    if features.everything:
        return engine.coefficients(module_of(C).ascontiguousarray(C), tokens, positions)
    few = 3 * features.n_pairs < pair_count(features.d)
    large = 8 * len(C) * feature_count(features.d) > _WRITTEN_OUT
    if few and large and not engine.on_device:
        return _of_few(C, features, tokens, positions)
    full = module_of(C).ascontiguousarray(features.expand(C))
    return engine.coefficients(full, tokens, positions)


def _of_few(C: Floats, features: Features, tokens: Tokens, positions: Positions) -> Floats:
    maps = C.reshape(len(C), features.n_pairs, features.n_queries)
    prefixes = Prefixes.of(tokens, positions)
    outputs = np.zeros((len(prefixes), len(C)))
    step = max(1, _BATCH_BYTES // (8 * (features.n_pairs + features.d)))
    with np.errstate(over="ignore", invalid="ignore"):
        for where, part in prefixes.parts(step):
            s = part.pair_sums(features.pairs)
            z = part.query_tokens()[:, features.queries]
            for l in np.flatnonzero(z.any(axis=0)):
                rows = np.flatnonzero(z[:, l])
                outputs[where][rows] += z[rows, l, None] * (s[rows] @ maps[:, :, l].T)
    if not np.isfinite(outputs).all():
        raise non_finite_error(tokens, others={"coefficients": largest_size(C)})
    return outputs
