"""What a command is: its help with an example, its options, and what it does."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class UsageError(Exception):
    """The command line asks for something that makes no sense: exit code 2."""


@dataclass(frozen=True)
class Outcome:
    """What a command has found: text for people, and the same as JSON for scripts."""

    text: str
    fields: dict[str, Any] = field(default_factory=dict)
    """Plain numbers, words, lists and dictionaries; numpy's kinds are converted."""
    failed: bool = False
    """Exit code 1 although there is something to show."""


class Command(NamedTuple):
    """One command of the program; its name is that of its module."""

    summary: str
    """One line, for the list of commands."""
    description: str
    """A few lines, for its own help."""
    example: str
    """Shell lines that work as they stand."""
    run: Callable[[Namespace], Outcome]
    """What does the work."""
    add_arguments: Callable[[ArgumentParser], None] = lambda parser: None
    """What adds its own options, if it has any."""
