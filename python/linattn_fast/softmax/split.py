"""Some sequences are kept apart, to measure the error on and for nothing else."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..arrays.types import Floats
from ..data.tokens import Tokens
from .attention import outputs
from .examples import Examples, Units
from .report import HeldOut


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
    units = Units.of(training)
    return Split(training.scaled(units), held_out.scaled(units), units)


def held_out_error(examples: Examples, Theta: Floats, W: Floats, tolerance: float) -> HeldOut:
    """Errors of a layer on examples, sequence by sequence."""
    errors, energies, weights = [], [], []
    for group in examples.groups:
        assert group.y is not None
        off = outputs(group.x, Theta, W).reshape(group.y.shape) - group.y
        errors.append(np.sum(off**2, axis=(1, 2)))
        energies.append(np.sum(group.y**2, axis=(1, 2)))
        weights.append(np.ones(len(off)) if group.weights is None else group.weights)
    return HeldOut.of(
        np.concatenate(errors), np.concatenate(energies), tolerance, np.concatenate(weights)
    )
