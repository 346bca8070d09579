"""What a rounding may do, and numbers below the smallest normal one, 2^-1022.

k roundings in a row err by at most gamma(k) = k u / (1 - k u), relative to the result, unless it
is below 2^-1022, where errors are absolute. Whether this thread computes with such numbers at all
is another question: a library may have told the processor to take them for zero
(``torch.set_flush_denormal``, or one compiled with -ffast-math). Sums then lose what bounds on
their rounding count on. The compiled core undoes that in its own threads; here it is undone for
work in numpy.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from . import compiled

UNIT = 2.0**-53
"""Relative error of one rounding in float64."""
NARROW_UNIT = 2.0**-24
"""Relative error of one rounding in float32."""


def gamma(roundings: float, unit: float = UNIT) -> float:
    """k u / (1 - k u), which bounds the relative error of k roundings; infinite if k u >= 1."""
    error = roundings * unit
    return error / (1 - error) if error < 1 else float("inf")


def keeps_subnormals() -> bool:
    """Whether numbers below 2^-1022 are read as what they are, and results are not flushed."""
    smallest, normal = sys.float_info.min * sys.float_info.epsilon, sys.float_info.min
    return smallest + smallest > 0 and normal / 2 > 0


@contextmanager
def gradual_underflow() -> Iterator[None]:
    """Compute with numbers below 2^-1022 in this thread, as far as it can be arranged."""
    if compiled.MISSING is not None:  # nothing can be undone then, but it can be seen
        yield
        return
    before = compiled.core.set_default_environment()
    try:
        yield
    finally:
        compiled.core.restore_environment(before)
