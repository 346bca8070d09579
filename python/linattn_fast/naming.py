"""Errors and warnings that call an argument by the name that the caller knows."""

from __future__ import annotations

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
