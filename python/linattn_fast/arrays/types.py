"""Names for the arrays and the choices that functions take.

Shapes stand in the docstrings; these say what an array holds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from ..system.arguments import as_choice

Array: TypeAlias = npt.NDArray[Any]
Floats: TypeAlias = npt.NDArray[np.float64]
Positions: TypeAlias = Literal["last", "all", "causal"]

POSITIONS: tuple[Positions, ...] = ("last", "all", "causal")

as_positions: Callable[[object], Positions] = partial(as_choice, name="positions", known=POSITIONS)
"""Checks which tokens query, and what they attend to."""

Kind = TypeVar("Kind", bound=np.generic)
"""Any one kind of number: a result has the kind of its argument."""
