"""What a command is: its name, its help with an example, its options, and what it does."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


class UsageError(Exception):
    """The command line asks for something that makes no sense: exit code 2."""


@dataclass(frozen=True)
class Outcome:
    """What a command has found: text for people, and the same as JSON for scripts."""

    text: str
    data: dict[str, Any] = field(default_factory=dict)
    """Plain numbers, words, lists and dictionaries; numpy's kinds are converted."""
    failed: bool = False
    """Exit code 1 although there is something to show."""


@dataclass(frozen=True)
class Command:
    """One command of the program."""

    name: str
    summary: str
    """One line, for the list of commands."""
    description: str
    example: str
    """Shell lines that work as they stand."""
    add_arguments: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], Outcome]
