"""Warnings about data that has a valid form and probably is not what was meant.

Each kind has its own class, so that it can be silenced by itself:

    warnings.simplefilter("ignore", la.InterpolationWarning)
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

from ..system.arguments import for_the_caller

_PACKAGE = f"{Path(__file__).parent.parent}{os.sep}"


class DataWarning(UserWarning):
    """Valid data that probably is not what was meant; the base class of the other kinds."""


class LayoutWarning(DataWarning):
    """Tokens look like the columns of each matrix, (N, d, n), where rows, (N, n, d), are needed."""


class PaddingWarning(DataWarning):
    """Sequences end in tokens of zeros, as if they were padded to one length."""


class InterpolationWarning(DataWarning):
    """Any targets would be fitted exactly: there are fewer samples than features, and no ridge."""


def warn(message: str, kind: type[DataWarning]) -> None:
    """Warn at the line outside this package that asked for the work."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(for_the_caller(message), kind, stacklevel=level)
