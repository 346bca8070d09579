"""Batches made from checked parts, as backends take them, and the sums that they return."""

from typing import NamedTuple

import numpy as np

from linattn_fast.backend.totals import Totals
from linattn_fast.data.tokens import Tokens
from linattn_fast.features.features import Features
from linattn_fast.features.samples import Samples


def samples_of(
    tokens: Tokens,
    targets: Tokens | None = None,
    weights: np.ndarray | None = None,
    positions: str = "last",
    features: Features | None = None,
) -> Samples:
    """Samples of checked parts; all features by default."""
    chosen = Features(tokens.d) if features is None else features
    return Samples(tokens, targets, weights, positions, chosen)


def with_rows(tokens: Tokens, rows: np.ndarray) -> Tokens:
    """Rows (n_rows, m) as sequences of the lengths that the tokens have."""
    if isinstance(tokens.storage, tuple):
        return Tokens(rows, np.concatenate([[0], np.cumsum(tokens.lengths)]))
    if tokens.offsets is not None:
        return Tokens(rows, tokens.offsets)
    return Tokens(rows.reshape(*tokens.storage.shape[:2], rows.shape[1]))


class Arrays(NamedTuple):
    """The sums themselves, without how they were rounded."""

    gram: np.ndarray
    cross: np.ndarray
    energy: np.ndarray


def arrays_of(totals: Totals) -> Arrays:
    """The Gram, the cross moment and the energy."""
    return Arrays(totals.gram, totals.cross, totals.energy)
