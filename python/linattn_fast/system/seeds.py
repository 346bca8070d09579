"""Seeds of random numbers, as every function that draws takes them."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

Seed: TypeAlias = "int | np.random.SeedSequence | np.random.Generator | None"
"""The same numbers for the same integer; a generator moves on; None draws others every time."""


def as_generator(seed: Seed) -> np.random.Generator:
    """Check a seed, and make a generator of it."""
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError):
        raise ValueError(
            "seed: a whole number that is not negative, a numpy.random.Generator or None is "
            f"needed, got {seed!r}"
        ) from None
