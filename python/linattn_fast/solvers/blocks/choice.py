"""Whether data is worth cutting into blocks: what that takes in bytes and in seconds.

Blocks need the rows of H of a block in memory, on the host. They cost, with n samples and p
features of each block,

    rows of H n p, Gram 2 n p^2, eigenvectors 10 p^3
"""

from __future__ import annotations

import numpy as np

from ...features.samples import Samples
from ...system.machine import usable_cores
from ..costs import LAPACK_RATE, estimate_memory, predict
from .partition import SUMS_BYTES, Partition, partition

_WORTH_LOOKING = 0.1
"""Seconds of the whole below which nobody looks for blocks."""
_SECONDS_A_BLOCK = 2e-3
"""Seconds that Python takes for a block, about."""


def in_words(cut: Partition) -> str:
    """What was found, for ``info.reason``."""
    n = len(cut.blocks)
    return f"{n} block{'s' if n != 1 else ''} of queries that never occur together"


def blocks_bytes(cut: Partition, d_out: int) -> int:
    """Bytes that a fit in blocks holds at its peak, beside the data."""
    p, n = cut.features_at_most, cut.samples_of_each
    if len(p) == 0:
        return 8 * d_out * cut.features.count
    sums = 8 * cut.sums_of_each * n
    # Rows, a scaled copy and targets; the Gram, its copies and LAPACK's work space; what is kept
    working = int((8 * (n * (3 * p + 2 * d_out) + 5 * p * p)).max())
    kept = int((8 * p * np.minimum(n, p)).sum())
    formed = max(int(sums.max()), min(int(sums.sum()), SUMS_BYTES)) + int(sums.max())
    return formed + working + kept + 16 * d_out * cut.features.count


def blocks_worth_it(samples: Samples, memory: int, *, proof: bool) -> Partition | None:
    """Blocks of data on the host, if they fit in memory and take less time than the whole."""
    seconds = _whole(samples, memory, proof=proof)
    if seconds < _WORTH_LOOKING:
        return None
    cut = partition(samples)
    return cut if cut is not None and _worth(cut, samples.d_out, memory, seconds) else None


def _whole(samples: Samples, memory: int, *, proof: bool) -> float:
    """Predicted seconds of a factorisation of all features; infinite where memory is short."""
    features, d_out, n = samples.features, samples.d_out, samples.n_samples
    positions = samples.positions
    name = "dual" if n < features.count else "cholesky"
    estimate = estimate_memory(
        features.d, d_out, positions=positions, n_samples=n, features=features
    )
    if estimate[name] > memory:
        return float("inf")
    costs = predict(features, d_out, positions, n, samples.n_columns, proof=proof)
    return costs.dual if name == "dual" else costs.cholesky


def _worth(cut: Partition, d_out: int, memory: int, seconds: float) -> bool:
    """Whether blocks fit in memory and are predicted to take less than the whole."""
    if blocks_bytes(cut, d_out) > memory:
        return False
    p, n = cut.features_at_most.astype(np.float64), cut.samples_of_each
    flops = float((2 * n * p * p + 10 * p**3).sum())
    own = flops / LAPACK_RATE / usable_cores() + _SECONDS_A_BLOCK * len(cut.blocks)
    return own < seconds
