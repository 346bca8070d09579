"""Errors that call an argument by the name that the caller knows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def calling(**names: str) -> Iterator[None]:
    """Errors about an argument, such as Z, are about ``names["Z"]`` here."""
    try:
        yield
    except (TypeError, ValueError) as error:
        message = str(error)
        for inner, outer in names.items():
            message = re.sub(rf"\b{inner}\b", outer, message)
        if message != str(error):
            error.args = (message,)  # the same error: not every kind can be made of a message
        raise
