"""The split into sequences to learn from and others, on which the error is measured."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...arrays.types import Floats
from ...data.tokens import Tokens
from .groups import Examples
from .units import Units


class Split(NamedTuple):
    """Training and held-out examples of unit size, and their units."""

    training: Examples
    held_out: Examples
    units: Units


def split_examples(
    tokens: Tokens, targets: Tokens, weights: Floats | None, share: float, seed: int
) -> Split:
    """Keep a share of the sequences apart, drawn at random; the rest is for training.

    Sequences of weight zero take no part. Units are those of the training sequences.
    """
    used = np.arange(len(tokens)) if weights is None else np.flatnonzero(weights)
    apart = max(1, round(share * len(used)))
    if apart >= len(used):
        what = "sequences" if weights is None else "sequences of positive weight"
        raise ValueError(
            f"X: at least 2 {what} are needed, one of them to be held out, and held_out = "
            f"{share:g} of {len(used)} leaves none for training"
        )
    if weights is not None:
        weights = weights / weights.max()  # the largest cannot overflow in a sum of squares
    order = used[np.random.default_rng([seed, 1]).permutation(len(used))]
    training = Examples.of(tokens, targets, np.sort(order[apart:]), weights)
    held_out = Examples.of(tokens, targets, np.sort(order[:apart]), weights)
    units = Units.of(training.queries(), training.targets())
    return Split(training.scaled(units), held_out.scaled(units), units)
