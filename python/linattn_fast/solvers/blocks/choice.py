"""Whether data is worth cutting into blocks: what that takes in bytes and in seconds.

Blocks need the rows of H of a block in memory, on the host. They cost, with n samples and p
features of each block,

    rows of H n p, Gram 2 n p^2, eigenvectors 10 p^3
"""

from __future__ import annotations

import numpy as np

from ...features.samples import Samples
from ...system.machine import usable_cores
from ..rates import rates
from .partition import SUMS_BYTES, Partition, partition

_SECONDS_A_BLOCK = 2e-3
"""Seconds that Python takes for a block, roughly."""


def in_words(cut: Partition) -> str:
    """The number of blocks in words, for ``info.reason``."""
    if len(cut.blocks) == 1:
        return "one block, of queries that occur together"
    return f"{len(cut.blocks)} blocks of queries that never occur together"


def blocks_bytes(cut: Partition, d_out: int) -> int:
    """Number of bytes that a fit in blocks holds at its peak, beside the data."""
    p, n = cut.features_at_most, cut.samples_of_each
    if len(p) == 0:
        return 8 * d_out * cut.features.count
    sums = 8 * cut.sums_of_each * n
    # Rows, a scaled copy and targets; the Gram, its copies and LAPACK's work space; what is kept
    working = int((8 * (n * (3 * p + 2 * d_out) + 5 * p * p)).max())
    kept = int((8 * p * np.minimum(n, p)).sum())
    formed = max(int(sums.max()), min(int(sums.sum()), SUMS_BYTES)) + int(sums.max())
    return formed + working + kept + 16 * d_out * cut.features.count


def blocks_worth_it(samples: Samples, memory: int, seconds: float) -> Partition | None:
    """Cut data on the host into blocks, if these fit in memory and take fewer seconds."""
    cut = partition(samples)
    return cut if cut is not None and _worth(cut, samples.d_out, memory, seconds) else None


def _worth(cut: Partition, d_out: int, memory: int, seconds: float) -> bool:
    """Whether blocks fit in memory and are predicted to take less than the whole."""
    if blocks_bytes(cut, d_out) > memory:
        return False
    p, n = cut.features_at_most.astype(np.float64), cut.samples_of_each
    flops = float((2 * n * p * p + 10 * p**3).sum())
    own = flops / rates().cholesky / usable_cores() + _SECONDS_A_BLOCK * len(cut.blocks)
    return own < seconds
