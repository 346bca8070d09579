"""The data of a fit as callers give it, checked: in memory, or in a stream."""

from __future__ import annotations

import numpy as np

from ..arrays.types import Positions
from ..backend.interface import Precision
from ..data.sources import as_source
from ..features.features import Features
from ..features.samples import Samples
from .in_memory import InMemory
from .streamed import Streamed, streamed


def as_problem(
    Z: object,
    y: object,
    offsets: object = None,
    sample_weight: object = None,
    positions: Positions = "last",
    features: Features | None = None,
    backend: str = "auto",
    precision: Precision = "float64",
) -> InMemory | Streamed:
    """Check the data of a fit; ``positions`` and ``precision`` have been checked."""
    source = None
    if type(Z) is not np.ndarray:  # a plain array is no stream
        source = as_source(Z, y, offsets=offsets, sample_weight=sample_weight, positions=positions)
    if source is not None:
        return streamed(source, positions, features, backend, precision)
    samples = Samples.checked(
        Z,
        y,
        offsets=offsets,
        sample_weight=sample_weight,
        positions=positions,
        features=features,
    )
    return InMemory.of(samples, backend, precision)
