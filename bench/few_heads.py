"""Four planted heads at d = 64 without a Gram, which would take 142 GB.

    python bench/few_heads.py

The answer is checked first: the layer is the planted one, and its gap to the convex optimum is
rounding. Flops are counted from the sizes, to be compared with 60 seconds at 100 GFlop/s.
"""

from __future__ import annotations

import resource
import time
from typing import NamedTuple

import numpy as np

import linattn_fast as la

N, TOKENS, D, HEADS = 40_000, 32, 64, 4


class Found(NamedTuple):
    """What a run took, and how well the layer was found."""

    fit: la.Fit
    seconds: float
    processor_seconds: float
    bytes: int
    """Beside the data, at the peak."""
    distance: float
    """To the planted layer, relative."""
    gap: float
    """At most, to the convex optimum, relative to the targets."""


def measure() -> Found:
    """Fit the heads, and check them."""
    Z, y, truth = la.datasets.random_linear_attention(
        N, TOKENS, D, heads=HEADS, positions="last", seed=0
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start, used = time.perf_counter(), time.process_time()
    fit = la.fit(Z, y, heads=HEADS, memory_limit=2_000_000_000)
    seconds, cpu = time.perf_counter() - start, time.process_time() - used
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert fit.heads is not None
    assert fit.heads.recovery is not None
    assert fit.heads.recovery.gap_at_most is not None
    distance = fit.heads.distance(truth) / float(np.linalg.norm(truth.coefficients()))
    gap = fit.heads.recovery.gap_at_most / fit.info.mean_squared_target
    assert distance < 1e-8
    return Found(fit, seconds, cpu, 1024 * (peak - before), distance, gap)


def main() -> None:
    """Print seconds, memory, and how well the layer was found."""
    found = measure()
    print(
        f"{found.seconds:.1f} s ({found.processor_seconds:.1f} s of processor time), "
        f"{found.bytes / 1e9:.2f} GB beside the data"
    )
    print(
        f"distance to the planted layer {found.distance:.1e}, "
        f"gap at most {found.gap:.1e} of the targets"
    )
    print(found.fit.info)


if __name__ == "__main__":
    main()
