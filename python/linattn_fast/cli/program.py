"""The program ``linattn-fast``: commands, exit codes, and errors in one sentence.

Exit codes: 0 when all went well; 1 when the work failed, such as on bad data; 2 for a wrong command
line; 130 after Ctrl-C; 141 when the reader of a pipe has gone, as for other programs.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, NoReturn

from .. import __version__
from ..data.data_warnings import DataWarning
from ..system.machine import num_threads
from .command import Command, Outcome, UsageError
from .commands import bench, certify, demo, fit, heads, info, paper, predict
from .json_text import as_json

PROGRAM = "linattn-fast"

COMMANDS: dict[str, Command] = {
    module.__name__.rpartition(".")[2]: module.COMMAND
    for module in (fit, certify, predict, heads, info, bench, demo, paper)
}
"""Every command by its name, in the order in which the help lists them."""

OK, FAILED, USAGE, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 130, 141

_FAILURES = (ValueError, TypeError, OSError, MemoryError, ArithmeticError, ImportError)
"""What bad data, files and machines raise. Anything else is a mistake of ours, to be seen whole."""


class _Parser(argparse.ArgumentParser):
    """argparse with its errors in one sentence, and the options of a command once it is asked for.

    What lists the options of ``paper`` imports its figures, which no other command should wait for.
    """

    def __init__(self, *, command: Command | None = None, **settings: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **settings)
        self._unread = command

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self._unread is not None:
            command, self._unread = self._unread, None
            command.add_arguments(self)
            shown = self.add_argument_group("output")
            shown.add_argument("--json", action="store_true", help="print JSON instead of tables")
            shown.add_argument(
                "--traceback", action="store_true", help="show where in the program an error arose"
            )
            self.set_defaults(run=command.run)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}; see '{self.prog} --help'")


def parser() -> argparse.ArgumentParser:
    """The parser of the command line, with every command."""
    whole = _Parser(
        prog=PROGRAM,
        description="Learn multi-head linear attention to the global optimum, with a certificate "
        "and recovered heads.",
        epilog=f"'{PROGRAM} COMMAND --help' has the options of a command and an example.\n\n"
        "exit codes: 0 all went well, 1 the work failed (such as on bad data), 2 wrong usage,\n"
        "130 interrupted",
    )
    whole.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = whole.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        example = "\n".join(f"  {line}" for line in command.example.splitlines())
        commands.add_parser(
            name,
            command=command,
            help=command.summary,
            description=command.description,
            epilog=f"example:\n{example}",
        )
    return whole


def _run(arguments: argparse.Namespace) -> int:
    threads = getattr(arguments, "threads", None)
    with _plain_warnings(), nullcontext() if threads is None else num_threads(threads):
        outcome: Outcome = arguments.run(arguments)
    _show(as_json(outcome.fields) if arguments.json else outcome.text)
    return FAILED if outcome.failed else OK


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Show warnings about data as a sentence, as errors are; a line of Python tells nobody more."""
    with warnings.catch_warnings():
        others = warnings.showwarning

        def show(message: Any, category: Any, *place: Any, **more: Any) -> None:
            if issubclass(category, DataWarning):
                print(f"{PROGRAM}: warning: {message}", file=sys.stderr)
            else:
                others(message, category, *place, **more)

        warnings.showwarning = show
        yield


def _show(text: str) -> None:
    """Print, and notice a closed pipe or a full disk here and not at exit."""
    try:
        sys.stdout.write(text)
        sys.stdout.write("\n" if text else "")
        sys.stdout.flush()
    except OSError:
        with suppress(OSError, ValueError):  # a stand-in for stdout has no file
            # What is still buffered goes nowhere, or the interpreter would try again at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def _sentence(error: BaseException) -> str:
    """An error as one line."""
    if isinstance(error, OSError) and error.strerror:
        what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    else:
        what = str(error) or ("out of memory" if isinstance(error, MemoryError) else repr(error))
    return " ".join(what.split())


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace | None:
    """The command line; None after ``--help`` and ``--version``, which argparse answers itself."""
    try:
        return parser().parse_args(argv)
    except SystemExit:
        _show("")
        return None


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line, ``sys.argv`` by default, and return its exit code."""
    trace = False
    try:
        arguments = _parsed(argv)
        if arguments is None:
            return OK
        trace = arguments.traceback
        return _run(arguments)
    except UsageError as error:
        print(error, file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print(f"{PROGRAM}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        return PIPE_CLOSED
    except _FAILURES as error:
        if trace:
            traceback.print_exc()
        print(f"{PROGRAM}: {_sentence(error)}", file=sys.stderr)
        return FAILED
