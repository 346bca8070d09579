"""Names for the arrays and the choices that functions take.

Shapes stand in the docstrings; these say what an array holds.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
Floats: TypeAlias = npt.NDArray[np.float64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Numbers: TypeAlias = npt.NDArray[np.intp]
"""Indices into another array: of rows, columns, coordinates or sequences."""
Positions: TypeAlias = Literal["last", "all", "causal"]

POSITIONS: tuple[Positions, ...] = ("last", "all", "causal")

Values: TypeAlias = Literal["mixed", "passed"]
VALUES: tuple[Values, ...] = ("mixed", "passed")
"""Whether outputs mix the values by a V that is learned, or are the values, V = I."""

Kind = TypeVar("Kind", bound=np.generic)
"""Any one kind of number: a result has the kind of its argument."""
