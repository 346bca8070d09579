"""Arguments: sizes checked, and errors that call each by the caller's name for it."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

_callers: ContextVar[tuple[Mapping[str, str], ...]] = ContextVar("callers", default=())
"""Names that the callers at work give to arguments, the innermost first."""


def _renamed(message: str, names: Mapping[str, str]) -> str:
    for inner, outer in names.items():
        message = re.sub(rf"\b{inner}\b", outer, message)
    return message


def for_the_caller(message: str) -> str:
    """A message with the names that the outermost caller knows."""
    for names in _callers.get():
        message = _renamed(message, names)
    return message


@contextmanager
def calling(**names: str) -> Iterator[None]:
    """Errors and warnings about an argument, such as Z, are about ``names["Z"]`` here."""
    before = _callers.set((names, *_callers.get()))
    try:
        yield
    except (TypeError, ValueError) as error:
        message = _renamed(str(error), names)
        if message != str(error):
            error.args = (message,)  # the same error: not every kind can be made of a message
        raise
    finally:
        _callers.reset(before)


def as_size(value: object, name: str, *, least: int = 1) -> int:
    """Check a whole number such as d or d_out."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # any object may turn up here
    except TypeError:
        kind = type(value).__name__
        raise TypeError(f"{name}: a whole number is needed, got {kind}") from None
    if number < least:
        raise ValueError(f"{name}: must be at least {least}, got {number}")
    return number
