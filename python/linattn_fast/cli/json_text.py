"""Results as JSON that every reader accepts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """Convert numpy's kinds; infinity and NaN, which JSON lacks, become null."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def as_json(value: Any) -> str:
    """A value as one indented document.

    Examples
    --------
    >>> print(as_json({"condition": float("inf"), "rank": 3}))
    {
      "condition": null,
      "rank": 3
    }
    """
    return json.dumps(plain(value), indent=2, allow_nan=False)
