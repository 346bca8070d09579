"""Names for the arrays and the choices that functions take.

Shapes stand in the docstrings; these say what an array holds.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
Floats: TypeAlias = npt.NDArray[np.float64]
Positions: TypeAlias = Literal["last", "all", "causal"]

POSITIONS: tuple[Positions, ...] = ("last", "all", "causal")

Kind = TypeVar("Kind", bound=np.generic)
"""Any one kind of number: a result has the kind of its argument."""


def as_positions(positions: object) -> Positions:
    """Check the name of a mode."""
    for known in POSITIONS:
        if isinstance(positions, str) and positions == known:
            return known
    raise ValueError(f"positions: must be one of {', '.join(POSITIONS)}, got {positions!r}")
